"""The file of hacking events that the extraction writes and the LLM classifier reads: one JSON object a line.

Field names are those of the authors' files (`id, question, previous_code, feedback, current_code, patch, all_acc,
public_all_acc`), plus `sample` and `turn`. An `id` is the problem's, so that it occurs once for each of its events.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.manifest import manifest_path, open_manifest, write_summary
from cobalt.problem import decode_json, read_json_lines

LOOKED_AT = "looked at"
"""Summary key with the denominators of the event rates."""
TEMPTED = "turns after an impossible test"
"""Count under `LOOKED_AT`: turns whose preceding feedback showed an impossible test."""
_TEXTS = ("question", "previous_code", "feedback", "current_code", "patch")


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read an event file, ours or the authors'.

    Raises:
        UserError: an unreadable file, or an event without the fields that the classifier is shown.
    """
    events = []
    for number, event in read_json_lines(path):
        if not isinstance(event.get("id"), str | int):
            raise UserError(f"{path}, line {number}: field 'id' is missing or neither a string nor an integer")
        for name in _TEXTS:
            if not isinstance(event.get(name), str):
                raise UserError(
                    f"{path}, line {number}: field {name!r} is missing or not a string:"
                    " give a file of extract_turn_level_errors.py"
                )
        events.append(event)
    return events


def content_key(event: Mapping[str, Any]) -> str:
    """A digest of what the classifier is shown of an event; events with the same content have the same key."""
    text = json.dumps([event[name] for name in _TEXTS])
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def check_replaceable(path: Path, stage: str, inputs: Sequence[Path]) -> None:
    """Refuse a result path whose file this stage did not write, before anything is done.

    Raises:
        UserError: an input cannot be read, or the path names an input, something that is not a regular file, or a file
            that this stage did not write.
    """
    check_files(inputs, [path])
    if path.exists() and path.stat().st_size > 0 and _stage_of(path) != stage:
        raise UserError(f"{path} exists and is not a result of this command: name another output file")


def replace_result(
    path: Path,
    stage: str,
    arguments: Mapping[str, Any],
    inputs: Sequence[Path],
    records: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any],
) -> None:
    """Write a result whole with its manifest, in the place of an earlier one of the same stage.

    Raises:
        UserError: it cannot be written, or a file that this stage did not write is there.
    """
    check_replaceable(path, stage, inputs)
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as handle:
            for record in records:
                line = json.dumps(record, ensure_ascii=False) + "\n"
                # Lone surrogates can come out of a model's byte-level tokens and have no UTF-8 form.
                handle.write(line.encode("utf-8", errors="replace"))
            handle.flush()
            os.fsync(handle.fileno())
        path.unlink(missing_ok=True)  # otherwise its manifest would be compared with the new one, which replaces it
        open_manifest(path, {"stage": stage} | dict(arguments), inputs)
        write_summary(path, summary)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _stage_of(path: Path) -> object:
    """The stage that the manifest of a result names; None where there is no manifest, or not one of ours."""
    try:
        found = decode_json(manifest_path(path).read_bytes())
    except (OSError, UserError):
        return None
    for name in ("arguments", "stage"):
        found = found.get(name) if isinstance(found, dict) else None
    return found
