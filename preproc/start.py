"""Start the scripts of this folder: `run_command` of this checkout, whether or not the project is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cobalt.stage.entry import run_command

__all__ = ["run_command"]
