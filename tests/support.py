"""Functions that several test modules share; no tests."""

import contextlib
import copy
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

import cobalt.report.write
from cobalt.engine import Completion
from cobalt.episode.record import decode_trajectories
from cobalt.episode.trajectory import ProblemTrajectories
from cobalt.judge.verdict import ExecResult, Verdict, VerdictKind
from cobalt.problems.problem import Problem
from cobalt.report.runs import read_run
from cobalt.stage.errors import UserError

ROOT = Path(__file__).parent.parent

# Found and not imported: at import LiteLLM asks the network for prices, which only the project's own module stops.
needs_api = pytest.mark.skipif(
    importlib.util.find_spec("litellm") is None, reason="the api extra is not installed (scripts/setup.sh --with api)"
)


@contextlib.contextmanager
def locked_folder(tmp_path_factory, name):
    """A folder that all workers of pytest-xdist share; each has it to itself within the context.

    Whoever comes first makes something expensive in it, and the others find that.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def square_problem(identifier, **fields):
    """A problem in the TACO-Cobalt schema: print the square of a number."""

    def suite(*numbers):
        return json.dumps({"inputs": [f"{i}\n" for i in numbers], "outputs": [f"{i * i}\n" for i in numbers]})

    return {
        "id": identifier,
        "difficulty": "EASY",
        "question": "Print the square of a number.",
        "test_cases": suite(2, 3, 4, 5),
        "public_test_cases": suite(2, 3),
        "hidden_test_cases": suite(4, 5),
    } | fields


def executable(path, text):
    """Write a shell script that can be run, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def scripts_alone(folder):
    """Copy the scripts into a folder; Python and the set-up note their arguments in its `log`."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "scripts" / "setup.sh").write_text('echo setup "$@" >>log\n')
    executable(folder / ".venv" / "bin" / "python", 'echo "$@" >>log')
    return folder


def trajectories_of(record):
    """The problem and trajectories of a record."""
    problem = Problem.parse(record)
    return ProblemTrajectories(problem, decode_trajectories(problem, record))


def write_lines(path, records):
    """Write records as JSONL and return the path."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def trajectory_record(identifier, samples, **fields):
    """An evaluated record of `square_problem`, as eval_multi_turn.py leaves it.

    `samples` is [sample][turn] of (public tests passed, hidden tests passed), each of two.
    """
    turns = len(samples[0])

    def conversation(sample):
        messages = [{"role": "system", "content": "system"}, {"role": "user", "content": f"problem {identifier}"}]
        for turn in range(turns):
            messages.append({"role": "assistant", "content": f"answer {sample}.{turn}"})
            messages.append({"role": "user", "content": f"feedback {turn}"})
        return messages

    return (
        square_problem(
            identifier,
            conversations=[conversation(sample) for sample in range(len(samples))],
            raw_responses=[[f"response {sample}.{turn}" for sample in range(len(samples))] for turn in range(turns)],
            public_pass_rates=[[sample[turn][0] / 2 for sample in samples] for turn in range(turns)],
            finish_reasons=[["stop"] * len(samples)] * turns,
            all_pass_rates=[[hidden / 2 for _, hidden in sample] for sample in samples],
            hidden_verdicts=[
                [["passed"] * hidden + ["wrong_answer"] * (2 - hidden) for _, hidden in sample] for sample in samples
            ],
        )
        | fields
    )


def write_report(runs, folder, **options):
    """`cobalt.report.write.write_report` of runs that are read from paths by name."""
    read = [read_run(name, path) for name, path in runs.items()]
    return cobalt.report.write.write_report(read, folder, **options)


def alive(pid):
    """Whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid):
    """Ids of the processes below a process; none where it has ended."""
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def result_of(*passing):
    """The result of a program by the tests that it passes."""
    kinds = [VerdictKind.PASSED if passed else VerdictKind.WRONG_ANSWER for passed in passing]
    feedback = ["" if passed else f"test {index} fails" for index, passed in enumerate(passing)]
    return ExecResult([*map(bool, passing)], feedback, [*map(Verdict, kinds)])


class FakeJudge:
    """A judge that runs nothing, and remembers what it was asked.

    `passing` says for each program, or of (program, suite), whether its tests pass: one value for all tests, or a list.
    An exception is raised. None: no program may be judged.
    """

    def __init__(self, passing=False):
        self.passing, self.asked = passing, []

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        assert self.passing is not None, "nothing is to be judged here"
        self.asked.append((code, suite))
        passing = self.passing(code, suite) if callable(self.passing) else self.passing
        if isinstance(passing, Exception):
            raise passing
        result = result_of(*(passing if isinstance(passing, list) else [passing] * len(suite)))
        end = result.passing.index(False) + 1 if stop_at_first_failure and not result.all_passed else len(suite)
        rest = len(suite) - end
        result.passing[end:], result.verdicts[end:] = [False] * rest, [Verdict(VerdictKind.NOT_RUN)] * rest
        return result

    async def describe(self):
        return {}


class FakeEngine:
    """An engine that answers with a text, or what it says to a call, and remembers (conversation, settings, call).

    A list has one text for each sample. An exception is raised. `about` is its description.
    """

    def __init__(self, text, **about):
        self.text, self.about, self.asked = text, about, []

    async def generate(self, conversation, settings, call):
        self.asked.append(([dict(message) for message in conversation], settings, call))
        text = self.text(call) if callable(self.text) else self.text
        if isinstance(text, Exception):
            raise text
        texts = text if isinstance(text, list) else [text] * settings.n
        return [Completion(text=text, finish_reason="stop") for text in texts]

    async def describe(self):
        return self.about


@functools.cache
def _composed(settings):
    from cobalt.training.configuration import compose

    return compose(settings)


def composed(data_dir, model, output, /, *overrides, **choices):
    """The configuration of a training run, composed once for all tests that ask for the same; a copy of its own."""
    from cobalt.training.configuration import TrainingSettings

    settings = TrainingSettings(Path(data_dir), str(model), Path(output), overrides=overrides, **choices)
    return copy.deepcopy(_composed(settings))


def changed(config, *overrides):
    """A copy of a configuration with overrides, not composed again: what else follows from them stays as it was."""
    from omegaconf import OmegaConf

    config = copy.deepcopy(config)
    for override in overrides:
        key, _, value = override.removeprefix("+").partition("=")
        OmegaConf.update(config, key, yaml.safe_load(value), force_add=override.startswith("+"))
    return config


def run_ranks(script, count, folder, *words):
    """Run one of the tests' scripts by ranks of torch, on a CPU; `words` come before CONFIG.yaml and FOLDER."""
    from cobalt.training.configuration import process_environment

    environment = os.environ | process_environment(folder / "run", on_cpu=True)
    environment["PYTHONPATH"] = f"{ROOT / 'tests'}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    if count == 1:  # a single rank needs no launcher, and its port is any free one
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
        launcher, environment = [], environment | alone
    return subprocess.run(
        [sys.executable, *launcher, ROOT / "tests" / script, *words, folder / "config.yaml", folder],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


def refused_training(config):
    """Objections of the checks before a training run to a configuration, or a function that composes it."""
    from cobalt.training.checks import check

    try:
        check(config() if callable(config) else config)
    except UserError as error:
        return str(error).split("; ")
    return []
