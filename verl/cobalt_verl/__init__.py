"""What this project adds to veRL, one folder for each kind: `estimators`, `losses`, `agent_loops`, `trainers`, `cpu`.

Installed with the project. Every process of veRL imports this module, on a GPU and on a CPU: the launcher sets
`VERL_USE_EXTERNAL_MODULES=cobalt_verl`. The modules of `estimators` and `losses` are imported with it and register with
veRL; agent loops and trainers are imported by the processes that run them. `cobalt` never imports this package.
"""

import importlib
import os
import pkgutil


def _import_all(folder: str) -> None:
    """Import every module of one of this package's folders, so that a new file needs no entry in a list."""
    package = importlib.import_module(f"{__name__}.{folder}")
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)


if os.environ.get("VERL_PLATFORM") == "cpu":
    from cobalt_verl import cpu

    cpu.install()  # before anything of veRL asks for its device
_import_all("estimators")
_import_all("losses")
