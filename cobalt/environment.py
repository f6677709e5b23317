"""Environment variables of this process that are set for the duration of a block and then restored."""

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment_variables(**values: str | None) -> Iterator[None]:
    """Set environment variables, or unset those that are None, for as long as the block runs."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
