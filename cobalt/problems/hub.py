"""Rows and files of data sets of the Hugging Face Hub; `datasets` and `huggingface_hub` are imported when needed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cobalt.stage.errors import UserError
from cobalt.stage.rows import plain_row

logger = logging.getLogger(__name__)

Row = tuple[str, dict[str, Any]]
"""Where a row stands, for messages, and the row."""


def hub_rows(name: str, split: str, revision: str, advice: str, config: str | None = None) -> Iterator[Row]:
    """The rows of a data set, streamed.

    Args:
        name: `owner/name` on the Hub, or a folder of files that `datasets` reads.
        split: Its split.
        revision: Branch, tag or commit.
        advice: The end of an error's message: what else the user could give.
        config: Its configuration; None: the default one.

    Raises:
        UserError: the rows cannot be read, or there is no such split.
    """
    with _asking(name, advice):
        import datasets

        rows = datasets.load_dataset(name, config, split=split, revision=revision, streaming=True)
        for number, row in enumerate(rows, 1):
            yield f"{name}, row {number}", plain_row(row)


def hub_file(name: str, file: str, revision: str, advice: str) -> Path:
    """A file of a data set on the Hub, downloaded into the Hub's cache; arguments and errors as of `hub_rows`."""
    with _asking(f"{file} of {name}", advice):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(name, file, repo_type="dataset", revision=revision))


@contextmanager
def _asking(what: str, advice: str) -> Iterator[None]:
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
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UserError(f"cannot read {what} ({first}): {advice}") from None
