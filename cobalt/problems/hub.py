"""The Hugging Face Hub: rows and files of data sets by name, and policies and trajectories as uploads.

A local folder can stand in for the Hub in both directions. `datasets` and `huggingface_hub` are imported when needed.
"""

import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cobalt.stage.atomic import replacing
from cobalt.stage.environment import cache_folder
from cobalt.stage.errors import InfrastructureError, UserError, system_errors
from cobalt.stage.rows import encode_json, plain_row

logger = logging.getLogger(__name__)

_FILE_SUFFIXES = (".jsonl", ".json", ".gz", ".parquet")
_NAME = re.compile(r"[\w.-]+/[\w.-]+")

Row = tuple[str, dict[str, Any]]
"""Where a row stands, for messages, and the row."""


class DataSet(NamedTuple):
    """A data set: `owner/name[@revision][:split]`, or a folder of files that `datasets` reads, with its split."""

    name: str
    revision: str | None
    split: str | None

    def cached(self, version: str) -> Path:
        """The file of its rows at a commit, in the cache."""
        name = re.sub(r"[^\w.-]+", "--", self.name.strip("/"))
        return cache_folder("hub") / f"{name}@{version}" / f"{self.split or 'all'}.jsonl"


def input_file(named: Path) -> Path:
    """The file that a user named: the path itself, or, for a data set, a JSONL file of its rows in the cache.

    The cache is `$XDG_CACHE_HOME/cobalt/hub`. The Hub is asked for the newest commit each time; without a network the
    rows of the last time are taken.

    Raises:
        UserError: the data set cannot be read, or has several splits of which none is named.
    """
    data_set = _data_set(named)
    if data_set is None:
        return named
    local = Path(data_set.name).is_dir()
    version = "main" if local else _commit(data_set)
    cached = data_set.cached(version)
    if local or not cached.exists():
        with replacing(cached) as handle:
            for _, row in hub_rows(data_set.name, data_set.split, None if local else version):
                handle.write((encode_json(row, ensure_ascii=False) + "\n").encode())
    logger.info("the input is %s, as %s", named, cached)
    return cached


def _data_set(named: Path) -> DataSet | None:
    """The data set that a path names; None for a file, also one that does not exist."""
    name, _, split = str(named).partition(":")
    if named.is_file():
        return None
    if Path(name).is_dir():
        return DataSet(name, None, split or None)
    name, _, revision = name.partition("@")
    if name.endswith(_FILE_SUFFIXES) or not _NAME.fullmatch(name) or Path(name).parent.exists():
        return None
    return DataSet(name, revision or None, split or None)


def _commit(data_set: DataSet) -> str:
    """The newest commit of a revision; without a network, the newest in the cache."""
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return str(HfApi().dataset_info(data_set.name, revision=data_set.revision, timeout=20).sha)
    except HfHubHTTPError as error:
        raise UserError(f"the Hub has no data set {data_set.name} that you may read: {_first_line(error)}") from None
    except (HTTPError, OSError) as error:
        pattern = data_set.cached("*")
        earlier = sorted(pattern.parent.parent.glob(f"{pattern.parent.name}/{pattern.name}"), key=os.path.getmtime)
        if not earlier:
            raise UserError(
                f"cannot read {data_set.name}: it is not a file, and the Hub does not answer ({_first_line(error)})"
            ) from None
        logger.warning("the Hub does not answer; the rows of %s are those of an earlier time", data_set.name)
        return earlier[-1].parent.name.rpartition("@")[2]


def hub_rows(
    name: str, split: str | None, revision: str | None, advice: str | None = None, config: str | None = None
) -> Iterator[Row]:
    """The rows of a data set, streamed.

    Args:
        name: `owner/name` on the Hub, or a folder of files that `datasets` reads.
        split: None: the only one.
        revision: Branch, tag or commit; None: the newest commit.
        advice: The end of an error's message: what else the user could give.
        config: Its configuration; None: the default one.

    Raises:
        UserError: the rows cannot be read, or there are several splits of which none is named.
    """
    with _asking(name, advice):
        import datasets

        splits = datasets.load_dataset(name, config, revision=revision, streaming=True)
        if split is None and len(splits) > 1:
            raise UserError(f"{name} has the splits {', '.join(splits)}: name one, as in {name}:{next(iter(splits))}")
        split = split or next(iter(splits))
        if split not in splits:
            raise ValueError(f"there is no split {split!r}; its splits are {', '.join(splits)}")
        for number, row in enumerate(splits[split], 1):
            yield f"{name}, row {number}", plain_row(row)


def hub_file(name: str, file: str, revision: str, advice: str) -> Path:
    """A file of a data set on the Hub, downloaded into the Hub's cache; arguments and errors as of `hub_rows`."""
    with _asking(f"{file} of {name}", advice):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))


@contextmanager
def _asking(what: str, advice: str | None) -> Iterator[None]:
    """Turn what the Hub and its libraries raise into UserError, and silence their warnings of each attempt."""
    try:
        from datasets.exceptions import DatasetsError
        from httpx import HTTPError
        from pyarrow import ArrowException
    except ImportError:
        raise UserError(f"to read {what}, install `datasets` (scripts/setup.sh --profile cpu)") from None
    logger.info("%s comes from the Hugging Face Hub, or from its cache", what)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        yield
    except (OSError, HTTPError, DatasetsError, ArrowException, ValueError) as error:
        advised = f": {advice}" if advice else ""
        raise UserError(f"cannot read {what} ({_first_line(error)}){advised}") from None


def check_target(target: str) -> None:
    """Check a target of an upload, as far as that goes without the network.

    Args:
        target: `owner/name` on the Hub; or a folder, which begins with `/`, `.` or `~`.

    Raises:
        UserError: the target is neither, the folder holds files of others, or there is no token for the Hub.
    """
    folder = _folder(target)
    if folder is not None:
        card = folder / "README.md"
        ours = card.is_file() and _CARD_TAG in card.read_text(encoding="utf-8", errors="replace")
        if folder.exists() and not ours and (folder.is_file() or any(folder.iterdir())):
            raise UserError(
                f"--push_to_hub {folder} holds files that no --push_to_hub wrote: name an empty or new folder"
            )
        return
    if not _NAME.fullmatch(target):
        raise UserError(f"--push_to_hub {target}: give owner/name, or a folder that begins with / or ./")
    from huggingface_hub import get_token

    if get_token() is None:
        raise UserError("--push_to_hub needs a token of the Hub: run `hf auth login`, or set HF_TOKEN")


def _folder(target: str) -> Path | None:
    return Path(target).expanduser() if target.startswith(("/", ".", "~")) else None


def push(target: str, files: Mapping[str, Path], card: str) -> str:
    """Upload files to a data set in one commit. A repository that does not exist is created, and is private.

    Args:
        target: As for `check_target`.
        files: The files by their path in the repository.
        card: Contents of its README.md.

    Returns the folder or the repository's address.

    Raises:
        UserError: the Hub refuses the token or the name, or the folder cannot be written.
        InfrastructureError: the Hub does not answer.
    """
    check_target(target)
    folder = _folder(target)
    if folder is not None:
        with system_errors(f"cannot write into {folder}"):
            for name, path in files.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / name)
            (folder / "README.md").write_text(card, encoding="utf-8")
        return str(folder)
    from httpx import HTTPError
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    contents: dict[str, Path | bytes] = {**files, "README.md": card.encode()}
    operations = [CommitOperationAdd(name, content) for name, content in contents.items()]
    api = HfApi()
    try:
        api.create_repo(target, repo_type="dataset", private=True, exist_ok=True)
        commit = api.create_commit(target, operations, commit_message="Upload by cobalt", repo_type="dataset")
    except (HTTPError, OSError) as error:
        refused = isinstance(error, HfHubHTTPError) and error.response.status_code in (400, 401, 403, 404, 409)
        message = f"the Hub did not take the upload to {target}: {_first_line(error)}"
        raise (UserError if refused else InfrastructureError)(message) from None
    return str(commit.repo_url or target)


_CARD_TAG = "tags:\n- cobalt\n"


def trajectories_card(file: str, about: str) -> str:
    """The README.md of trajectories, by which `datasets` finds their file."""
    metadata = f"{_CARD_TAG}- code\nconfigs:\n- config_name: default\n  data_files: {json.dumps(file)}\n"
    return f"---\n{metadata}---\n\n# Trajectories of multi-turn code generation\n\n{about}\n"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
