"""Rows of a data set, one at a time: from a local file, or by name from the Hugging Face Hub.

`datasets`, `huggingface_hub` and `pyarrow` are imported when they are needed, not before. Rows are not interpreted
here.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.stage.rows import plain_row, read_rows

logger = logging.getLogger(__name__)

Row = tuple[str, dict[str, Any]]
"""Where a row stands, for messages, and the row."""


def local_rows(path: Path) -> Iterator[Row]:
    """The rows of a file in any form of `cobalt.stage.rows`, in its order.

    Raises:
        UserError: another kind of file, unreadable or truncated.
    """
    for place, row in read_rows(path):
        yield f"{path}, {place}", row


def hub_rows(name: str, split: str, revision: str, advice: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a data set on the Hub, streamed.

    Args:
        name: `owner/name`.
        split: Its split.
        revision: Branch, tag or commit.
        advice: What the error message advises where there is no network.
        config: Its configuration; None: the only one, or the default one.

    Raises:
        UserError: no network, or no such data set.
    """
    try:
        import datasets
        from datasets.exceptions import DatasetsError
        from httpx import HTTPError
        from pyarrow import ArrowException
    except ImportError:
        raise UserError(f"data sets by name need `datasets` (scripts/setup.sh --profile cpu); or {advice}") from None
    _announce(f"{name} is streamed from the Hugging Face Hub")
    try:
        rows = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{name}, row {number}", plain_row(row)
    except (OSError, HTTPError, DatasetsError, ArrowException, ValueError) as error:
        raise UserError(f"cannot stream {name} ({_first_line(error)}): {advice}") from None


def hub_file(name: str, file: str, revision: str, advice: str) -> Path:
    """A file of a data set on the Hub, downloaded into the Hub's cache.

    Args:
        name: `owner/name`.
        file: Its path there.
        revision: Branch, tag or commit.
        advice: What the error message advises where there is no network.

    Raises:
        UserError: no network, or no such file.
    """
    try:
        from httpx import HTTPError
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError
    except ImportError:
        raise UserError(f"files by name need `huggingface_hub` (scripts/setup.sh --profile cpu); or {advice}") from None
    _announce(f"{file} of {name} comes from the Hugging Face Hub or its cache")
    try:
        return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))
    except (OSError, HTTPError, HfHubHTTPError, ValueError) as error:
        raise UserError(f"cannot download {file} of {name} ({_first_line(error)}): {advice}") from None


def field_of(row: Mapping[str, Any], name: str) -> Any:
    """A field that every row of a data set has; None where it is null.

    Raises:
        UserError: the row does not have it, so that it is one of another data set.
    """
    if name not in row:
        raise UserError(f"field {name!r} is missing")
    return row[name]


def text_of(row: dict[str, Any], name: str) -> str:
    """A field of a row that must be a string, with newlines as line ends.

    Raises:
        UserError: it is missing or not a string; the message names it.
    """
    value = row.get(name)
    if not isinstance(value, str):
        raise UserError(f"field {name!r} is missing or not a string")
    return value.replace("\r\n", "\n")


def texts_of(row: dict[str, Any], name: str) -> list[str]:
    """A field of a row that must be a list of strings, with newlines as line ends.

    Raises:
        UserError: it is missing or not a list of strings; the message names it.
    """
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(f"field {name!r} is missing or not a list of strings")
    return [item.replace("\r\n", "\n") for item in value]


def _announce(what: str) -> None:
    """Log that the network is used, and silence the Hub's library, which warns of every attempt without a network."""
    logger.info("%s", what)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
