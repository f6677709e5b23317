"""The fault matrix: each part of a run is killed, starved or misled, and the run must lose nothing and continue.

    python tests/long/faults.py                                   # every row, one after another
    python tests/long/faults.py --rows replica,proxy -o table.md
    python tests/long/faults.py --quick                           # rows that take seconds

A row is one fault. Its load is a rollout of recorded responses with known verdicts, so that every wrong verdict is
noticed. Every row checks that no verdict is wrong, that the records on the disk at the time of the fault are still
there afterwards, that the same command completes the run, and that no process is left. It measures the time until the
run continued. Finished rows are in OUTPUT_DIR/rows.jsonl and are not run again; the output of each row's commands is in
a folder next to it. The exit code is 1 if an invariant did not hold. Everything runs on loopback, in processes of this
script's own; disks are filled only in mount namespaces of its own.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro
from watched import (
    ROOT,
    Broken,
    Process,
    adopt_orphans,
    below,
    check_flags,
    end,
    family,
    held_services,
    last_words,
    named,
    start,
    wait_until,
)

from cobalt.episode.record import decode_responses, decode_results, decode_trajectories
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.app_process import AppProcess
from cobalt.stage.cli import run_script, terminations_as_interrupts
from cobalt.stage.errors import UserError
from cobalt.stage.records import RecordFile, read_records

JUDGE = {"cpu_seconds": "2", "concurrency": "2", "num_replicas": "1"}
PROBLEMS = 24
EARLY = 4
"""Number of records on the disk when a fault occurs."""
KILLS = 4
"""Number of times that a part of a sandbox is killed in its row."""
STARTS = 15
"""Number of times that a judge that starts is ended in its row."""
LONGEST_CLOSE = 10.0
"""Seconds that a judge may take to end while it starts."""
LONGEST_RUN = 240.0
"""Seconds that a command may take, with any outcome."""
LONGEST_RESPONSE = 150.0
"""Seconds after a fault until a run must have continued, or ended."""
LONGEST_END = 90.0
"""Seconds after a command's end until the last of its processes must have ended."""
GIB = 1 << 30


@dataclass(frozen=True)
class Arguments:
    """Run rows of the fault matrix and print them as a table."""

    rows: str = ""
    """Names of rows, separated by commas; all rows by default."""
    quick: bool = False
    """Run only rows that take seconds."""
    table: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """Write the table to this file too."""
    output_dir: Path = Path("runs/faults")
    """Folder for the finished rows and for each row's logs and results."""
    model: Path | None = None
    """Folder of a small model, for the rows that kill an engine; by default one is trained for some steps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The observed effects of a fault; `seconds` until the run continued, None if there was nothing to wait for."""

    sees: str
    goes_on: str
    seconds: float | None
    lost: str = "nothing"


class Skipped(Exception):
    """A row cannot be run on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Row:
    """A fault's description, the function that runs it, and whether that takes more than some seconds."""

    fault: str
    run: Callable[["Stage"], Outcome]
    long: bool = False


def main(arguments: Arguments) -> int:
    """Run the requested rows that are not finished, print the table, and return the exit code."""
    wanted = [name.strip() for name in arguments.rows.split(",") if name.strip()] or list(ROWS)
    unknown = [name for name in wanted if name not in ROWS]
    if unknown:
        raise UserError(f"there is no row {unknown[0]!r}; the rows are {', '.join(ROWS)}")
    if arguments.quick:
        wanted = [name for name in wanted if not ROWS[name].long]
    folder = arguments.output_dir.resolve()
    if folder.is_relative_to("/tmp") and not folder.is_relative_to(ROOT):
        raise UserError(f"{folder} is in /tmp, which some rows replace by one of their own: name another folder")
    adopt_orphans()
    check_flags(arguments.output_dir)
    path = arguments.output_dir / "rows.jsonl"
    with (
        terminations_as_interrupts(),
        RecordFile(path) as output,
        contextlib.closing(Shared(arguments.output_dir / "services.log")) as shared,
    ):
        shown = {record["id"]: record for record in read_records(path, unfinished=True)}
        for name in wanted:
            if name not in output.done:
                record = _run_row(name, arguments, shared)
                shown[name] = record
                if record["state"] == "held":
                    output.append(record)
    table = _table([shown[name] for name in wanted])
    print(f"\n{table}")
    if arguments.table is not None:
        arguments.table.write_text(table + "\n", encoding="utf-8")
    return 1 if any(shown[name]["state"] == "broken" for name in wanted) else 0


def _run_row(name: str, arguments: Arguments, shared: "Shared") -> dict[str, Any]:
    """Run one row; whatever its outcome, no process that it started keeps running."""
    row = ROWS[name]
    folder = (arguments.output_dir / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(f"{name}: {row.fault} ...", flush=True)
    began = time.monotonic()
    record: dict[str, Any] = {"id": name, "fault": row.fault, "seconds": None}
    stage = Stage(folder, shared, arguments.model)
    try:
        outcome = row.run(stage)
        stage.nothing_left()
    except Skipped as reason:
        record |= {"state": "skipped", "sees": f"not run: {reason}", "lost": "", "goes_on": ""}
    except Broken as error:
        record |= {"state": "broken", "sees": f"AN INVARIANT DOES NOT HOLD: {error}", "lost": "?", "goes_on": "?"}
    else:
        record |= {"state": "held", "sees": outcome.sees, "lost": outcome.lost, "goes_on": outcome.goes_on}
        record["seconds"] = outcome.seconds
    finally:
        end(stage.own_processes())
    print(f"{name}: {record['sees']} ({time.monotonic() - began:.0f} s in all)", flush=True)
    return record


def _table(records: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| fault | what a user sees | lost | how it goes on | seconds |", "|---|---|---|---|---|"]
    for record in records:
        seconds = "" if record["seconds"] is None else f"{record['seconds']:.1f}"
        cells = (record["fault"], record["sees"], record["lost"], record["goes_on"], seconds)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


# --- parts of rows ------------------------------------------------------------------------------------------------


class Shared:
    """Services that rows use one after another, started for the first row that needs them."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}
        self._stack = contextlib.ExitStack()

    def environment(self) -> dict[str, str]:
        """The environment variables by which the services are found."""
        if self.process is None:
            self.process, self._environment = self._stack.enter_context(held_services(self.log, settings=JUDGE))
        return self._environment

    def processes(self) -> list[Process]:
        """All processes of the services, except their first."""
        return [] if self.process is None else below(self.process.pid)

    def close(self) -> None:
        """Stop the services, for a row that needs the machine to itself, or at the end."""
        self._stack.close()
        self.process = None


class Load:
    """A rollout of recorded responses with known verdicts: two samples and two turns of each problem.

    Args:
        folder: Folder for the input.
        output: The result file.
        padding: Number of characters added to each test's input, to make requests large.
        pause: Seconds that each test takes; there are 192 tests, two at a time.
    """

    EXPECTED = (
        (("passed", "passed"), ("runtime_error", "runtime_error")),
        (("passed", "wrong_answer"), ("passed", "passed")),
    )  # [sample][turn][test]

    def __init__(self, folder: Path, output: Path, *, padding: int = 0, pause: float = 0.05) -> None:
        self.output = output
        self.visible = output
        """Path of the result for this process; it differs if the result is on a mount of the row's own."""
        right, wrong, crash = "print(n * n)", "print(n * n if n < 3 else 0)", "print(n // 0)"
        programs = ((right, wrong), (crash, right))
        tests = {"inputs": [f"{n}\n{'x' * padding}" for n in (2, 3)], "outputs": ["4\n", "9\n"]}
        problems, recorded = [], []
        for number in range(PROBLEMS):
            responses = [
                [
                    f"```python\nimport time\nn = int(input())\ntime.sleep({pause})\n{code}  # {turn}\n```"
                    for code in turns
                ]
                for turn, turns in enumerate(programs)
            ]
            problems.append({"id": number, "question": "Square.", "test_cases": tests, "public_test_cases": tests})
            recorded.append({"id": number, "raw_responses": responses})
        files = {name: folder / f"{name}.jsonl" for name in ("problems", "recorded")}
        for name, rows in (("problems", problems), ("recorded", recorded)):
            files[name].write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        self.command = [sys.executable, "run_multi_turn_vllm.py", "-i", str(files["problems"]), "-o", str(output)]
        self.command += ["--replay_file", str(files["recorded"]), "-n", "2", "--turns", "1", "--concurrency", "4"]
        self.command += ["--prompts", "pocket"]

    def whole_command(self) -> list[str]:
        """The command with services of its own."""
        settings = [part for name, value in JUDGE.items() for part in ("--judge", f"{name}={value}")]
        return [sys.executable, "-m", "cobalt.services", *settings, "--", *self.command]

    def lines(self) -> list[bytes]:
        """The finished records on the disk, as lines."""
        content = self.visible.read_bytes() if self.visible.exists() else b""
        return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)

    def wait_for(self, count: int, process: "subprocess.Popen[bytes]") -> list[bytes]:
        """Wait until `count` records are on the disk; returns them."""
        wait_until(lambda: len(self.lines()) >= count or process.poll() is not None, LONGEST_RUN, "the first records")
        lines = self.lines()
        if len(lines) < count:
            raise Broken(f"the run ended with exit code {process.returncode} before the fault")
        if len(lines) == PROBLEMS:
            raise Broken("the run was complete before the fault")
        return lines

    def check(self, finished_before: Sequence[bytes] = (), *, complete: bool = True) -> None:
        """Check that every record is right, that `finished_before` are among them and, if `complete`, none is missing.

        Raises:
            Broken: a check failed.
        """
        try:
            records = [json.loads(line) for line in self.lines()]
        except ValueError as error:
            raise Broken(f"a finished line is not JSON: {error}") from None
        for record in records:
            kinds = tuple(
                tuple(tuple(verdict.kind.value for verdict in turn.public_result.verdicts) for turn in trajectory.turns)
                for trajectory in decode_trajectories(Problem.parse(record), record)
            )
            if kinds != self.EXPECTED:
                raise Broken(f"problem {record['id']} has wrong verdicts: {kinds}")
        missing = set(finished_before) - set(self.lines())
        if missing:
            raise Broken(f"{len(missing)} finished records were lost or changed")
        identifiers = [record["id"] for record in records]
        if complete and identifiers != list(range(PROBLEMS)):
            raise Broken(f"the finished result holds {identifiers}")
        if len(set(identifiers)) != len(identifiers):
            raise Broken(f"an id occurs twice: {identifiers}")


class Stage:
    """The means of a row: its folder, the shared services, and the commands that it starts."""

    def __init__(self, folder: Path, shared: Shared, model: Path | None) -> None:
        self.folder = folder
        self.shared = shared
        self.model = model
        self._logs = 0

    def load(self, *, padding: int = 0, pause: float = 0.05) -> Load:
        """The rollout of the row."""
        return Load(self.folder, self.folder / "multi_turn.jsonl", padding=padding, pause=pause)

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> tuple["subprocess.Popen[bytes]", Path]:
        """Start a command; returns its process and the file with its output."""
        self._logs += 1
        log = self.folder / f"command{self._logs}.log"
        with log.open("wb") as output:
            return start(list(command), output, env=os.environ | (environment or {})), log

    def own_processes(self) -> list[Process]:
        """The living processes of the row: all descendants of this process except those of the shared services."""
        others = {process.pid for process in self.shared.processes()}
        if self.shared.process is not None:
            others.add(self.shared.process.pid)
        return [process for process in family() if process.pid not in others]

    def nothing_left(self, disks: "Disks | None" = None) -> str:
        """Wait until the processes of the row have ended by themselves; returns how long it took, and the last one.

        Args:
            disks: The mount namespace of the row, whose processes may stay.

        Raises:
            Broken: a process has not ended in time.
        """
        began = time.monotonic()
        holders = set() if disks is None else {disks.pid, *(process.pid for process in below(disks.pid))}

        seen: list[Process] = []

        def left() -> list[Process]:
            alive = [process for process in self.own_processes() if process.pid not in holders]
            seen[:] = alive or seen
            return alive

        try:
            wait_until(lambda: not left(), LONGEST_END, "the end of the last process")
        except Broken:
            names = ", ".join(sorted({_without_paths(process.command)[:60] for process in left()}))
            raise Broken(f"{LONGEST_END:g} s after the end there still run: {names}") from None
        return f"{time.monotonic() - began:.1f} s" + (f" (`{_program(seen[-1])}`)" if seen else "")

    def complete(
        self,
        load: Load,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        finished_before: Sequence[bytes] = (),
    ) -> float:
        """Run the same command again; returns the seconds from its start until its first new record.

        Raises:
            Broken: the command fails, loses a record, or leaves a wrong one.
        """
        before = len(load.lines())
        began = time.monotonic()
        process, log = self.start(command, environment)
        wait_until(
            lambda: len(load.lines()) > before or process.poll() is not None, LONGEST_RUN, "a record of the second run"
        )
        seconds = time.monotonic() - began
        if finish(process) != 0:
            raise Broken(f"the same command again ended with exit code {process.returncode}: {last_words(log)}")
        load.check(finished_before)
        return seconds


def _program(process: Process) -> str:
    """A process's name for the table."""
    words = process.command.split() or ["without a command line"]
    scripts = [word for word in words if word.endswith(".py")]
    return Path(scripts[0]).name if scripts else words[0].rpartition("/")[2]


def finish(process: "subprocess.Popen[bytes]", seconds: float = LONGEST_RUN) -> int:
    """Wait for a command's end; returns its exit code, negative for a signal.

    Raises:
        Broken: the command does not end in time.
    """
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Broken(f"a command still runs {seconds:g} s later: {' '.join(process.args)[:80]}") from None  # type: ignore[arg-type]


def how_it_ended(code: int, log: Path) -> str:
    """The exit code and the last line of output, for the table."""
    ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    tracebacks = log.read_text(errors="replace").count("Traceback (most recent call last)")
    said = log.read_text(errors="replace").strip()
    words = (
        f", “{_without_paths(last_words(log), log.parent)[:200]}”" if said and code not in (0, -signal.SIGKILL) else ""
    )
    return ending + words + (f", with {tracebacks} traceback{'s' * (tracebacks > 1)}" if tracebacks else "")


def _without_paths(text: str, *folders: Path) -> str:
    """A text for the table, without the folders of this project and its runs."""
    for folder in (*folders, ROOT):
        text = text.replace(f"{folder}/", "")
    return re.sub(r"^\[.*?\] ", "", text)  # Ray's prefix: time, processes, threads


@dataclass(frozen=True)
class Disks:
    """A mount namespace with small file systems of its own."""

    pid: int
    enter: list[str]
    """A command that runs another one inside the namespace."""

    def visible(self, path: Path) -> Path:
        """The path by which this process reaches a path in the namespace."""
        return Path(f"/proc/{self.pid}/root{path}")

    def run(self, *command: str) -> None:
        """Run a command in the namespace."""
        subprocess.run([*self.enter, *command], check=True, stdin=subprocess.DEVNULL)

    def fill(self, folder: Path) -> Path:
        """Fill a file system to its last byte with a file in `folder`; returns the file."""
        filler = self.visible(folder) / "filler"
        with filler.open("wb", buffering=0) as handle:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while handle.write(b"\0" * size):
                        pass
        if os.statvfs(filler).f_bavail != 0:
            raise Broken(f"{folder} could not be filled")
        return filler


@contextlib.contextmanager
def small_disks(sizes: Mapping[Path, str]) -> Iterator[Disks]:
    """A mount namespace in which each of the folders is a tmpfs of the given size (in the syntax of `mount`).

    Raises:
        Skipped: this user is not root, mounting is not allowed, or the mount would hide this checkout.
    """
    if os.geteuid() != 0:
        raise Skipped("mounting needs root")
    hidden = next((folder for folder in sizes if ROOT.is_relative_to(folder)), None)
    if hidden is not None:
        raise Skipped(f"this checkout is in {hidden}, which the row replaces by a file system of its own")
    sizes_and_paths = [part for folder, size in sizes.items() for part in (size, str(folder))]
    script = (
        'while [ $# -gt 0 ]; do mount -t tmpfs -o "size=$1,mode=1777" none "$2" || exit; shift 2; done; echo up; cat'
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *sizes_and_paths]
    holder = start(command, None, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        if holder.stdout.readline() != b"up\n":
            raise Skipped("this machine allows no private mounts")
        enter = ["nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "sh", "-c", f'cd "{ROOT}" && exec "$@"', "sh"]
        yield Disks(holder.pid, enter)
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(10)


# --- rows: a sandbox's parts --------------------------------------------------------------------------------------


def sandbox_part(part: str, stage: Stage) -> Outcome:
    """Kill a part of a sandbox while a test runs in it, several times, while other programs are judged too."""
    del stage
    return asyncio.run(_sandbox_part(part))


async def _sandbox_part(part: str) -> Outcome:
    suite = TestSuite(tuple(f"{n}\n" for n in range(4)), tuple(str(n * n) for n in range(4)))
    right, wrong = "print(n * n)", "print(n * n if n < 2 else -1)"
    expected = {right: [True] * 4, wrong: [True, True, False, False]}
    settings = JudgeSettings(concurrency=2, cpu_seconds=2)
    waits: list[float] = []
    async with LocalJudge(settings) as judge:

        async def judged(code: str) -> float:
            began = time.monotonic()
            result = await judge.judge(f"import time\nn = int(input())\ntime.sleep(0.1)\n{code}", suite)
            if result.passing != expected[code]:
                raise Broken(f"a wrong verdict: {[verdict.kind.value for verdict in result.verdicts]}")
            return time.monotonic() - began

        usual = statistics.median([await judged(right) for _ in range(3)])
        for _ in range(KILLS):
            running = [asyncio.create_task(judged(code)) for code in (right, wrong, right, wrong)]
            victim = await asyncio.to_thread(wait_until, lambda: _part_of_sandbox(part), 30, f"a {part}")
            os.kill(victim, signal.SIGKILL)
            killed = time.monotonic()
            await asyncio.gather(*running)
            waits.append(time.monotonic() - killed)
        replaced = judge.restarts
    if replaced == 0:
        raise Broken("no sandbox had to be replaced: nothing was broken")
    return Outcome(
        f"nothing: {4 * KILLS} programs during {KILLS} kills, all verdicts right",
        f"the tests in flight run again ({replaced} sandboxes replaced)",
        max(0.0, max(waits) - 2 * usual),
    )


def _part_of_sandbox(part: str) -> int | None:
    """The process id of a part of one of this process's sandboxes; each part is the only child of the one before."""
    processes = family()
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    for outermost in children.get(os.getpid(), []):
        chain = [outermost] if "bwrap" in outermost.command else []
        while chain and children.get(chain[-1].pid):
            chain.append(children[chain[-1].pid][0])
        if len(chain) == len(SANDBOX_PARTS):  # a test runs
            return chain[SANDBOX_PARTS.index(part)].pid
    return None


SANDBOX_PARTS = ("bwrap", "pid 1", "zygote", "compiler", "test")


# --- rows: parts of the services, during a rollout ----------------------------------------------------------------


HOST = "cobalt.serving.host judge"


def one_of_two_hosts(stage: Stage) -> Outcome:
    """Kill one of two judges behind URLs during a rollout."""
    load = stage.load()
    with (
        held_services(stage.folder / "one.log", settings=JUDGE, expect_success=False) as (one, at_one),
        held_services(stage.folder / "two.log", settings=JUDGE) as (_, at_two),
    ):
        urls = [variables["COBALT_JUDGE_URL"] for variables in (at_one, at_two)]
        process, log = stage.start([*load.command, *(word for url in urls for word in ("--judge_url", url))])
        return _survived(load, process, log, below(one.pid))


def one_of_two_processes(stage: Stage) -> Outcome:
    """Kill one of two judge processes of a rollout that judges in the command."""
    load = stage.load()
    process, log = stage.start([*load.command, "--judge", "concurrency=9", "--judge", "cpu_seconds=2"])
    return _survived(load, process, log, None)


def _survived(load: Load, process: "subprocess.Popen[bytes]", log: Path, candidates: list[Process] | None) -> Outcome:
    """Kill a host of the judge, one of `candidates` or a child of the rollout, which must not be affected."""
    finished_before = load.wait_for(EARLY, process)
    os.kill(_only(HOST, below(process.pid) if candidates is None else candidates), signal.SIGKILL)
    fault = time.monotonic()
    count = len(load.lines())
    wait_until(lambda: len(load.lines()) > count or process.poll() is not None, LONGEST_RUN, "records after the kill")
    seconds = time.monotonic() - fault
    code = finish(process)
    if code != 0:
        raise Broken(f"the rollout ended with {how_it_ended(code, log)}")
    load.check(finished_before)
    return Outcome("nothing; the other one judged all programs", "by itself", seconds)


def own_judge(stage: Stage) -> Outcome:
    """Kill a rollout that judges in its own processes; none of them may be left."""
    load = stage.load()
    command = [*load.command, "--judge", "concurrency=9", "--judge", "cpu_seconds=2"]
    process, log = stage.start(command)
    finished_before = load.wait_for(EARLY, process)
    process.kill()
    code = finish(process)
    last = stage.nothing_left()
    load.check(finished_before, complete=False)
    seconds = stage.complete(load, command, None, finished_before)
    return Outcome(f"{how_it_ended(code, log)}; its last process {last} later", "the same command again", seconds)


def _only(prefix: str, processes: list[Process]) -> int:
    matches = named(prefix, processes)
    if not matches:
        raise Broken(f"there is no process {prefix!r} to kill")
    return matches[0].pid


def driver(stage: Stage) -> Outcome:
    """Kill the script that runs the rollout."""
    environment = stage.shared.environment()
    load = stage.load()
    process, log = stage.start(load.command, environment)
    finished_before = load.wait_for(EARLY, process)
    process.kill()
    code = finish(process)
    stage.nothing_left()
    load.check(finished_before, complete=False)
    with load.output.open("ab") as handle:
        handle.write(b'{"id": 23, "torn')  # as after a kill in the middle of a write
    seconds = stage.complete(load, load.command, environment, finished_before)
    return Outcome(how_it_ended(code, log), "the same command again; a half-written last record is made again", seconds)


def result_disk(stage: Stage) -> Outcome:
    """Have the disk of the results run full during a rollout, then make room."""
    environment = stage.shared.environment()
    disk = stage.folder / "disk"
    disk.mkdir()
    with small_disks({disk: "64k"}) as disks:
        load = Load(stage.folder, disk / "multi_turn.jsonl")
        load.visible = disks.visible(load.output)
        process, log = stage.start([*disks.enter, *load.command], environment)
        code = finish(process)
        if code == 0:
            raise Broken("the disk was large enough for the whole result")
        finished_before = load.lines()
        if not finished_before:
            raise Broken("the disk was too small for a single record")
        load.check(finished_before, complete=False)
        disks.run("mount", "-o", "remount,size=64m", str(disk))
        seconds = stage.complete(load, [*disks.enter, *load.command], environment, finished_before)
    return Outcome(
        f"{how_it_ended(code, log)}; {len(finished_before)} of {PROBLEMS} records fitted",
        "make room, then the same command again",
        seconds,
    )


def provider(stage: Stage) -> Outcome:
    """A provider that fails in every known way, then fails completely, and then works again."""
    import importlib.util

    if importlib.util.find_spec("litellm") is None:
        raise Skipped("the api extra is not installed (scripts/setup.sh --with api)")
    sys.path.append(str(ROOT / "tests"))
    from provider import answer, failure, serve  # type: ignore[import-not-found]

    environment = stage.shared.environment() | {"OPENAI_API_KEY": "none"}
    problems = stage.folder / "problems.jsonl"
    tests = {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]}
    rows = [{"id": number, "question": f"Square {number}.", "test_cases": tests} for number in range(8)]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    text = "```python\nprint(int(input()) ** 2)\n```"
    faults = [
        failure(500),
        failure(429, headers={"retry-after": "0"}),
        "cut",
        failure(503),
        (200, {}, "no JSON"),
        "hang",
    ]
    seen: set[str] = set()
    lock = threading.Lock()
    state = {"down": False, "answered": 0}

    def respond(request: Mapping[str, Any]) -> Any:
        key = json.dumps([request["body"].get("messages"), request["body"].get("seed")])
        with lock:
            if state["down"]:
                return failure(500)
            if key not in seen:
                seen.add(key)
                return faults[len(seen) % len(faults)]
            state["answered"] += 1
            if state["answered"] == 6:
                state["down"] = True
        return answer(text)

    output = stage.folder / "single_turn.jsonl"
    with serve(respond) as server:
        command = [sys.executable, "run_single_turn_litellm.py", "-i", str(problems), "-o", str(output), "-n", "2"]
        command += ["--api_base", server.url, "--model_name", "m", "--attempts", "3", "--request_timeout", "2"]
        process, log = stage.start(command, environment)
        code = finish(process)
        if code == 0:
            raise Broken("the run ended well although its provider was down")
        before = read_records(output, unfinished=True) if output.exists() else []
        state["down"] = False
        paid = state["answered"]
        began = time.monotonic()
        again, log_again = stage.start(command, environment)
        if finish(again) != 0:
            raise Broken(f"the same command again ended with {how_it_ended(again.returncode, log_again)}")
        seconds = time.monotonic() - began
    records = read_records(output)
    if [record["id"] for record in records] != list(range(8)) or any(record not in records for record in before):
        raise Broken("records are missing or were changed")
    if any(not result.all_passed for record in records for result in decode_results(record, 2)):
        raise Broken("a wrong verdict")
    if state["answered"] != 16:
        raise Broken(f"{state['answered']} answers were paid for, and 16 are needed")
    return Outcome(
        f"each request failed once (500, 429, 503, cut, no JSON, silence): nothing; provider down: "
        f"{how_it_ended(code, log)}",
        f"the same command again, which pays for {16 - paid} of 16 answers only",
        seconds,
    )


# --- rows: a command with services of its own ---------------------------------------------------------------------


def whole_part(find: str, stage: Stage) -> Outcome:
    """Kill a process that the whole command depends on, in the middle of the rollout."""
    stage.shared.close()
    load = stage.load(pause=0.3)
    with _own_temporary_folders() as disks:
        command = [*disks.enter, *load.whole_command()]
        process, log = stage.start(command)
        finished_before = load.wait_for(EARLY, process)
        victim = process.pid if find == "supervisor" else _only(find, below(process.pid))
        os.kill(victim, signal.SIGKILL)
        fault = time.monotonic()
        code = finish(process, LONGEST_RESPONSE)
        ended = time.monotonic() - fault
        last = stage.nothing_left(disks)
        left = _left(disks)
        load.check(finished_before, complete=False)
        finished = len(load.lines())
        if code == 0:
            load.check(finished_before)
            return Outcome(f"{how_it_ended(code, log)}{left}", "by itself", ended)
        seconds = stage.complete(load, command, None, finished_before)
        stage.nothing_left(disks)
    return Outcome(
        f"{how_it_ended(code, log)} after {ended:.1f} s, its last process {last} later{left}",
        f"the same command again ({finished} of {PROBLEMS} records were there)",
        seconds,
    )


def stopped(number: signal.Signals, moments: tuple[float, ...], stage: Stage) -> Outcome:
    """Stop the whole command at each of `moments` (seconds after its start); Ctrl-C reaches its whole process group."""
    stage.shared.close()
    load = stage.load()
    endings: Counter[str] = Counter()
    longest = 0.0
    with _own_temporary_folders() as disks:
        command = [*disks.enter, *load.whole_command()]
        for moment in moments:
            process, log = stage.start(command)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moment)
                raise Broken(f"the command ended by itself within {moment} s: {last_words(log)}")
            (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
            sent = time.monotonic()
            code = finish(process, LONGEST_END)
            stage.nothing_left(disks)
            longest = max(longest, time.monotonic() - sent)
            if code == 0:
                raise Broken(f"stopped after {moment} s, the command says that it is done")
            endings[how_it_ended(code, log)] += 1
            load.check(complete=False)
        left = _left(disks)
        stage.complete(load, command)
        stage.nothing_left(disks)
    said = "; ".join(f"{count} × {ending}" for ending, count in endings.items())
    return Outcome(f"{said}{left}", "the same command again", longest)


def judge_that_starts(stage: Stage) -> Outcome:
    """Have a judge end while a sandbox starts, several times: bubblewrap is interrupted wherever it is."""
    stage.shared.close()
    longest = 0.0
    for attempt in range(STARTS):
        with (stage.folder / "judge.stderr").open("w+b") as errors:
            judge = AppProcess("judge", {"settings": JUDGE, "port": 0}, errors)
            wait_until(partial(_bubblewraps, stage, attempt % 5 + 1, set()), LONGEST_RESPONSE, "a sandbox")
            began = time.monotonic()
            judge.end(LONGEST_END)
        stage.nothing_left()
        longest = max(longest, time.monotonic() - began)
        if longest > LONGEST_CLOSE:
            raise Broken(f"a judge that starts took {longest:.1f} s to end")
    return Outcome("nothing", "by itself", longest)


def _bubblewraps(stage: Stage, count: int, seen: set[int]) -> bool:
    """Whether bubblewrap had so many processes until now; a sandbox that has started has two."""
    seen.update(process.pid for process in stage.own_processes() if "bwrap" in process.command)
    return len(seen) >= count


def temporary_folder(folder: Path, padding: int, stage: Stage) -> Outcome:
    """Fill /tmp or /dev/shm completely in the middle of the rollout, and make room when the command has ended."""
    stage.shared.close()
    load = stage.load(padding=padding)
    with _own_temporary_folders() as disks:
        command = [*disks.enter, *load.whole_command()]
        process, log = stage.start(command)
        finished_before = load.wait_for(EARLY, process)
        filler = disks.fill(folder)
        fault = time.monotonic()
        code = finish(process, LONGEST_RESPONSE)
        ended = time.monotonic() - fault
        stage.nothing_left(disks)
        load.check(finished_before, complete=False)
        finished = len(load.lines())
        filler.unlink()
        if code == 0:
            load.check(finished_before)
            return Outcome(f"nothing ({how_it_ended(code, log)})", "by itself", ended)
        seconds = stage.complete(load, command, None, finished_before)
        stage.nothing_left(disks)
    return Outcome(
        f"{how_it_ended(code, log)} after {ended:.1f} s",
        f"make room, then the same command again ({finished} of {PROBLEMS} records were there)",
        seconds,
    )


def clock(offset: int, stage: Stage) -> Outcome:
    """Let the wall clock of every process of the run jump by `offset` seconds; monotonic clocks are not changed."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not libraries or shutil.which("cc") is None:
        raise Skipped("libfaketime or a C compiler is not installed (apt-get install faketime gcc)")
    source, sleep = stage.folder / "sleep.c", stage.folder / "sleep.so"
    source.write_text(_SLEEP)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(sleep), str(source)], check=True)
    stage.shared.close()
    load = stage.load()
    clock_file = stage.folder / "clock"
    clock_file.write_text("+0\n")
    environment = {
        "LD_PRELOAD": f"{sleep} {libraries[0]}",
        "FAKETIME_TIMESTAMP_FILE": str(clock_file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    process, log = stage.start(load.whole_command(), environment)
    finished_before = load.wait_for(EARLY, process)
    jumped = stage.folder / "clock.new"
    jumped.write_text(f"{offset:+d}\n")
    jumped.replace(clock_file)
    fault = time.monotonic()
    shown = subprocess.run(
        ["date", "+%s"], env=os.environ | environment, capture_output=True, text=True, check=True
    ).stdout
    if abs(int(shown) - time.time() - offset) > 10:
        raise Broken("the clock did not jump")
    lied_to = [item for item in below(process.pid) if "libfaketime" in _maps(item.pid)]
    if not named(HOST, lied_to):
        raise Broken("the clock of the judge's host did not jump")
    code = finish(process)
    ended = time.monotonic() - fault
    if code != 0:
        load.check(finished_before, complete=False)
        seconds = stage.complete(load, load.whole_command(), environment, finished_before)
        return Outcome(how_it_ended(code, log), "the same command again", seconds)
    load.check(finished_before)
    return Outcome(
        f"nothing; the other {PROBLEMS - len(finished_before)} problems took {ended:.1f} s", "by itself", 0.0
    )


# If libfaketime leaves the monotonic clock alone, it refuses sleeps on that clock, such as Python's `time.sleep`.
_SLEEP = """
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
  return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
}
"""


def _maps(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""


def engine(prefix: str, stage: Stage) -> Outcome:
    """Kill a process of the engine while it generates, and count the responses that equal an undisturbed run's."""
    stage.shared.close()
    model = stage.model or _small_model(stage.folder)
    problems = stage.folder / "problems.jsonl"
    tests = {"inputs": ["2\n", "3\n"], "outputs": ["4\n", "9\n"]}
    rows = [
        {"id": number, "question": f"Square {number}.", "test_cases": tests, "public_test_cases": tests}
        for number in range(PROBLEMS)
    ]
    problems.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    common = ["-n", "2", "--turns", "2", "--max_tokens", "48", "--concurrency", "2", "--prompts", "pocket"]

    def command(output: Path) -> list[str]:
        return [sys.executable, "run_multi_turn_vllm.py", "-i", str(problems), "-o", str(output), *common]

    output, reference = stage.folder / "multi_turn.jsonl", stage.folder / "reference.jsonl"
    serving = partial(held_services, stage.folder / "services.log", settings=JUDGE, model=str(model))
    with serving(expect_success=False) as (services, environment):
        undisturbed, log = stage.start(command(reference), environment)
        if finish(undisturbed) != 0:
            raise Broken(f"the undisturbed run ended with {how_it_ended(undisturbed.returncode, log)}")
        process, log = stage.start(command(output), environment)
        wait_until(
            lambda: (output.exists() and output.read_bytes().count(b"\n") >= EARLY) or process.poll() is not None,
            LONGEST_RUN,
            "the first records",
        )
        finished_before = output.read_bytes()
        os.kill(_only(prefix, below(services.pid)), signal.SIGKILL)
        code = finish(process)
        first = how_it_ended(code, log)
    if code == 0:
        raise Broken("the run is complete without an engine")
    began = time.monotonic()
    with serving() as (_, environment):
        again, log = stage.start(command(output), environment)
        if finish(again) != 0:
            raise Broken(f"the same command again ended with {how_it_ended(again.returncode, log)}")
    seconds = time.monotonic() - began
    records, expected = read_records(output), read_records(reference)
    if [record["id"] for record in records] != list(range(PROBLEMS)):
        raise Broken("records are missing")
    if not set(finished_before.splitlines()) <= set(output.read_bytes().splitlines()):
        raise Broken("finished records were lost or changed")
    turns = [
        turn
        for record in records
        for trajectory in decode_trajectories(Problem.parse(record), record)
        for turn in trajectory.turns
    ]
    if any(turn.error for turn in turns):
        raise Broken("a failed engine became a response")
    same = sum(decode_responses(one) == decode_responses(other) for one, other in zip(records, expected, strict=True))
    return Outcome(
        f"{first}; {same} of {PROBLEMS} problems have the responses of an undisturbed run",
        "the same command again, with the services started again",
        seconds,
    )


def _small_model(folder: Path) -> Path:
    from cobalt.pocket import build_pocket_world
    from cobalt.pocket.training import Recipe

    sizes = {"train": 12, "dev": 6, "test": 6}
    return build_pocket_world(folder / "pocket", sizes=sizes, recipe=Recipe(demonstrations=320), open_share=0).model


@contextlib.contextmanager
def _own_temporary_folders() -> Iterator[Disks]:
    """Separate /tmp and /dev/shm for a command, so that files that it leaves there are found."""
    with small_disks({Path("/tmp"): "512m", Path("/dev/shm"): "320m"}) as disks:
        yield disks


def _left(disks: Disks) -> str:
    """The files that a run has left in its temporary folders, in words."""
    kinds = Counter(
        re.sub(r"((?<=/tmp)|(?<=[-_.]))[0-9a-z_]{6,}$", "…", f"{folder}/{item.name}")  # mkdtemp's letters
        for folder in ("/tmp", "/dev/shm")
        for item in disks.visible(Path(folder)).iterdir()
    )
    return "".join(f"; {count} × {name} left" for name, count in kinds.items())


ROWS: dict[str, Row] = {
    **{part.replace(" ", ""): Row(f"sandbox: {part} killed", partial(sandbox_part, part)) for part in SANDBOX_PARTS},
    "judge_url": Row("judge: one of two URLs killed", one_of_two_hosts),
    "judge_process": Row("judge in the command: one of its processes killed", one_of_two_processes),
    "judge_command": Row("judge in the command: the command killed", own_judge),
    "judge_start": Row("judge: ended while its sandboxes start", judge_that_starts, long=True),
    "judge_host": Row("`cobalt.services`: the judge's host killed", partial(whole_part, HOST), long=True),
    "driver": Row("the rollout's script killed", driver),
    "result_disk": Row("disk of the results full", result_disk),
    "provider": Row("errors of a provider", provider, long=True),
    "term_early": Row("SIGTERM in the first second", partial(stopped, signal.SIGTERM, (0.05, 0.3, 0.6, 0.95))),
    "kill_early": Row(
        "SIGKILL in the first second", partial(stopped, signal.SIGKILL, (0.05, 0.3, 0.6, 0.95)), long=True
    ),
    "int_early": Row("Ctrl-C in the first second", partial(stopped, signal.SIGINT, (0.05, 0.3, 0.6, 0.95)), long=True),
    "term_start": Row(
        "SIGTERM while the services start", partial(stopped, signal.SIGTERM, (1.25, 2.0, 2.75, 3.5)), long=True
    ),
    "kill_start": Row(
        "SIGKILL while the services start", partial(stopped, signal.SIGKILL, (1.25, 2.0, 2.75, 3.5)), long=True
    ),
    "int_start": Row(
        "Ctrl-C while the services start", partial(stopped, signal.SIGINT, (1.25, 2.0, 2.75, 3.5)), long=True
    ),
    "supervisor": Row("`cobalt.services` killed", partial(whole_part, "supervisor"), long=True),
    "tmp": Row("/tmp full", partial(temporary_folder, Path("/tmp"), 0), long=True),
    "shm": Row("/dev/shm full, requests of 400 kB", partial(temporary_folder, Path("/dev/shm"), 200_000), long=True),
    "clock_forward": Row("clock jumps a day forward", partial(clock, 86_400), long=True),
    "clock_back": Row("clock jumps a day back", partial(clock, -86_400), long=True),
    "engine": Row("engine: its host killed", partial(engine, "cobalt.serving.host engine"), long=True),
    "engine_core": Row("engine: vLLM's own process killed", partial(engine, "VLLM::EngineCore"), long=True),
}


if __name__ == "__main__":
    run_script(Arguments, main)
