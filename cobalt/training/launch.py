"""Carry out a training run: a trainer's processes as a watched child process, in the run's folder; export the policy.

Online, veRL's driver (`cobalt_verl.main`) gets a Ray of its own, or the cluster that `RAY_ADDRESS` names. Its processes
judge programs themselves or ask judges at URLs; on a cluster they ask the Ray Serve app `evaluator`.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.judge.doctor import require_isolation
from cobalt.judge.opening import judge_urls, open_judge
from cobalt.judge.settings import JudgeSettings, usable_cores
from cobalt.stage.atomic import locked_folder
from cobalt.stage.environment import environment_variables
from cobalt.stage.errors import InfrastructureError, UserError, last_line
from cobalt.training import configuration, machine, run_folder
from cobalt.training.cluster import named_cluster, prepare_to_join
from cobalt.training.configuration import RunSettings, TrainingSettings
from cobalt.training.export import export
from cobalt.training.machine import trains_on_cpu
from cobalt.training.memory import check_memory
from cobalt.training.private_ray import IMPORT_ENVIRONMENT, private_ray
from cobalt.training.watching import watch

logger = logging.getLogger(__name__)

MISTAKE = 2
"""Exit code of veRL's driver where the reason that it leaves (`COBALT_FAILURE_FILE`) is a mistake of the user."""

Plan = tuple[int, Sequence[str]]
"""The steps of a whole run, and sentences for the user."""

Trainer = Callable[[Path, run_folder.Start], contextlib.AbstractContextManager[tuple[list[str], Mapping[str, str]]]]
"""Of a run's folder and start: the trainer's module with its arguments, and its environment variables, once the
configuration is in the folder's `config.yaml`."""


def run_trainer(settings: RunSettings, config: Any, plan: Plan, deciding: Mapping[str, Any], trainer: Trainer) -> int:
    """Show what a run will do and need; then train, from the folder's last checkpoint if there is one, and export.

    The flags may ask for the plan alone. `deciding` is what a continuation must share with its run. Returns the exit
    code of the trainer. Raises UserError where memory or disk are far too small, the folder holds another run, or the
    trainer was refused something, and InfrastructureError where it has left another reason, or hung.
    """
    from omegaconf import OmegaConf

    steps, notes = plan
    if settings.print_config:
        sys.stdout.write(OmegaConf.to_yaml(config, resolve=True))
        sys.stdout.flush()
    for note in notes:
        logger.info("%s", note)
    check_memory(config, settings.output_dir, steps, force=settings.force)
    if settings.dry_run or settings.print_config:
        logger.info("OK: the dry run found nothing wrong; --print_config prints the whole configuration")
        return 0
    output = settings.output_dir.resolve()
    failure = output / "failure.txt"
    with locked_folder(output, run_folder.LOCK):
        inputs = [Path(config.data[name]) for name in ("train_files", "val_files") if config.data[name]]
        validates = "actor_rollout_ref" in config and config.trainer.test_freq > 0
        start = run_folder.prepare(output, deciding, inputs, validates=validates)
        failure.unlink(missing_ok=True)
        logger.info("training in %s, from step %d; the log is %s", output, start.step, output / "train.log")
        logger.info("to watch it: cobalt watch %s", shlex.quote(str(output)))
        with trainer(output, start) as (program, variables):
            command = [sys.executable, "-m", *program]
            code = watch(command, os.environ | dict(variables), output, settings.hang_limit)
        last = run_folder.last(output)
        if code and failure.exists():
            reason = failure.read_text(encoding="utf-8").strip()
            if code == MISTAKE:
                raise UserError(reason)
            raise InfrastructureError(
                f"training stopped ({reason}); the checkpoint of step {last} is whole: run the same command to go on"
            )
        if not code and last:
            export(output, last, output / "model")
            logger.info("next: evaluate the policy of step %d: cobalt serve --model %s", last, output / "model")
        return code


def dry_run(output_dir: Path, config: Any) -> None:
    """Let veRL itself validate the configuration, which needs no GPU and no Ray; UserError where it refuses it."""
    from omegaconf import OmegaConf

    command = [sys.executable, "-m", "cobalt_verl.main", "-", "--check"]
    variables = os.environ | configuration.process_environment(output_dir, on_cpu=trains_on_cpu(config))
    text = OmegaConf.to_yaml(config)
    finished = subprocess.run(command, input=text, env=variables, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise UserError(f"veRL refuses the configuration: {last_line(finished.stderr) or 'without a reason'}")


def deciding(settings: TrainingSettings, config: Any) -> dict[str, Any]:
    """Settings that a continuation must share with its run; length, frequencies and paths may differ."""
    from omegaconf import OmegaConf

    whole: Any = OmegaConf.to_container(config, resolve=True)
    chosen = {name: whole[name] for name in ("actor_rollout_ref", "algorithm", "data", "reward")}
    del chosen["data"]["train_files"], chosen["data"]["val_files"]
    rules = chosen["reward"].pop("custom_reward_function")["reward_kwargs"]
    rules.pop("judge_attempts", None)
    if rules.get("require_thinking") is True:  # runs of earlier versions do not name it, and mean this
        del rules["require_thinking"]
    chosen["reward"]["settings"] = {"spare_tables": False} | rules  # runs of earlier versions name this one
    names = ("loss_agg", "multi_turn", "judge_every_turn")
    own = {name: value for name, value in whole["cobalt"].items() if name in names}
    return {"stage": "train", "choices": settings.choices, "model": settings.model} | own | chosen


@contextlib.contextmanager
def verl_driver(config: Any, output: Path, start: run_folder.Start) -> Iterator[tuple[list[str], dict[str, str]]]:
    """VeRL's driver with the Ray that it joins, as a `Trainer`; UserError where Ray, GPUs or a judge cannot be had."""
    from omegaconf import OmegaConf

    config.trainer.resume_mode = "resume_path" if start.step else "disable"
    if start.step:
        config.trainer.resume_from_path = str(run_folder.checkpoint(output, start.step))
        config.trainer.val_before_train = not start.reported  # mostly that step was validated when it was made
    variables = configuration.process_environment(output, on_cpu=trains_on_cpu(config))
    variables |= asyncio.run(_judge_variables(config))
    config.ray_kwargs.ray_init.num_cpus = None  # veRL joins a cluster that is there
    everywhere = configuration.node_environment(variables, os.environ)
    OmegaConf.update(config, "ray_kwargs.ray_init.runtime_env.env_vars", everywhere, force_add=True)
    OmegaConf.save(config, output / "config.yaml")
    with worker_python(config, variables, output / "train.log") as python, ray_of_run(config) as ray:
        yield ["cobalt_verl.main", str(output / "config.yaml")], variables | ray | python


@contextlib.contextmanager
def worker_python(config: Any, variables: Mapping[str, str], log: Path) -> Iterator[dict[str, str]]:
    """Let Ray start its workers as forks of a process that imports veRL once; yields the variable that says so.

    Nothing on a cluster, whose nodes have no such process, and with GPUs.
    """
    if named_cluster() or not trains_on_cpu(config):
        yield {}
        return
    # The name of a socket must be short: /tmp, not the user's TMPDIR.
    with tempfile.TemporaryDirectory(prefix="cobalt-forks-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        # vLLM reads its level when it is imported; veRL sets this one for its processes.
        imports = {**variables, **IMPORT_ENVIRONMENT, "VLLM_LOGGING_LEVEL": "WARN"}
        command = [sys.executable, "-m", "cobalt_verl.cpu.fork_server", folder, str(os.getpid())]
        with environment_variables(**imports), log.open("ab") as out:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, process_group=0)
        client = configuration.VERL_ADDITIONS / "cpu" / "fork_client.py"
        try:
            yield {"COBALT_WORKER_PYTHON": shlex.join([sys.executable, "-I", "-S", str(client), f"{folder}/socket"])}
        finally:
            server.kill()
            server.wait()


@contextlib.contextmanager
def ray_of_run(config: Any) -> Iterator[dict[str, str]]:
    """The Ray of the run: the user's cluster or a private one; yields the variables that lead to it."""
    if named_cluster():
        prepare_to_join(named_cluster())  # which sets variables of this process
        yield {}
        return
    gpus, on_cpu = config.trainer.n_gpus_per_node * config.trainer.nnodes, trains_on_cpu(config)
    if not on_cpu and (seen := len(machine.visible_gpus())) < gpus:
        # Without any GPU veRL's queue would stop the run, and advise to let it do without.
        raise UserError(f"the run asks for {gpus} GPUs, and torch sees {seen} here: set trainer.n_gpus_per_node")
    size = machine.object_store_bytes(config)
    # Ray binds nothing to a core, and waits for ever if it counts fewer than are reserved: by veRL three for each GPU,
    # by TransferQueue one for each unit and one more; one stays free.
    units = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    cpus = max(16, os.cpu_count() or 1, 3 * gpus + units + 2)
    with (
        machine.alone(),
        private_ray(num_cpus=cpus, num_gpus=gpus if on_cpu else None, object_store_memory=size) as address,
    ):
        yield address


async def _judge_variables(config: Any) -> dict[str, str]:
    """Check that programs can be judged, and share the cores out over the processes that judge.

    Nothing is checked on a cluster, where each replica of the judge checks its node.
    """
    if judge_urls():
        async with open_judge() as judge:
            await judge.describe()
        return {}
    if named_cluster():
        return {"COBALT_EVALUATOR": "evaluator"}
    settings = JudgeSettings.read()
    await require_isolation(settings)
    if settings.concurrency is not None:
        return {}
    workers, rewards = config.actor_rollout_ref.rollout.agent.num_workers, config.reward.num_workers
    judging = rewards if rewards and not config.cobalt.get("multi_turn") else workers
    return {"COBALT_JUDGE_CONCURRENCY": str(max(1, usable_cores() // int(judging)))}
