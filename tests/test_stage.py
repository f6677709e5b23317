"""Behaviour of every stage at kills, full disks, signals and failures, on tiny ones; and the form of all settings."""

import ast
import asyncio
import errno
import functools
import inspect
import multiprocessing
import os
import pkgutil
import re
import resource
import signal
import subprocess
import sys
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import pytest
from pydantic.dataclasses import dataclass, is_pydantic_dataclass
from support import ROOT, write_lines

from cobalt.commands.registry import COMMANDS
from cobalt.stage.atomic import replacing
from cobalt.stage.cli import run_script
from cobalt.stage.errors import INTERRUPTED, InfrastructureError, ServiceDown, UserError
from cobalt.stage.manifest import manifest_path, recorded_arguments
from cobalt.stage.records import RecordFile, encode_record, read_records
from cobalt.stage.retrying import retrying
from cobalt.stage.run import WRITTEN, Each, Input, Outcome, Output, errors_path, stage, whole
from cobalt.stage.service_flags import JudgeFlags
from cobalt.stage.workers import work_on_all

NUMBERS = range(6)
HAPPENS = {}
"""Event at a number, in the process of a stage: a function; if it returns True, the stage hangs after it."""


@dataclass(frozen=True)
class TinySettings:
    input_file: Input
    output_file: Output
    offset: int = 0
    negative: bool = False

    def arguments(self):
        return {"stage": "tiny", "offset": self.offset, **({"negative": True} if self.negative else {})}


def square(number, offset=0):
    return {"id": number, "square": number**2 + offset, "text": "x" * 1500}  # so that it is larger than its manifest


WHOLE = b"".join(encode_record(square(number)) for number in NUMBERS)


@stage
async def one_by_one(settings: TinySettings) -> Outcome:
    async def work(number):
        if HAPPENS.get(number, bool)():
            await asyncio.Event().wait()
        return square(number, settings.offset)

    with Each(settings.output_file, settings.arguments(), [settings.input_file]) as result:
        failed = await result.make(NUMBERS, int, work, concurrency=1)
    return Outcome(failed=failed)


def made(replaces):
    @stage
    def in_one_piece(settings: TinySettings) -> Outcome:
        with whole(settings.output_file, settings.arguments(), [settings.input_file], replaces=replaces) as result:
            for number in NUMBERS:
                HAPPENS.get(number, bool)()
                result.write([square(number, settings.offset)])
        return Outcome()

    return in_one_piece


in_one_piece, replacing_its_own = made(False), made(True)
every_kind = pytest.mark.parametrize("kind", [one_by_one, in_one_piece, replacing_its_own])


class Run:
    """A folder in which commands of a tiny stage run; `said` is what the last one wrote on its standard error."""

    def __init__(self, folder, kind):
        self.kind, self.folder, self.said = kind, folder, ""
        self.source, self.result = folder / "numbers.jsonl", folder / "result.jsonl"
        write_lines(self.source, [{"id": number} for number in NUMBERS])

    def __call__(self, *flags, happens=None, prepare=bool):
        """Run the command in a process of its own: its exit code, below zero if a signal ended it."""

        def child():
            HAPPENS.update(happens or {})
            os.environ["PATH"] = ""  # without git, which takes most of the time
            prepare()
            with (self.folder / "said").open("w") as sys.stderr, Path(os.devnull).open("w") as sys.stdout:
                run_script(TinySettings, self.kind, ["-i", str(self.source), "-o", str(self.result), *flags])

        (process := multiprocessing.get_context("fork").Process(target=child)).start()
        process.join(60)
        self.said = (self.folder / "said").read_text()
        assert "Traceback" not in self.said
        return process.exitcode

    def left(self):
        """Files in the folder besides the input."""
        return {path.name: path.read_bytes() for path in self.folder.glob("result*")}

    def ids(self):
        return [record["id"] for record in read_records(self.result)] if self.result.exists() else []

    def completes(self):
        """Whether the command, run again, leaves the whole result, its manifest and nothing else."""
        assert self() == 0, self.said
        return self.result.read_bytes() == WHOLE and self.left().keys() == {"result.jsonl", "result.run.json"}


@pytest.fixture
def run(tmp_path, kind):
    return Run(tmp_path, kind)


def kill_before_change(number):
    """Kill this process before its n-th change of files: an open for writing, a rename, a removal or a sync."""
    left, sync = iter(range(number)), os.fsync

    def see(event, arguments):
        writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not writes and event not in ("os.rename", "os.remove", "os.fsync"):
            return
        if Path(str(arguments[0])).name.startswith("result") and next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = lambda descriptor: (see("os.fsync", ["result"]), sync(descriptor))
    sys.addaudithook(see)


@every_kind
@pytest.mark.slow
def test_killed_before_any_change_of_the_disk_and_run_again_it_leaves_the_same_bytes(run):
    for number in range(100):
        for name in run.left():
            (run.folder / name).unlink()
        if (code := run(prepare=functools.partial(kill_before_change, number))) == 0:
            break
        assert code == -signal.SIGKILL, run.said
        assert run.kind is one_by_one or len(run.ids()) in (0, len(NUMBERS))
        assert run.completes(), number
    assert number > (len(NUMBERS) if run.kind is one_by_one else 5)


@pytest.mark.parametrize("kind", [one_by_one, in_one_piece])
@pytest.mark.parametrize("size", [4000, len(WHOLE)])
@pytest.mark.slow
def test_a_result_of_other_settings_or_data_is_refused_and_stays(run, size):
    assert run("--negative") == 0
    run.result.write_bytes(WHOLE[:size])
    left = run.left()
    assert run("--negative", "--offset", "1") == 2
    assert "offset" in run.said
    if run.kind is in_one_piece or size < len(WHOLE):  # services of a finished result may be unknown, and not compared
        assert run() == 2
        assert "negative" in run.said  # which the manifest has only where it is set
    write_lines(run.source, [{"id": number} for number in range(7)])
    assert run("--negative") == 2
    assert run.source.name in run.said
    assert run.left() == left


@pytest.mark.parametrize("kind", [replacing_its_own])
def test_a_result_that_replaces_its_own_replaces_no_other(run):
    assert run() == run("--offset", "1") == 0
    assert recorded_arguments(run.result)["offset"] == 1
    write_lines(manifest_path(run.result), [{"arguments": {"stage": "another"}}])
    before = run.left()
    assert run() == 2
    assert run.left() == before


@every_kind
@pytest.mark.slow
def test_a_full_disk_is_one_sentence_and_what_was_finished_stays(run):
    most = len(WHOLE) - 500
    fill = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (most, most))
    assert run(prepare=fill) == 2
    assert str(run.result) in run.said
    assert "result.jsonl.part" not in run.left()
    assert run.ids() == ([0, 1, 2, 3, 4] if run.kind is one_by_one else [])
    assert run.completes()
    assert run.kind is one_by_one or run(prepare=fill) == 2
    assert run.result.read_bytes() == WHOLE


def ignore_interrupts():
    """As a shell does for the jobs that a script starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@every_kind
@pytest.mark.parametrize(
    ("number", "before"), [(signal.SIGINT, bool), (signal.SIGTERM, bool), (signal.SIGTERM, ignore_interrupts)]
)
def test_an_interrupt_ends_with_130_and_what_was_finished_stays(run, number, before):
    assert run(happens={3: lambda: os.kill(os.getpid(), number) is None}, prepare=before) == 130, run.said
    assert run.said.splitlines()[-1:] == INTERRUPTED.splitlines()
    assert run.ids() == ([0, 1, 2] if run.kind is one_by_one else [])
    assert "result.jsonl.part" not in run.left()
    assert run.completes()


@pytest.mark.parametrize("kind", [one_by_one])
def test_an_item_on_which_a_part_of_the_system_fails_is_listed_and_retried(run):
    def fail():
        raise InfrastructureError("a replica died")

    assert run(happens={2: fail}) == 1
    assert run.ids() == [0, 1, 3, 4, 5]
    assert [failure["id"] for failure in read_records(errors_path(run.result))] == [2]
    assert run.completes()


@every_kind
def test_a_result_that_another_process_writes_is_refused(run):
    for _ in range(2):  # none, and a finished one
        with RecordFile(run.result) if run.kind is one_by_one else replacing(run.result):
            before = run.left()
            assert run() == 2
            assert str(run.result) in run.said
            assert run.left() == before
        assert run.completes()


async def test_items_are_worked_on_once_a_bounded_number_at_a_time_and_taken_when_a_worker_is_free():
    done, taken, most, all_work = [], [], [], asyncio.Barrier(4)

    async def work(item):
        most.append(len(taken) - len(done))
        await all_work.wait()
        done.append(item)

    await work_on_all((taken.append(item) or item for item in range(48)), work, 4)
    assert sorted(done) == list(range(48)) and max(most) == 4


@pytest.mark.parametrize("errors", [[UserError("x")], [ServiceDown("x")], [KeyError("x")], [ServiceDown(), KeyError()]])
async def test_the_first_error_ends_the_others_and_is_raised_as_it_is_but_a_bug_goes_first(errors):
    ended, all_work = [], asyncio.Barrier(3)

    async def work(item):
        await all_work.wait()
        if item < len(errors):
            raise errors[item]
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(item)

    with pytest.raises(type(errors[-1])) as raised:
        await work_on_all(range(3), work, 3)
    assert raised.value is errors[-1] and sorted(ended) == [*range(len(errors), 3)]


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENAMETOOLONG, errno.EROFS, errno.EBADF])
def test_a_file_that_the_system_refuses_is_one_sentence_with_its_name_and_other_errors_are_bugs(capsys, number):
    def refused(settings):
        raise OSError(number, "no", "the/file")

    with pytest.raises(OSError if number == errno.EBADF else SystemExit) as ended:
        run_script(JudgeFlags, refused, [])
    if number != errno.EBADF:
        assert ended.value.code == 2 and "the/file" in capsys.readouterr().err


def test_an_output_on_a_full_disk_is_one_sentence():
    code = "import cobalt.stage.cli as c, cobalt.stage.service_flags as f\n"
    code += "c.run_script(f.JudgeFlags, lambda _: print('x' * 10**5, flush=True), [])"
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=full, stderr=-1, text=True, timeout=60)
    assert finished.returncode == 2
    assert "output" in finished.stderr and "Traceback" not in finished.stderr


SCRIPTS = "".join(path.read_text() for path in [*ROOT.glob("*.py"), *ROOT.glob("preproc/*.py")])
MODULES = {module for command in COMMANDS.values() for module in (command.module, command.api_module)}
REGISTERED = sorted(name for name in {*re.findall(r'run_command\("(.+?)"', SCRIPTS), *MODULES} if ":" in name)


@pytest.mark.parametrize("name", REGISTERED)
def test_the_settings_of_a_stage_are_its_described_flags_and_name_what_it_writes(name):
    assert {"cobalt.hacking.perturbation:perturb", "cobalt.datasets.split_tests:split"} < set(REGISTERED)
    kind = next(iter(get_type_hints(pkgutil.resolve_name(name)).values()))
    assert is_pydantic_dataclass(kind)
    lines = [line for one in kind.__mro__[:-1] for line in ast.parse(inspect.getsource(one)).body[0].body]
    flags = [(line, text) for line, text in pairwise(lines) if isinstance(line, ast.AnnAssign)]
    described = {line.target.id for line, text in flags if isinstance(text, ast.Expr)}
    hints = get_type_hints(kind, include_extras=True)
    marked = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    described |= {name for name, marks in marked.items() if any(getattr(mark, "help", None) for mark in marks)}
    assert {field.name for field in fields(kind)} == described
    marks = [mark for of_field in marked.values() for mark in of_field]
    assert WRITTEN in marks or isinstance(getattr(kind, "results", None), property)


@pytest.mark.parametrize(
    ("error", "calls"), [(InfrastructureError("x"), 3), (ServiceDown("x"), 1), (UserError("x"), 1), (TypeError("x"), 1)]
)
async def test_only_failures_of_a_part_of_the_system_are_tried_again(error, calls):
    made = []

    async def call():
        made.append(error)
        raise error

    with pytest.raises(type(error)):
        await retrying(3, first_pause=0, longest_pause=0)(call)
    assert len(made) == calls
