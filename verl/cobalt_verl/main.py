"""veRL's driver with this project's trainer: `python -m cobalt_verl.main CONFIG.yaml`, or `- --check` to check only.

The configuration is complete already (`cobalt.training` composed it). Everything else is as in `verl.trainer.main_ppo`.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

import ray
from omegaconf import DictConfig, OmegaConf
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config
from verl.utils.device import auto_set_device

from cobalt.stage.errors import CobaltError, UserError
from cobalt.training.launch import MISTAKE
from cobalt_verl.cpu import vllm_name
from cobalt_verl.scoring import failures_recorded

_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@ray.remote
class TaskRunner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]  # veRL is not typed
    """veRL's process that trains, with this project's trainers and agent loops; Ray decides on which node."""

    def run(self, config: DictConfig) -> None:
        """Train to the end."""
        from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

        from cobalt_verl import progress
        from cobalt_verl.trainers.episodes import EpisodeTrainer
        from cobalt_verl.trainers.sync import CobaltTrainer

        progress.begin("start of the trainer")
        several_turns = OmegaConf.select(config, "cobalt.multi_turn") is not None
        TRAINER_REGISTRY["sync"] = EpisodeTrainer if several_turns else CobaltTrainer
        manager = "cobalt_verl.agent_loops.worker.AgentLoopManager"
        key = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
        OmegaConf.update(config, key, manager, force_add=True)
        super().run(config)


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
        with judge_on_cluster(app) if app else contextlib.nullcontext():
            run_ppo(config, task_runner_class=TaskRunner)
    except CobaltError as error:
        sys.exit(MISTAKE if isinstance(error, UserError) else f"{type(error).__name__}: {error}")


@contextlib.contextmanager
def judge_on_cluster(app: str) -> Iterator[None]:
    """The judge as a Ray Serve app on the cluster that `RAY_ADDRESS` names; stopped again unless it was there.

    Raises:
        UserError: a setting of the judge is wrong.
        InfrastructureError: the cluster cannot be joined, or the app did not start.
    """
    from ray import serve

    from cobalt.serving import nodes, ray_serve

    with failures_recorded():
        nodes.join(namespace="serve")
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
    """Look up the estimator and the loss that the configuration names; ValueError: one does not exist."""
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn

    get_adv_estimator_fn(config.algorithm.adv_estimator)
    get_policy_loss_fn(config.actor_rollout_ref.actor.policy_loss.loss_mode)


if __name__ == "__main__":
    main(sys.argv[1], check="--check" in sys.argv[2:])
