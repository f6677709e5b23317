"""The rows of a Parquet file as lines of JSON: the script of a process of its own, which `cobalt.stage.rows` starts.

    python parquet_rows.py FILE

A Parquet file of a few bytes can ask for any amount of memory, and what its headers say of that need not be true. So it
is read where the memory is bounded and where nothing else is lost. After the rows, the last line is `null`, or a string
that says what is wrong with the file. The script needs Python and pyarrow alone.
"""

import json
import resource
import sys
from collections.abc import Iterator, Mapping
from datetime import date, time
from typing import Any

MEMORY_BYTES = 8 << 30
"""Address space of the process: enough for a row of the largest size in all the forms that it takes on its way."""

_BATCH_ROWS = 16


def plain_rows(path: str) -> Iterator[dict[str, Any]]:
    """The rows of a file, with values that JSON can hold; a few rows are read at a time."""
    import pyarrow.parquet

    # With a buffer, pages are read as they are needed instead of whole row groups.
    with pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            for index in range(batch.num_rows):
                (row,) = batch.slice(index, 1).to_pylist()
                yield {name: plain(value) for name, value in row.items()}


def plain(value: Any) -> Any:
    """A value as JSON can hold it: dates and times as ISO strings, and others without a form of their own as text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, date | time):
        return value.isoformat()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _limit(kind: int, most: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _main(path: str) -> None:
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    fault = None
    try:
        for row in plain_rows(path):
            sys.stdout.buffer.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    except BrokenPipeError:
        raise SystemExit from None  # the rows are no longer wanted
    except MemoryError:
        fault = f"a row, or what the file says of it, takes more than {MEMORY_BYTES >> 30} GiB of memory"
    except Exception as error:  # noqa: BLE001  # a damaged file can raise whatever pyarrow and Python raise
        lines = str(error).splitlines()
        fault = (lines[0] if lines else "") or type(error).__name__
    sys.stdout.buffer.write(json.dumps(fault).encode() + b"\n")


if __name__ == "__main__":
    _main(sys.argv[1])
