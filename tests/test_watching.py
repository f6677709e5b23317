"""A watched training run: its log, its messages, its end; it hangs when it has no new phase line and no new step."""

import os
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support import alive

from cobalt.stage.errors import InfrastructureError
from cobalt.training import watching
from cobalt.training.configuration import process_environment
from cobalt.training.watching import watch

LIMIT = 5.0  # in which Python starts, on a busy machine as well
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHILD = """
import json, os, pathlib, signal, subprocess, sys, time
def phase(words):
    print("(TaskRunner pid=7) [progress]", words)
def metrics(text):
    with open("metrics.jsonl", "a") as file:
        file.write(text)
def step(number, **values):
    metrics(json.dumps({"step": number, "metrics": values}) + chr(10))
"""


def watched(folder, code, hang_limit=30.0):
    """Watch a program that has the functions of CHILD and runs in the run's folder."""
    program = f"import os\nos.chdir({str(folder)!r})\n{CHILD}{code}"
    return watch([sys.executable, "-uc", program], dict(os.environ), folder, hang_limit)


def survivors(folder):
    """The processes of TREE that do not end within a few seconds."""
    pids, deadline = [*map(int, (folder / "pids").read_text().split())], time.monotonic() + 5
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]


# --- the child process


def test_the_log_is_appended_to_without_colours(tmp_path):
    (tmp_path / "train.log").write_text("an earlier run\n")
    assert watched(tmp_path, "print('\\x1b[36m(Worker pid=1)\\x1b[0m works'); print('no end of line', end='')") == 0
    assert (tmp_path / "train.log").read_text() == "an earlier run\n(Worker pid=1) works\nno end of line"


def test_the_error_that_is_reported_is_the_last_of_this_run_and_no_warning(tmp_path, caplog):
    (tmp_path / "train.log").write_text("ValueError: of an earlier run\n")
    lines = (
        "IndexError: first",
        "(Worker pid=1) KeyError: last",
        "UserWarning: no ImportError",
        "(Storage pid=7) 2026-01-01 12:00:00 - WARNING - retrying after a TimeoutError",
        "[rank0]:[W1010 12:00:00.1 store.cpp:5] recvValue failed: DistNetworkError",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    )
    assert watched(tmp_path, f"print({chr(10).join(lines)!r}); raise SystemExit(4)") == 4
    [record] = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "(Worker pid=1) KeyError: last" in record and "4" in record and "train.log" in record
    assert len(re.findall(r"\w+Error", record)) == 1
    assert watched(tmp_path, "raise SystemExit(5)") == 5
    assert not re.search("Error", caplog.records[-1].getMessage())


# --- what counts as progress


FOREVER = "while True:\n    {}\n    time.sleep(0.1)"
GOES_ON = f"for n in range(12):\n    {{}}\n    time.sleep(0.1 * {LIMIT})"
PROGRESS = {
    "phases": "phase(f'step 1 of 2, update, mini-batch 1, micro-batch {n} of 9')",
    "phases after a bar": "print(f'Loading: {n}%|', end='\\r'); phase(f'step 1 of 2, sampling, {n} of 9 samples')",
    "steps": "step(n + 2)",
}
REPEATED = {
    "nothing": "pass",
    "busy": "sum(range(10**6))",
    "a client that tries again": "print('WARNING: no samples yet,', time.monotonic())",
    "no phase": "print('step 1 of 2, sampling', time.monotonic())",
    "a phase": "phase('step 1 of 2, update')",
    "two phases": "phase('step 1 of 2, sampling'); phase('step 1 of 2, update')",
    "a line without an end": "metrics('{')",
}
HANGS = """
print("ValueError: no such layer")
phase("step 3 of 16, sampling, 8 of 8 samples")
phase("step 3 of 16, update")
print("(WorkerDict pid=8) [progress] step 3 of 16, update, mini-batch 1, micro-batch 12 of 64")
print("(WorkerDict pid=8) [progress] step 3 of 16, log-probs, mini-batch 1, micro-batch 8 of 8")  # which was held back
time.sleep(600)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Of programs that are watched at the same time: the exit code or the error, the seconds until then, the folder."""

    def outcome(code):
        folder, began = tmp_path_factory.mktemp("watched"), time.monotonic()
        try:
            return watched(folder, code, LIMIT), time.monotonic() - began, folder
        except InfrastructureError as error:
            return str(error), time.monotonic() - began, folder

    programs = {name: GOES_ON.replace("{}", code, 1) for name, code in PROGRESS.items()} | {"hangs": HANGS}
    programs |= {name: FOREVER.replace("{}", code, 1) for name, code in REPEATED.items()}
    with ThreadPoolExecutor(len(programs)) as pool:
        return dict(zip(programs, pool.map(outcome, programs.values()), strict=True))


@pytest.mark.parametrize("name", [*PROGRESS, *REPEATED])
def test_a_run_is_ended_if_it_repeats_itself_and_not_if_it_has_new_phase_lines_or_new_steps(outcomes, name):
    said, seconds, _ = outcomes[name]
    if name in PROGRESS:
        assert said == 0
    else:
        assert "--hang_limit" in str(said) and LIMIT < seconds < LIMIT + 13


def test_the_message_of_a_hang_names_the_phase_the_log_and_the_last_error(outcomes):
    said, _, folder = outcomes["hangs"]
    assert "step 3 of 16, update, mini-batch 1, micro-batch 12 of 64" in said and "ValueError: no such layer" in said
    assert str(folder / "train.log") in said and "\n" not in said


def test_each_phase_and_each_new_step_is_a_message_once(tmp_path, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "metrics": {"reward/score": 0.125}}\n')
    code = """
for words in ("step 1 of 2, update", "step 1 of 2, update", "step 1 of 2, metrics"):
    phase(words)
step(1, **{"reward/score": 0.25, "reward/acc": 0.5, "timing_s/step": 3.14, "val-core/pocket/acc/mean@1": 0.4})
metrics('{"step": 2, "met')
time.sleep(1.2)
metrics('rics": {"reward/score": 0.75}}' + chr(10))
"""
    with caplog.at_level("INFO"):
        assert watched(tmp_path, code) == 0
    said = [record.getMessage() for record in caplog.records]
    assert [line for line in said if "1 of 2" in line] == ["step 1 of 2, update", "step 1 of 2, metrics"]
    steps = [line for line in said if re.match(r"step \d:", line)]
    assert [re.findall(r"\d+\.\d+", line) for line in steps] == [["0.250", "50.0", "3.1", "40.0"], ["0.750"]]


# --- the end of the process tree

TREE = """
own = subprocess.Popen(["sleep", "600"], start_new_session=True).pid  # torchrun starts its ranks like this
pathlib.Path("pids").write_text(f"{os.getpid()} {subprocess.Popen(['sleep', '600']).pid} {own}")
"""


@pytest.mark.parametrize("asked", ["pass", "signal.signal(signal.SIGINT, signal.SIG_IGN)"])
def test_a_hung_run_leaves_no_process(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(watching, "END_SECONDS", 1)
    with pytest.raises(InfrastructureError):
        watched(tmp_path, f"{TREE}{asked}\ntime.sleep(600)", LIMIT)
    assert not survivors(tmp_path)


def test_a_killed_command_leaves_none_of_its_process_group(tmp_path):
    assert watched(tmp_path, TREE.replace("start_new_session=True", "") + "os.kill(os.getpid(), 9)") == 137
    assert not survivors(tmp_path)


def test_an_interrupt_ends_the_run_in_order(tmp_path):
    code = """
try:
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)
except KeyboardInterrupt:
    print("left in order")
"""
    with pytest.raises(KeyboardInterrupt):
        watched(tmp_path, code)
    assert (tmp_path / "train.log").read_text() == "left in order\n"


# --- the lines of veRL's processes


def test_a_process_prints_the_latest_line_after_a_while_and_nothing_when_nothing_is_new(tmp_path):
    code = """
import time
from cobalt_verl import progress
progress.LINE_SECONDS = 1.0
progress.begin("start")
time.sleep(0.5)
for count in range(500):
    progress.add(f"{count} of 500 samples")
print(progress.begin("sampling", 3, 16))
for count in range(500):
    progress.add(f"{count} of 500 samples")
for _ in range(30):
    progress.add("499 of 500 samples")
    time.sleep(0.1)
progress.begin("update", 3, 16)
time.sleep(2)
"""
    environment = os.environ | process_environment(tmp_path, on_cpu=True)
    assert watch([sys.executable, "-uc", code], environment, tmp_path, 100) == 0
    assert re.findall(r"^(?:\[progress\] )?(?:start|step .*)$", (tmp_path / "train.log").read_text(), re.MULTILINE) == [
        "[progress] start",
        "step 3 of 16, sampling",
        "[progress] step 3 of 16, sampling, 499 of 500 samples",
        "[progress] step 3 of 16, update",
    ]
