"""The Hugging Face Hub: rows and files of data sets by name.

A local folder can stand in for the Hub. `datasets` and `huggingface_hub` are imported when needed.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cobalt.stage.atomic import replacing
from cobalt.stage.environment import cache_folder
from cobalt.stage.errors import UserError
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


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
