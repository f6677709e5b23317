"""veRL on a machine without a GPU: a platform named "cpu", and what veRL's own code needs beside it.

veRL imports this module in every process (`VERL_USE_EXTERNAL_MODULES=cobalt_verl_cpu`), and takes the platform by
`VERL_PLATFORM=cpu`. The folder is on PYTHONPATH only for a CPU profile (`cobalt.training`).
"""

from cobalt_verl_cpu import patches, platform

__all__ = ["patches", "platform"]

patches.apply()
