"""One rank of offline training: `torchrun -m cobalt_verl.offline_main CONFIG.yaml STEP`.

The configuration is complete already (`cobalt.training.offline` composed it); STEP is the checkpoint to go on from.
"""

import ctypes
import signal
import sys

from omegaconf import OmegaConf
from verl.utils.distributed import destroy_global_process_group, initialize_global_process_group

from cobalt_verl.trainers.offline import OfflineTrainer

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


def main(path: str, step: int) -> None:
    """Train by the configuration in the file, from a step on."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    config = OmegaConf.load(path)
    OmegaConf.set_struct(config, True)
    initialize_global_process_group()
    try:
        OfflineTrainer(config).fit(step)
    finally:
        destroy_global_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
