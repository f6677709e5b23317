"""Ctrl-C, SIGTERM and kill -9 on commands with engine and judge in their process, and on `cobalt serve`."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from support import ROOT, square_problem, trajectory_record, write_lines

from cobalt.stage.records import read_records

pytestmark = pytest.mark.services

SIGNALS = ["SIGINT to the group", "SIGTERM to the process", "SIGKILL to the process"]
ENDED = {"stop", "length"}
PROGRESS = ("single turn: ", "hidden tests: ")  # of the bar, which a terminal draws over


class Command:
    """A command in a session of its own; every process that it starts has `mark` in its environment or its session."""

    def __init__(self, folder, *words, **environment):
        self.mark = f"COBALT_TEST_MARK={folder}"
        self.messages = folder / "messages"
        outside = os.environ | {"XDG_RUNTIME_DIR": str(folder / "run"), "COBALT_TEST_MARK": str(folder)} | environment
        with self.messages.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cobalt.commands", *map(str, words)],
                cwd=ROOT, env=outside, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
            )  # fmt: skip

    def processes(self):
        """The processes that belong to the command, by id, with their command lines."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                marked = self.mark.encode() in (entry / "environ").read_bytes().split(b"\0")
                if fields[0] != "Z" and (int(fields[3]) == self.process.pid or marked):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def wait_for(self, condition, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.messages.read_text()[-3000:]
            assert time.monotonic() < deadline, self.messages.read_text()[-3000:]
            time.sleep(0.05)  # polling other processes: there is nothing to wait on

    def end(self, how):
        """Send a signal; returns the exit code and the lines that the command wrote from then on."""
        before = self.messages.stat().st_size
        if how == SIGNALS[0]:
            os.killpg(self.process.pid, signal.SIGINT)
        else:
            self.process.send_signal(signal.SIGTERM if how == SIGNALS[1] else signal.SIGKILL)
        self.process.communicate(timeout=60)
        return self.process.returncode, self.messages.read_bytes()[before:].decode().splitlines()

    def assert_nothing_is_left(self, seconds=90):  # vLLM watches its parent once it is imported
        deadline = time.monotonic() + seconds
        while left := self.processes():
            assert time.monotonic() < deadline, left
            time.sleep(0.05)


@contextlib.contextmanager
def running(folder, *words, **environment):
    command = Command(folder, *words, **environment)
    try:
        yield command
    finally:
        for pid in command.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.communicate()


def ends_well(command, how):
    code, said = command.end(how)
    assert code == {SIGNALS[0]: 130, SIGNALS[1]: 130, SIGNALS[2]: -signal.SIGKILL}[how], said
    said = [line for line in said if not line.startswith(PROGRESS)]
    assert len(said) <= 1, said
    command.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("name", "when", "how"),
    [*itertools.product(["sample"], ["start", "sampling"], SIGNALS), *(("try", "start", how) for how in SIGNALS[1:])],
)
def test_a_command_with_its_own_engine_leaves_nothing_and_its_result_goes_on(
    seed_model, services, tmp_path, name, when, how
):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(30)])
    result = tmp_path / "single_turn.jsonl"
    sampling = ["sample", "-i", problems, "-o", result, "--concurrency", "2"]
    words = sampling if name == "sample" else ["try", problems, "-o", tmp_path]
    words += ["-n", "2", "--max_tokens", "96"]
    own = ["--model", seed_model, "--engine", "max_model_len=1024", "--engine", "dtype=float32"]
    with running(tmp_path, *words, *own) as command:
        if when == "start":  # vLLM's process is there, and has not loaded the model
            command.wait_for(
                lambda: any("spawn_main" in line or "EngineCore" in line for line in command.processes().values())
            )
        else:
            command.wait_for(lambda: result.exists() and result.read_bytes().count(b"\n") >= 2)
        ends_well(command, how)
    records = read_records(result, unfinished=True) if result.exists() else []
    assert len(records) < 30 and (when == "start" or len(records) >= 2)
    assert all(set(record["finish_reasons"]) <= ENDED for record in records)
    # The engine and the judge describe themselves alike behind a URL, so that the result goes on with them.
    finished = subprocess.run(
        [sys.executable, "-m", "cobalt.commands", *map(str, words), *(["--samples", "seeded"] if name == "sample" else [])],
        cwd=ROOT, env=os.environ | services, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    by_id = {record["id"]: record for record in read_records(result)}
    assert len(by_id) == 30 and all(by_id[record["id"]] == record for record in records)


@pytest.mark.parametrize("how", SIGNALS)
def test_a_command_that_judges_leaves_nothing_and_its_result_goes_on(tmp_path, how):
    slow = "```python\nimport time\ntime.sleep(0.3)\nprint(int(input()) ** 2)\n```"
    records = [
        trajectory_record(number, [[(0, 0)]], responses=None, raw_responses=[[f"{slow} {number}"]])
        for number in range(40)
    ]
    source, result = write_lines(tmp_path / "m.jsonl", records), tmp_path / "e.jsonl"
    words = ["evaluate", "-i", source, "-o", result, "--concurrency", "2", "--judge", "concurrency=2"]
    with running(tmp_path, *words) as command:
        command.wait_for(lambda: result.exists() and result.read_bytes().count(b"\n") >= 2)
        ends_well(command, how)
    begun = read_records(result, unfinished=True)
    assert 2 <= len(begun) < 40
    with running(tmp_path, *words) as command:
        command.process.communicate(timeout=120)
        assert command.process.returncode == 0, command.messages.read_text()
    ended = read_records(result)
    assert len(ended) == 40 and [one for one in ended if one in begun] == sorted(begun, key=lambda one: one["id"])


@pytest.mark.parametrize("how", SIGNALS)
def test_serve_answers_until_it_is_ended_and_leaves_no_child(tmp_path, how):
    with running(tmp_path, "serve", "--judge", "concurrency=1") as command:
        command.wait_for(lambda: list((tmp_path / "run" / "cobalt").glob("*.json")))
        [state] = (tmp_path / "run" / "cobalt").glob("*.json")
        url = json.loads(state.read_text())["variables"]["COBALT_JUDGE_URL"]
        body = {"code": "print(int(input()) ** 2)", "test_cases": {"inputs": ["2\n"], "outputs": ["4"]}}
        assert httpx.post(url, json=body, timeout=60).json()["passing"] == [True]
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        code, said = command.end(how)
        assert code == (-signal.SIGKILL if how == SIGNALS[2] else 0) and len(said) <= 1, said
        command.assert_nothing_is_left()
        assert (how == SIGNALS[2]) == state.exists()
