"""Carry out a training run: start Ray, run veRL's driver as a watched child process, clean up, export the policy.

VeRL gets a Ray of its own (`private_ray`), or the cluster that `RAY_ADDRESS` names. Nothing is trained here: veRL does
(`cobalt_verl.main`). Its processes judge programs themselves or ask judges at URLs (`cobalt.judge.opening`); on a
cluster they ask the Ray Serve app `evaluator` (`cobalt_verl.judging`).
"""

import asyncio
import contextlib
import logging
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cobalt.judge.doctor import require_isolation
from cobalt.judge.opening import judge_urls, open_judge
from cobalt.judge.sandbox.isolation import check_paths
from cobalt.judge.settings import JudgeSettings, usable_cores
from cobalt.stage.atomic import locked_folder
from cobalt.stage.cli import terminations_as_interrupts
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.training import checkpoints, machine, run_folder
from cobalt.training.cluster import named_cluster, prepare_to_join
from cobalt.training.configuration import (
    VERL_ADDITIONS,
    TrainingSettings,
    node_environment,
    process_environment,
    trains_on_cpu,
)
from cobalt.training.export import export
from cobalt.training.private_ray import IMPORT_ENVIRONMENT, private_ray
from cobalt.training.watching import watch

logger = logging.getLogger(__name__)

MISTAKE = 2
"""Exit code of veRL's driver where the reason that it leaves (`COBALT_FAILURE_FILE`) is a mistake of the user."""


def dry_run(output_dir: Path, config: Any) -> None:
    """Let veRL itself validate the configuration, in a process of its own; needs no GPU and no Ray.

    Raises:
        UserError: veRL refuses it, with its reason.
    """
    from omegaconf import OmegaConf

    finished = subprocess.run(
        [sys.executable, "-m", "cobalt_verl.main", "-", "--check"],
        input=OmegaConf.to_yaml(config),
        env=os.environ | process_environment(output_dir, on_cpu=trains_on_cpu(config)),
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise UserError(f"veRL refuses the configuration: {last_line(finished.stderr) or 'without a reason'}")


def launch(settings: TrainingSettings, config: Any) -> int:
    """Train, from the last checkpoint of the folder if there is one, and export the policy at the end.

    Args:
        settings: What to train, on what.
        config: The checked configuration that `compose` made of the settings.

    Returns:
        The exit code of veRL's driver.

    Raises:
        UserError: the folder holds another run, another run has a Ray of its own on this machine, programs cannot be
            judged, or the machine or the cluster has too few GPUs or too little shared memory.
        InfrastructureError: the judge failed for good, Ray died, or training hung; the last checkpoint is whole.
    """
    from omegaconf import OmegaConf

    output = settings.output_dir.resolve()
    with terminations_as_interrupts(), locked_folder(output, run_folder.LOCK):
        inputs = [Path(config.data.train_files), Path(config.data.val_files)]
        validates = config.trainer.test_freq > 0
        start = run_folder.prepare(output, _deciding(settings, config), inputs, validates=validates)
        _go_on_from(config, output, start)
        variables = process_environment(output, on_cpu=trains_on_cpu(config)) | _judge_variables(config)
        config.ray_kwargs.ray_init.num_cpus = None  # veRL joins a cluster that is there
        everywhere = node_environment(variables, os.environ)
        OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", everywhere, force_add=True)
        OmegaConf.save(config, output / "config.yaml")
        failure = output / "failure.txt"
        failure.unlink(missing_ok=True)
        logger.info("training in %s, from step %d; the log is %s", output, start.step, output / "train.log")
        with (
            _shared_memory_swept(),
            worker_python(config, variables, output / "train.log") as python,
            _ray(config) as addresses,
        ):
            environment = os.environ | variables | addresses | python
            command = [sys.executable, "-m", "cobalt_verl.main", str(output / "config.yaml")]
            code = watch(command, environment, output, settings.hang_limit)
        if code and failure.exists():
            reason = failure.read_text(encoding="utf-8").strip()
            if code == MISTAKE:
                raise UserError(reason)
            raise InfrastructureError(
                f"training stopped ({reason}); the checkpoint of step {checkpoints.last(output)} is whole: run the"
                " same command to go on"
            )
        if not code and checkpoints.last(output):
            export(output, checkpoints.last(output), output / "model")
        return code


def _deciding(settings: TrainingSettings, config: Any) -> dict[str, Any]:
    """Settings that a continuation must share with its run; length, frequencies and paths may differ."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=True)
    chosen = {name: whole[name] for name in ("actor_rollout_ref", "algorithm", "data", "reward")}
    for name in ("train_files", "val_files"):
        del chosen["data"][name]
    rules = chosen["reward"].pop("custom_reward_function")["reward_kwargs"]
    rules.pop("judge_attempts", None)
    if rules.get("require_thinking") is True:  # named where it differs from what runs without the name had
        del rules["require_thinking"]
    chosen["reward"]["settings"] = rules
    own = {
        name: whole["cobalt"][name]
        for name in ("loss_agg", "multi_turn", "judge_every_turn")
        if name in whole["cobalt"]
    }
    return {"stage": "train", "choices": settings.choices, "model": settings.model} | own | chosen


def _go_on_from(config: Any, output: Path, start: run_folder.Start) -> None:
    if not start.step:
        config.trainer.resume_mode = "disable"
        return
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(checkpoints.path_of(output, start.step))
    config.trainer.val_before_train = not start.reported  # mostly that step was validated when it was made


@contextlib.contextmanager
def worker_python(config: Any, variables: Mapping[str, str], log: Path) -> Iterator[dict[str, str]]:
    """Let Ray start its workers as forks of a process that imports veRL once; yields the variable that says so.

    Nothing on a cluster, whose nodes have no such process, and with GPUs. The process has the environment of veRL's
    processes (`variables`), and writes into the log.
    """
    if named_cluster() or not trains_on_cpu(config):
        yield {}
        return
    with contextlib.ExitStack() as stack:
        # The name of a socket must be short: /tmp, not the user's TMPDIR.
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="cobalt-forks-", dir="/tmp", ignore_cleanup_errors=True)
        )
        # vLLM reads its level when it is imported; veRL sets this one for its processes.
        imports = {**variables, **IMPORT_ENVIRONMENT, "VLLM_LOGGING_LEVEL": "WARN"}
        with environment_variables(**imports), log.open("ab") as output:
            server = subprocess.Popen(
                [sys.executable, "-m", "cobalt_verl.cpu.fork_server", folder, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        stack.callback(server.wait)
        stack.callback(server.kill)
        client = VERL_ADDITIONS / "cpu" / "fork_client.py"
        yield {"COBALT_WORKER_PYTHON": shlex.join([sys.executable, "-I", "-S", str(client), f"{folder}/socket"])}


@contextlib.contextmanager
def _ray(config: Any) -> Iterator[dict[str, str]]:
    """The Ray of the run: the user's cluster or a private one; yields the variables that lead to it."""
    if named_cluster():
        prepare_to_join(named_cluster())  # which sets variables of this process
        yield {}
        return
    if not trains_on_cpu(config):
        machine.check_gpus(config)
    machine.check_shared_memory(config)
    with (
        machine.alone(),
        private_ray(
            num_cpus=machine.logical_cpus(config),
            num_gpus=machine.gpus_of(config) if trains_on_cpu(config) else None,
            object_store_memory=machine.object_store_bytes(config),
        ) as address,
    ):
        yield address


def _judge_variables(config: Any) -> dict[str, str]:
    """Check that programs can be judged, and share the cores out over the processes that judge.

    Nothing is checked on a cluster, where each replica of the judge checks its node.

    Raises:
        UserError: a setting of the judge is wrong, or programs cannot be isolated on this machine.
        ServiceDown: no judge answers at the URLs that the environment names.
    """
    if judge_urls():
        asyncio.run(_describe_judge())
        return {}
    if named_cluster():
        return {"COBALT_EVALUATOR": "evaluator"}
    settings = JudgeSettings.from_environment()
    check_paths(settings)
    asyncio.run(require_isolation(settings))
    if settings.concurrency is not None:
        return {}
    several_turns = config.cobalt.get("multi_turn") is not None
    workers = int(config.actor_rollout_ref.rollout.agent.num_workers)
    judging = workers if several_turns else int(config.reward.num_workers) or workers
    return {"COBALT_JUDGE_CONCURRENCY": str(max(1, usable_cores() // judging))}


async def _describe_judge() -> None:
    async with open_judge() as judge:
        await judge.describe()


@contextlib.contextmanager
def _shared_memory_swept() -> Iterator[None]:
    """Remove what vLLM leaves in shared memory: this user's blocks, new since the start, mapped by no process."""
    before = set(machine.SHARED_MEMORY.glob("psm_*"))
    try:
        yield
    finally:
        mapped = _mapped_blocks()
        for block in set(machine.SHARED_MEMORY.glob("psm_*")) - before:
            with contextlib.suppress(FileNotFoundError):
                if str(block) not in mapped and block.stat().st_uid == os.getuid():
                    block.unlink()


def _mapped_blocks() -> set[str]:
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found.update(re.findall(r"/dev/shm/psm_\w+", maps.read_text(encoding="utf-8", errors="replace")))
    return found
