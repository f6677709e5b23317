"""Module imported by every veRL process, on a GPU and on a CPU: the launcher names it in `VERL_USE_EXTERNAL_MODULES`.

The modules of `estimators` and `losses` are imported with it and register with veRL, and so does the platform of a
machine without a GPU. Agent loops and trainers are imported by the processes that run them.
"""

import importlib
import os
import pkgutil


def _import_all(folder: str) -> None:
    """Import every module of one of the package's folders, so that a new file needs no entry in a list."""
    package = importlib.import_module(f"cobalt_verl.{folder}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


if os.environ.get("VERL_PLATFORM") == "cpu":
    from cobalt_verl import cpu

    cpu.install()  # before anything of veRL asks for its device
_import_all("estimators")
_import_all("losses")
