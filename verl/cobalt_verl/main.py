"""veRL's driver with this project's trainer: `python -m cobalt_verl.main CONFIG.yaml`, or `- --check` to check only.

The configuration is complete already (`cobalt.training` composed it). Everything else is as in `verl.trainer.main_ppo`.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from cobalt.stage.errors import CobaltError, UserError
from cobalt.training.launch import MISTAKE
from cobalt_verl.cpu import vllm_name
from cobalt_verl.scoring import failures_recorded

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@ray.remote
class TaskRunner:
    """The process that trains; Ray decides on which node."""

    def run(self, config: DictConfig) -> None:
        """Train to the end."""
        import transfer_queue as tq
        from verl.utils.logging_utils import configure_verl_logging

        from cobalt_verl import progress
        from cobalt_verl.agent_loops.worker import AgentLoopManager
        from cobalt_verl.trainers.episodes import EpisodeTrainer
        from cobalt_verl.trainers.sync import CobaltTrainer

        progress.begin("start of the trainer")
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
            agent_loops = AgentLoopManager.create(
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
    """Train by the configuration in the file ("-": stdin), or only let veRL validate it."""
    # The launcher holds the services and the folder, so the driver must not outlive it.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    config = OmegaConf.load(sys.stdin if path == "-" else path)
    OmegaConf.set_struct(config, True)
    auto_set_device(config)
    if check:
        vllm_name.install()  # a configuration for GPUs may be checked where vLLM's build for CPUs is
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    if check:
        check_names(config)
        return
    if python := os.environ.get("COBALT_WORKER_PYTHON"):  # set by the launcher, for as long as its fork server lives
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.py_executable", python, force_add=True)
    app = os.environ.get("COBALT_EVALUATOR")  # set by the launcher on a cluster that has no other judge
    try:
        with judge_on_cluster(config, app) if app else contextlib.nullcontext():
            run_ppo(config, task_runner_class=TaskRunner)
    except CobaltError as error:
        sys.exit(MISTAKE if isinstance(error, UserError) else f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def judge_on_cluster(config: DictConfig, app: str) -> Iterator[None]:
    """The judge as a Ray Serve app on the cluster that `RAY_ADDRESS` names; stopped again unless it was there.

    Raises:
        UserError: the cluster has too few GPUs or CPUs for the run, or a setting of the judge is wrong.
        InfrastructureError: the cluster cannot be joined, or the app did not start.
    """
    from ray import serve

    from cobalt.serving import ray_serve
    from cobalt.training import machine

    with failures_recorded():
        ray_serve.join_or_start()
        living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        machine.check_cluster(living, config, ray_serve.reserved_cpus())
        ours = app not in serve.status().applications
        if ours:
            ray_serve.start_judge(app)
    ray.shutdown()  # veRL joins the cluster with a runtime environment of its own
    try:
        yield
    finally:
        if ours:
            serve.delete(app)


def check_names(config: DictConfig) -> None:
    """Look up the estimator, the loss and the agent loop that the configuration names.

    Raises:
        ValueError: one does not exist.
        Exception: what veRL's import of the agent loop's class raises.
    """
    from hydra.utils import get_class
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    get_adv_estimator_fn(config.algorithm.adv_estimator)
    get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)
    agent = config.actor_rollout_ref.rollout.agent
    targets = {name: entry["_target_"] for name, entry in _agent_loop_registry.items()}
    if agent.agent_loop_config_path:
        targets |= {entry.name: entry["_target_"] for entry in OmegaConf.load(agent.agent_loop_config_path)}
    if agent.default_agent_loop not in targets:
        raise ValueError(f"there is no agent loop {agent.default_agent_loop!r}; there are {', '.join(sorted(targets))}")
    get_class(targets[agent.default_agent_loop])


if __name__ == "__main__":
    main(sys.argv[1], check="--check" in sys.argv[2:])
