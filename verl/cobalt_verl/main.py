"""veRL's driver with this project's trainer: `python -m cobalt_verl.main CONFIG.yaml`, or `- --check` to check only.

The configuration is whole already (`cobalt.training` composed it). Otherwise as `verl.trainer.main_ppo`.
"""

import ctypes
import signal
import sys
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@ray.remote
class TaskRunner:
    """The process that trains; Ray puts it where it wants."""

    def run(self, config: DictConfig) -> None:
        """Train to the end."""
        import transfer_queue as tq
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.logging_utils import configure_verl_logging

        from cobalt_verl.trainers.episodes import EpisodeTrainer
        from cobalt_verl.trainers.sync import CobaltTrainer

        configure_verl_logging()
        config.transfer_queue.enable = True
        OmegaConf.resolve(config)
        tq.init(config.transfer_queue)
        trainer: Any = None
        succeeded = False
        try:
            several_turns = OmegaConf.select(config, "cobalt.multi_turn") is not None
            trainer = (EpisodeTrainer if several_turns else CobaltTrainer)(config=config)
            trainer.init()
            agent_loops = AgentLoopManagerTQ.create(
                config=config,
                llm_client=trainer.get_llm_client(),
                teacher_client=trainer.get_teacher_client(),
                reward_loop_worker_handles=trainer.get_reward_handles(),
            )
            trainer.fit(agent_loops)
            succeeded = True
        finally:
            try:
                tracking = getattr(trainer, "logger", None)
                if tracking is not None:
                    tracking.finish(exit_code=0 if succeeded else 1)
            finally:
                tq.close()


def main(path: str, *, check: bool) -> None:
    """Train by the configuration in the file ("-": stdin), or only let veRL look at it."""
    # The launcher holds the services and the folder: killed, it takes the driver with it.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    config = OmegaConf.load(sys.stdin if path == "-" else path)
    OmegaConf.set_struct(config, True)
    auto_set_device(config)
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    if not check:
        run_ppo(config, task_runner_class=TaskRunner)


if __name__ == "__main__":
    main(sys.argv[1], check="--check" in sys.argv[2:])
