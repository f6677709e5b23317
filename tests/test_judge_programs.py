"""The judge on honest programs: verdicts, semantics of a script, suites, its own failures, real data."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from attacks_lab import copied_python
from support import descendants, write_lines

from cobalt.commands.judge import CheckRecorded, Doctor, recheck
from cobalt.judge import ExecResult, JudgeSettings, LocalJudge, VerdictKind
from cobalt.judge.calling import call_input, canonical_json
from cobalt.judge.doctor import Finding, examine, require_isolation
from cobalt.judge.local import LARGE_OUTPUT
from cobalt.judge.sandbox.cgroups import OVERHEAD_BYTES
from cobalt.judge.sandbox.sandbox import Sandbox
from cobalt.problems.problem import TestSuite
from cobalt.stage.errors import InfrastructureError, UserError

pytestmark = pytest.mark.sandbox

SHARED = Path(__file__).parent.parent.parent / "shared" / "data"
PASSED = VerdictKind.PASSED
PYTHON = Path(sys.executable).resolve()


class Bench:
    """Judges in one event loop, by settings; made when first used."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.judges: dict[JudgeSettings, LocalJudge] = {}

    def judge(
        self, code: str, tests: dict[str, str] | TestSuite, *, stop: bool = False, **settings: object
    ) -> ExecResult:
        wanted = JudgeSettings(**({"concurrency": 1} | settings))
        if wanted not in self.judges:
            self.judges[wanted] = LocalJudge(wanted)
            self.runner.run(self.judges[wanted].__aenter__())
        suite = tests if isinstance(tests, TestSuite) else TestSuite(tuple(tests), tuple(tests.values()))
        return self.runner.run(self.judges[wanted].judge(code, suite, stop_at_first_failure=stop))

    def close(self) -> None:
        for judge in self.judges.values():
            self.runner.run(judge.close())
        self.runner.close()


@pytest.fixture(scope="module")
def bench():
    made = Bench()
    yield made
    made.close()


def programs(file: str) -> dict[str, Any]:
    """The programs of a file of `data/programs`, by what they do."""
    text = (Path(__file__).parent / "data" / "programs" / f"{file}.yaml").read_text("utf-8")
    names = [name.value for name, _ in yaml.compose(text).value]
    assert len(set(names)) == len(names), f"{file}.yaml has a name twice"
    return yaml.safe_load(text)


def called(arguments: list[Any], value: Any, repetitions: int = 1) -> TestSuite:
    """Tests that call `f`."""
    return TestSuite((call_input(arguments),) * repetitions, (canonical_json(value),) * repetitions, "f")


PAIR, ANYTHING = ["f(3)", "assert f(3) == (3, 4)"], [1, "a", [None, 0.5]]
SUITES = {
    "scripts": lambda case: TestSuite((case.get("input", ""),), (case.get("output", ""),)),
    "calls": lambda case: called(case.get("arguments", [1]), case.get("value", 1)),
    "noisy": lambda case: called([ANYTHING], ANYTHING, 5),
    "assertions": lambda case: TestSuite(*zip(*case.get("tests", [PAIR]), strict=True), "f", True),
}
CASES = [(file, name, case) for file in SUITES for name, case in programs(file).items()]
CASES += [("scripts", f"is {size} characters of {what!r}", {"verdict": "compile_error", "code": code} | more) for
    size, what, code, more in (
        (5000, "(", "x = " + "(" * 5000, {}),
        (300000, "-", "x = " + "-" * 300000 + "1", {}),
        (4096, "x", "#" + "x" * 4096, {"mentions": "2048", "settings": {"file_bytes": 2048, "output_bytes": 1024}}),
    )]  # fmt: skip
CASES += [("calls", "large integers", {"code": "def f(x): return x * 10", "arguments": [10**4000], "value": 10**4001})]


# `test_fidelity.py` has more, with what the paper's judge says of them.
@pytest.mark.parametrize(("file", "case"), [pytest.param(f, case, id=f"{f}: {name}") for f, name, case in CASES])
def test_a_program_gets_its_verdict_and_a_failure_its_feedback(bench, monkeypatch, file, case):
    monkeypatch.setattr("cobalt.judge.feedback.FIELD_CHARACTERS", 1 << 20)  # the middle of a long traceback, too
    case = {"code": "def f(x): return x, x + 1"} | (case if isinstance(case, dict) else {"code": case})
    suite = SUITES[file](case)
    result = bench.judge(case["code"], suite, **case.get("settings", {}))
    kinds = [verdict.kind for verdict in result.verdicts]
    assert kinds == case.get("verdicts", [case.get("verdict", "passed")] * len(suite)), result.feedback
    text = result.feedback[0]
    assert case.get("mentions", "") in text
    assert not any(word in text for word in ("/python", "inside"))
    if "feedback" in case:
        below = text.removeprefix(f"Input:\n{suite.inputs[0].strip()}\n").split("\n")
        assert "\n".join(line for line in below if line.strip(" ~^") or not line) == case["feedback"]
    if suite.fn_name is not None:
        assert_no_frame_of_the_driver(text.partition("\nStderr:\n")[2], case["code"])
    if "frames" in case:
        assert result.verdicts[0].exit_status == 1
        assert "Program's Output:\nseen\nStderr:\n" in text
        named = [int(number) for number in re.findall(r'File "main.py", line (\d+)', text)]
        assert named[: len(case["frames"])] == case["frames"]
        assert bool(named) is bool(case["frames"])


def assert_no_frame_of_the_driver(text, code):
    for word in ("_judge", "<module>", "<test>", "json/", "start.py", "inside/"):
        assert word not in text
    assert all(int(number) <= code.count("\n") + 1 for number in re.findall(r"line (\d+), in", text))


GUARDED = [
    pytest.param(code, kind == "refused", id=name)
    for kind, codes in programs("guard").items()
    for name, code in codes.items()
]


@pytest.mark.parametrize(("code", "refused"), GUARDED)
def test_the_papers_guard_fails_what_it_refuses_and_nothing_else(bench, code, refused):
    guarded, plain = (bench.judge(code + "\n", {"": "7"}, paper_guard=guard) for guard in (True, False))
    assert plain.all_passed, plain.feedback
    if not refused:
        assert guarded.all_passed, guarded.feedback
    else:
        assert guarded.verdicts[0].kind in (VerdictKind.RUNTIME_ERROR, VerdictKind.COMPILE_ERROR)
        text = guarded.feedback[0]
        assert "Stderr:" in text and "inside" not in text and "paper_guard" not in text


async def test_the_guard_is_off_by_default_decides_verdicts_and_changes_nothing_of_the_isolation():
    guarded = JudgeSettings(paper_guard=True)
    assert (JudgeSettings().decisive()["paper_guard"], guarded.decisive()["paper_guard"]) == (False, True)
    assert [finding async for finding in examine(guarded) if not finding.holds] == []


def test_cpu_time_beyond_the_limit_fails_even_a_program_that_ends_by_itself_and_sleep_is_none(bench):
    code = "import time\nwhile time.process_time() < 0.25: pass\nprint(1)"
    assert bench.judge(code, {"": "1"}, cpu_seconds=0.2).verdicts[0].kind is VerdictKind.TIME_LIMIT
    assert bench.judge(code, {"": "1"}, cpu_seconds=1.0).all_passed
    result = bench.judge("import time\ntime.sleep(0.3)\nprint(1)", {"": "1"}, cpu_seconds=0.2, wall_seconds=5)
    assert result.all_passed
    assert result.verdicts[0].cpu_seconds < 0.2 < result.verdicts[0].wall_seconds


def test_site_packages_are_offered_only_by_setting(bench, tmp_path):
    (tmp_path / "offered.py").write_text("value = 5", encoding="utf-8")
    tmp_path.chmod(0o755)
    assert bench.judge("import offered\nprint(offered.value)", {"": "5"}).verdicts[0].kind is VerdictKind.RUNTIME_ERROR
    assert bench.judge("import offered\nprint(offered.value)", {"": "5"}, site_packages=tmp_path).all_passed


def test_every_test_gets_an_entry_in_order_and_none_without_tests(bench):
    tests = {str(n): str(n * n) if n % 3 else "no" for n in range(20)}
    result = bench.judge("print(int(input()) ** 2)", tests, concurrency=2)
    assert result.passing == [n % 3 != 0 for n in range(20)]
    assert len(result.verdicts) == len(result.feedback) == 20
    assert (result.first_failure() or "").startswith("Input:\n0\n")
    empty = bench.judge("print(1)", {})
    assert (empty.passing, empty.pass_rate, empty.all_passed) == ([], 0.0, False)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_stopping_at_the_first_failure_gives_the_same_result_at_any_concurrency(bench, concurrency):
    tests = {str(n): str(n) if n < 9 else "no" for n in range(24)}
    result = bench.judge("print(input())", tests, stop=True, concurrency=concurrency)
    kinds = [PASSED] * 9 + [VerdictKind.WRONG_ANSWER] + [VerdictKind.NOT_RUN] * 14
    assert [verdict.kind for verdict in result.verdicts] == kinds


def test_a_suite_s_cpu_budget_leaves_later_tests_not_run_and_the_denominator_whole(bench):
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint(1)"
    result = bench.judge(code, {str(n): "1" for n in range(6)}, suite_cpu_seconds=0.5)
    assert [verdict.kind for verdict in result.verdicts] == [PASSED] * 3 + [VerdictKind.NOT_RUN] * 3
    assert result.pass_rate == 0.5


COMPUTES = "import time\nwhile time.process_time() < 0.3: pass"


@pytest.mark.parametrize("concurrency", [1, 2])
def test_tests_beyond_a_suites_budget_of_waiting_are_not_run(bench, concurrency):
    tests = {str(n): "" for n in range(12)}
    waits = bench.judge("import time\ntime.sleep(0.5)", tests, suite_wall_seconds=1.2, concurrency=concurrency)
    kinds = [verdict.kind for verdict in waits.verdicts]
    ran = kinds.count(PASSED)
    assert ran in (3, 4)  # the third passes the budget; what a busy machine takes is not waited
    assert kinds == [PASSED] * ran + [VerdictKind.NOT_RUN] * (12 - ran)


def test_cpu_time_counts_towards_the_time_of_a_suite_and_not_as_waiting(bench):
    tests = {str(n): "" for n in range(12)}
    result = bench.judge(COMPUTES, tests, suite_seconds=0.7, concurrency=2)  # three rounds of 0.3 s
    assert {verdict.kind for verdict in result.verdicts} == {VerdictKind.NOT_RUN}
    assert bench.judge(COMPUTES, dict(list(tests.items())[:5]), suite_wall_seconds=0.5, concurrency=2).all_passed


async def test_no_sandbox_waits_for_another_while_programs_queue(monkeypatch):
    """Extra tests of a long suite use idle sandboxes only; one that waited for a sandbox would block other programs."""
    running, seen = 0, []
    run = Sandbox.run

    async def counted(self: Sandbox, *arguments: object) -> object:
        nonlocal running
        running += 1
        seen.append(running)
        try:
            return await run(self, *arguments)
        finally:
            running -= 1

    monkeypatch.setattr(Sandbox, "run", counted)
    suite = TestSuite(tuple(map(str, range(10))), tuple(map(str, range(10))))
    async with LocalJudge(JudgeSettings(concurrency=2)) as judge:
        programs = (judge.judge("import time\ntime.sleep(0.02)\nprint(input())", suite) for _ in range(8))
        results = await asyncio.gather(*programs)
    assert all(result.all_passed for result in results)
    assert seen.count(2) > len(seen) / 2


async def test_queue_time_is_apart_from_run_time():
    async with LocalJudge(JudgeSettings(concurrency=1, cpu_seconds=0.2, wall_seconds=0.4)) as judge:
        waits = "import time\ntime.sleep(0.2)\nprint(1)"
        results = await asyncio.gather(*(judge.judge(waits, TestSuite(("",), ("1",))) for _ in range(4)))
    assert all(result.all_passed for result in results)
    # One after another: each waited for as long as those before it ran, however slow the machine.
    results.sort(key=lambda result: result.queue_seconds)
    for before, after in itertools.pairwise(results):
        assert before.run_seconds >= 0.2
        assert after.queue_seconds == pytest.approx(before.queue_seconds + before.run_seconds, abs=0.15)


@pytest.mark.parametrize("depth", [0, 1, 2, -1])
async def test_a_killed_process_of_a_sandbox_costs_time_but_never_a_verdict(depth):
    # In order of depth: bubblewrap outside, bubblewrap inside, zygote, then the compiler and the test itself.
    code = "import time\ntime.sleep(0.05)\nprint(input())"
    tests = tuple(str(n) for n in range(12))
    others = set(descendants(os.getpid()))
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        work = [asyncio.create_task(judge.judge(code, TestSuite(tests, tests))) for _ in range(2)]
        for _ in range(2):
            await asyncio.sleep(0.3)
            killed = False
            while not killed:  # a process may have ended since it was listed, and a sandbox may be about to be replaced
                pids = [pid for pid in descendants(os.getpid()) if pid not in others]
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(pids[depth], signal.SIGKILL)
                    killed = True
                await asyncio.sleep(0.01)
        results = await asyncio.gather(*work)
    assert all(result.all_passed for result in results)


@pytest.mark.parametrize("turns", [*range(6), None])
async def test_a_program_cancelled_at_any_moment_keeps_no_sandbox(turns):
    # Each turn of the event loop is another moment: before, while and after it takes idle sandboxes for its tests.
    judge, waits = LocalJudge(JudgeSettings(concurrency=4)), "import time\ntime.sleep(2)\nprint(1)"
    with pytest.raises(InfrastructureError):  # it is not open
        await judge.judge("print(1)", TestSuite(("",), ("1",)))
    async with judge:
        for _ in range(5):
            task = asyncio.create_task(judge.judge(waits, TestSuite(("",) * 17, ("1",) * 17)))
            for _ in range(turns or 0):
                await asyncio.sleep(0)
            await asyncio.sleep(0.2 if turns is None else 0)  # its tests run
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        results = await asyncio.gather(*(judge.judge(waits, TestSuite(("",), ("1",))) for _ in range(4)))
        assert judge.restarts <= 20
    assert all(result.all_passed for result in results)
    # With a sandbox lost, the fourth program would have waited for the end of another.
    assert max(result.queue_seconds for result in results) < 2


def test_a_sandbox_ended_at_any_moment_of_its_start_leaves_no_process():
    async def course() -> None:
        for moment in range(40):
            sandbox = Sandbox(JudgeSettings())
            start = asyncio.create_task(sandbox.start())
            await asyncio.sleep(moment / 800)  # a start takes about 30 ms
            start.cancel()
            await asyncio.gather(start, return_exceptions=True)
            await sandbox.close()

    prctl, become_reaper = ctypes.CDLL(None, use_errno=True).prctl, 36
    assert prctl(become_reaper, 1, 0, 0, 0) == 0  # a process whose parent has ended becomes a child of this one
    try:
        before = set(descendants(os.getpid()))
        asyncio.run(course())
        left = [psutil.Process(pid) for pid in descendants(os.getpid()) if pid not in before]
        _, alive = psutil.wait_procs(left, timeout=5)
        for process in alive:
            process.kill()
        assert not alive
    finally:
        prctl(become_reaper, 0, 0, 0, 0)


async def test_an_interpreter_in_the_home_opens_neither_the_home_nor_its_packages(tmp_path, monkeypatch):
    home = tmp_path / "home"
    python = copied_python(home)
    for name in (f"lib/{python.name}/site-packages/of_the_host.py", ".ssh/id_rsa"):
        (home / name).parent.mkdir()
        (home / name).write_text("PRIVATE = 1", encoding="utf-8")
    monkeypatch.setenv("HOME", str(home))
    code = """
import glob, os, sys
private = ("id_rsa", "of_the_host")
seen = [os.path.join(at, name) for at, _, names in os.walk("/python") for name in names if name.startswith(private)]
for folder in glob.glob("/python/lib/*/*-packages") + glob.glob("/usr/lib*/python3*/*-packages"):
    seen += os.listdir(folder)
print(sys.prefix, seen)
"""
    async with LocalJudge(JudgeSettings(concurrency=1, python=python)) as judge:
        result = await judge.judge(code, TestSuite(("",), ("/python []",)))
    assert result.all_passed, result.feedback
    assert [finding.claim async for finding in examine(JudgeSettings(python=python)) if not finding.holds] == []


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_programs_run_under_another_version_of_python(bench, version):
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = [*Path("/usr/bin").glob(f"python{version}"), *pyenv.glob(f"versions/{version}.*/bin/python{version}")]
    if not installed:
        pytest.skip(f"Python {version} is not installed")
    code = "import sys, json, decimal\nprint(sys.version[:4].rstrip('.'))\nif input(): return"
    result = bench.judge(code, {"1": version, "2": version}, python=installed[0], allow_top_level_return=True)
    assert result.all_passed, result.feedback


async def test_without_a_standard_library_bubblewrap_or_user_namespaces_the_judge_says_so(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="python3.11"):
        await LocalJudge(JudgeSettings(python=Path(shutil.copy(PYTHON, tmp_path / "python3.11")))).__aenter__()
    real, fake = shutil.which("bwrap"), tmp_path / "bwrap"
    # What the real one meets where the kernel allows no more user namespaces: nested, with the count set to zero.
    fake.write_text(
        f"#!/bin/sh\nexec {real} --unshare-user --cap-add ALL --bind / / --proc /proc --dev /dev sh -c "
        f'\'echo 0 > /proc/sys/user/max_user_namespaces && exec {real} "$@"\' sh "$@"\n',
        encoding="utf-8",
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(UserError, match=r"max_user_namespaces"):
        await LocalJudge().__aenter__()
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UserError, match="apt-get install bubblewrap"):
        await LocalJudge().__aenter__()
    with pytest.raises(UserError, match="bubblewrap"):
        await require_isolation(JudgeSettings())


@pytest.mark.parametrize("stdin", ["file", "pipe"])
def test_unsafe_judging_is_named_in_every_result(bench, stdin):
    result = bench.judge("print(input())", {"1": "1", "2": "3"}, unsafe=True, stdin=stdin)
    assert result.passing == [True, False]
    assert not result.isolated
    assert result.to_record()["isolated"] is False


async def test_doctor_finds_that_isolation_holds_here_and_would_find_an_open_home(monkeypatch):
    findings = [finding async for finding in examine()]
    assert len(findings) > 10
    assert [finding for finding in findings if not finding.holds] == []
    await require_isolation(JudgeSettings())
    monkeypatch.setenv("HOME", "/usr")  # which every program sees
    with pytest.raises(UserError, match="home .*python -m cobalt.judge doctor"):
        await require_isolation(JudgeSettings())


@pytest.mark.parametrize("holds", [True, False])
async def test_doctor_ends_as_its_checks_do(monkeypatch, capsys, holds):
    async def examined(settings):
        for finding in (Finding("the one", True), Finding("the other", holds, "what was seen")):
            yield finding

    monkeypatch.setattr("cobalt.commands.judge.examine", examined)
    assert await Doctor().run() == (0 if holds else 1)
    assert ("what was seen" in capsys.readouterr().out) is not holds


@pytest.mark.parametrize(
    ("name", "top_level_return", "expected"),
    [("taco5_recorded", False, (5, 5)), ("apps_train3", False, (32, 35)), ("apps_train3", True, (35, 35))],
)
async def test_recorded_programs_get_their_recorded_verdicts_all_with_top_level_return(
    name, top_level_return, expected
):
    path = SHARED / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} lies beside the checkout and is not on this machine")
    async with LocalJudge(JudgeSettings(allow_top_level_return=top_level_return)) as judge:
        programs, differences = await recheck(path, judge)
    assert (programs - len(differences), programs) == expected


def test_check_recorded_command_has_the_variables_settings_and_names_differences_and_bad_files(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COBALT_JUDGE_COMPARISON", "float")
    tests = {"test_cases": {"inputs": [""], "outputs": ["1.0"]}}
    record = tests | {"recorded_response": "```python\nprint(1.0000000001)\n```"}
    records = [record | {"id": number, "recorded_all_tests_pass": number == 1} for number in range(2)]
    file = write_lines(tmp_path / "recorded.jsonl", records)
    assert asyncio.run(CheckRecorded(file).run()) == 1
    said = capsys.readouterr().out
    assert " 0: " in said.splitlines()[0] and "1 of 2" in said
    with pytest.raises(UserError, match="none"):
        asyncio.run(CheckRecorded(tmp_path / "none").run())


async def test_a_large_input_leaves_the_next_test_and_program_their_limits():
    """The kernel refuses a limit below the memory in use, and the memory of a large input is not freed at once."""
    async with LocalJudge(JudgeSettings(concurrency=1, memory_bytes=65 << 20)) as judge:
        large = await judge.judge("print('held')", TestSuite(("x" * (90 << 20), "b"), ("held", "held")))
        small = await judge.judge("print('held')", TestSuite(("",), ("held",)))
        own = [Path(folder) for folder, *_ in os.walk("/sys/fs/cgroup") if f"judge-{os.getpid()}-" in folder]
        files = [file for folder in own for file in (folder / "memory.max", folder / "memory.limit_in_bytes")]
        limits = [int(file.read_text()) for file in files if file.exists()]
    assert [*large.passing, *small.passing] == [True, True, True]
    assert not limits or (65 << 20) + OVERHEAD_BYTES in limits
    assert judge.restarts == 0


async def test_a_bug_of_the_judge_leaves_no_sandbox_with_a_program_in_it(monkeypatch):
    """It fails one test while the large output of another is compared in a thread."""
    failed, compared = threading.Event(), []

    def grade(run, *_):
        if len(run.stdout) > LARGE_OUTPUT:
            failed.wait(10)
            time.sleep(0.2)
            compared.append(run)
        failed.set()
        raise ZeroDivisionError

    async with LocalJudge(JudgeSettings(concurrency=2)) as judge:
        with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
            patched.setattr("cobalt.judge.local.grade", grade)
            await judge.judge("print('x' * 100000 if input() == '0' else 1)", TestSuite(tuple("01234"), ("1",) * 5))
        assert compared, "a sandbox is in use"
        results = await asyncio.gather(*(judge.judge("print(2)", TestSuite(("",), ("2",))) for _ in range(2)))
    assert all(result.all_passed for result in results)
