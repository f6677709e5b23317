"""Commands that were `python -m cobalt.X` at another path: the old one ends with a sentence that names the new one."""

import sys
from collections.abc import Sequence
from types import ModuleType

MOVED = {
    "cobalt.report.gpu": "studies.gpu_report",
    "cobalt.studies": "studies",
    "cobalt.training.divergence": "studies.divergence",
}
"""Old module or package and new one; the new ones are run in a checkout of the project."""


class MovedModules:
    """A finder of modules for the end of `sys.meta_path`, where only names arrive that no other finder knows."""

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Exit with the sentence if the module has moved."""
        if name in MOVED:
            sys.stderr.write(f"error: {name} has moved to {MOVED[name]}, which runs in a checkout of the project\n")
            sys.exit(2)
