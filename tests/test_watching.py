"""A training run's signs of work: written cheaply, added up on one line; a run hangs when it does nothing."""

import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from rich.logging import RichHandler

from cobalt.stage.errors import InfrastructureError
from cobalt.training import activity, watching
from cobalt.training.configuration import process_environment
from cobalt.training.heartbeat import HEARTBEAT_VARIABLE, Heartbeat, heartbeat_folder, parse
from cobalt.training.progress import phase_reporter
from cobalt.training.watching import BUSY_LIMITS, watch

LIMIT = 3.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.fixture(autouse=True)
def _short_end(monkeypatch):
    # Under a shell's background job programs ignore the interrupt, and are killed.
    monkeypatch.setattr(watching, "_END_SECONDS", 2)


def watched(tmp_path, code, hang_limit=30.0):
    """Watch a program, whose time to start does not count: it says when it has."""
    variable = {HEARTBEAT_VARIABLE: str(heartbeat_folder(tmp_path))}
    command = [sys.executable, "-uc", f"import time\nfrom cobalt_verl import heartbeat\nprint('started')\n{code}"]
    return watch(command, os.environ | variable, tmp_path, hang_limit)


def write_sign(folder, name, **fields):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"host": socket.gethostname(), "pid": 0} | fields))


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """A function that makes nvidia-smi report how busy GPUs are, in percent."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def report(*percents):
        lines = [f"{index}, GPU-{index}aa-bb, {percent}" for index, percent in enumerate(percents)]
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "nvidia-smi"
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        program.chmod(0o755)

    return report


# --- the child process


def test_the_exit_code_is_that_of_the_driver(tmp_path):
    assert watched(tmp_path, "print('done')") == 0
    assert watched(tmp_path, "raise SystemExit(3)") == 3
    assert watched(tmp_path, "import os; os.kill(os.getpid(), 9)") == 137
    assert (tmp_path / "train.log").read_text().splitlines() == ["started", "done", "started", "started"]


def test_the_error_that_is_reported_is_of_this_run_and_no_warning(tmp_path, caplog):
    (tmp_path / "train.log").write_text("ValueError: of an earlier run\n")
    warnings = (
        "UserWarning: no ImportError",
        "(Storage pid=7) 2026-01-01 12:00:00 - WARNING - retrying after a TimeoutError",
        "[rank0]:[W1010 12:00:00.1 store.cpp:5] recvValue failed: DistNetworkError",
        "(autoscaler +5m) Warning: a resource request cannot be scheduled: ActorError",
    )
    assert (
        watched(tmp_path, f"print('KeyError: of this run\\n' + {chr(10).join(warnings)!r}); raise SystemExit(3)") == 3
    )
    assert "KeyError: of this run" in caplog.text
    assert watched(tmp_path, "raise SystemExit(4)") == 4
    assert not re.search("Error", caplog.records[-1].getMessage())


def test_a_driver_that_hangs_is_ended_with_the_workers_error_and_leaves_no_child(tmp_path):
    code = """
import subprocess, sys
print("\\x1b[36m(Worker pid=1)\\x1b[0m ValueError: no such layer")
print("waiting", subprocess.Popen(["sleep", "600"]).pid)
time.sleep(600)
"""
    with pytest.raises(InfrastructureError, match="3 s.*ValueError: no such layer"):
        watched(tmp_path, code, LIMIT)
    said = (tmp_path / "train.log").read_text()
    sleeper = int(re.search(r"waiting (\d+)", said)[1])
    state = Path(f"/proc/{sleeper}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


# --- what counts as work


def test_a_silent_run_that_gets_on_is_not_ended(tmp_path):
    code = """
heartbeat.begin("generate", 1, steps=2)
for done in range(13):
    heartbeat.update(samples=done, samples_of=13)
    time.sleep(0.4)
"""
    assert watched(tmp_path, code, LIMIT) == 0


def test_a_run_that_does_nothing_is_ended_and_the_message_says_where_it_stood(tmp_path):
    code = """
print("RuntimeError: of an earlier phase, which did no harm")
time.sleep(1)
heartbeat.begin("update", 3, steps=16, batches=2)
heartbeat.update(batch=1, micro_batch=12, micro_batches=64)
time.sleep(600)
"""
    with pytest.raises(
        InfrastructureError, match="step 3 of 16, update.* mini-batch 1 of 2, micro-batch 12 of 64"
    ) as it:
        watched(tmp_path, code, LIMIT)
    assert "RuntimeError" not in str(it.value)


def test_warnings_that_come_again_and_again_are_no_sign_of_life(tmp_path):
    with pytest.raises(InfrastructureError):
        watched(tmp_path, "while True:\n    print('WARNING: no samples yet')\n    time.sleep(0.3)", LIMIT)


def test_a_silent_run_on_a_busy_gpu_is_not_ended(tmp_path, gpus):
    gpus(0, 97)
    assert watched(tmp_path, f"time.sleep({1.7 * LIMIT})", LIMIT) == 0


@pytest.mark.parametrize("mine", ["1", "GPU-1aa"])
def test_work_of_others_on_their_gpus_does_not_keep_a_hung_run(tmp_path, gpus, mine):
    gpus(97, 0)
    code = f"__import__('os').environ['CUDA_VISIBLE_DEVICES'] = {mine!r}\nheartbeat.begin('update', 1)\ntime.sleep(600)"
    with pytest.raises(InfrastructureError, match="no work"):
        watched(tmp_path, code, LIMIT)


def test_a_gpu_of_which_nvidia_smi_cannot_tell_the_use_may_be_working(tmp_path, gpus):
    gpus("[N/A]")
    assert watched(tmp_path, f"time.sleep({1.7 * LIMIT})", LIMIT) == 0


def test_nvidia_smi_that_hangs_hangs_nothing(tmp_path, gpus, monkeypatch):
    gpus(97)
    (tmp_path / "bin" / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 30\n")
    monkeypatch.setattr(activity, "_SMI_SECONDS", 0.5)
    with pytest.raises(InfrastructureError):
        watched(tmp_path, "time.sleep(600)", LIMIT)


@pytest.mark.parametrize("child", [False, True])
def test_a_silent_run_that_computes_is_not_ended(tmp_path, monkeypatch, child):
    monkeypatch.setattr(activity, "_CORES", 0.05)  # of a machine that may have other work
    code = f"end = time.monotonic() + {1.7 * LIMIT}\nwhile time.monotonic() < end: pass"
    if child:
        code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {'import time; ' + code!r}])"
    assert watched(tmp_path, code, LIMIT) == 0


def test_a_run_that_is_busy_but_never_gets_on_is_ended_in_the_end(tmp_path, gpus):
    gpus(100)
    began = time.monotonic()
    with pytest.raises(InfrastructureError, match="no progress"):
        watched(tmp_path, "time.sleep(600)", 1.0)
    assert time.monotonic() - began > BUSY_LIMITS


def test_work_on_other_nodes_may_go_on_unseen(tmp_path):
    code = """
import json, os, pathlib
fields = {"host": "elsewhere", "pid": 1, "phase": "update", "step": 1, "steps": 2}
pathlib.Path(os.environ["COBALT_HEARTBEAT"], "elsewhere-1.json").write_text(json.dumps(fields))
time.sleep(5)
"""
    assert watched(tmp_path, code, LIMIT) == 0


# --- reading


def test_the_line_adds_up_what_the_processes_of_a_phase_say(tmp_path):
    now = 100.0
    heartbeat = Heartbeat(tmp_path / "heartbeat", lambda: now)
    assert not heartbeat.look()
    write_sign(tmp_path / "heartbeat", "leader", step=3, steps=16, phase="update", batches=2)
    for rank in range(4):
        fields = {"batch": 2, "micro_batch": 10 + rank, "micro_batches": 64, "tokens": 1000}
        write_sign(tmp_path / "heartbeat", f"rank{rank}", step=3, phase="update", gpus=str(rank), **fields)
    write_sign(tmp_path / "heartbeat", "late", step=3, phase="reference", micro_batch=5, micro_batches=5, tokens=9)
    assert heartbeat.look() and not heartbeat.look()
    assert heartbeat.gpus == {"0", "1", "2", "3"}
    now += 200
    assert heartbeat.line() == "step 3 of 16, update: mini-batch 2 of 2, micro-batch 46 of 256, 20 tokens/s, 3 min"
    write_sign(
        tmp_path / "heartbeat",
        "leader",
        step=4,
        steps=16,
        phase="generate",
        samples=512,
        samples_of=2048,
        tokens=91_500,
    )
    assert heartbeat.look()
    now += 50
    assert heartbeat.line() == "step 4 of 16, generate: 512 of 2,048 samples, 1,830 tokens/s, 50 s"


@pytest.mark.parametrize(
    "content",
    [b"", b'{"phase": "upd', b"\xff\xfe", b"[1]", b"7", b'{"step": "three"}', b'{"phase": 3}', b'{"tokens": -1}',
     b'{"step": null}', b'{"samples": 1e999}', b"[" * 100_000],
)  # fmt: skip
def test_a_torn_or_foreign_file_does_no_harm(tmp_path, content):
    heartbeat = Heartbeat(tmp_path)
    (tmp_path / "foreign.json").write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    assert parse(content) is None
    assert not heartbeat.look() and not heartbeat.elsewhere
    write_sign(tmp_path, "leader", step=1, steps=2, phase="generate")
    assert heartbeat.look() and heartbeat.state.step == 1


def test_a_run_does_not_begin_with_the_signs_of_an_earlier_one(tmp_path):
    write_sign(tmp_path, "old", step=9, steps=9, phase="update")
    assert not Heartbeat(tmp_path).look()


# --- writing


def in_process(code, folder, variables=None):
    environment = os.environ | (variables or {}) | {HEARTBEAT_VARIABLE: str(folder)}
    finished = subprocess.run(
        [sys.executable, "-c", f"import os, time\nfrom cobalt_verl import heartbeat\n{code}"],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert not finished.returncode and "Traceback" not in finished.stderr, finished.stderr
    return finished.stdout


def test_reporting_often_writes_seldom_and_the_last_word_is_written(tmp_path):
    code = """
heartbeat.begin("update", 1)
began = time.perf_counter()
for number in range(100_000):
    heartbeat.update(micro_batch=number, micro_batches=100_000)
print((time.perf_counter() - began) / 100_000)
time.sleep(2.5)
"""
    versions, ended = set(), threading.Event()

    def look():
        while not ended.wait(0.01):
            versions.update(path.read_bytes() for path in tmp_path.glob("*.json"))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        seconds = float(in_process(code, tmp_path))
    finally:
        ended.set()
        reader.join()
    assert seconds < 1e-3
    (sign,) = (parse(path.read_bytes()) for path in tmp_path.iterdir())
    assert sign.micro_batch == 99_999
    assert len(versions) < 20


def test_the_last_word_of_a_process_that_ends_is_written(tmp_path):
    code = """
heartbeat.begin("update", 1)
for number in range(8):
    heartbeat.update(micro_batch=number, micro_batches=8)
    time.sleep(0.1)

"""
    in_process(code, tmp_path)
    (sign,) = (parse(path.read_bytes()) for path in tmp_path.iterdir())
    assert sign.micro_batch == 7


def test_a_disk_that_refuses_does_not_stop_the_work(tmp_path):
    folder = tmp_path / "not yet there"
    code = f"""
heartbeat.begin("update", 1)
time.sleep(0.5)
os.mkdir({str(folder)!r})
heartbeat.update(micro_batch=1)
time.sleep(1.5)
"""
    in_process(code, folder)
    (sign,) = (parse(path.read_bytes()) for path in folder.iterdir())
    assert sign.micro_batch == 1


def test_a_fork_has_a_file_of_its_own(tmp_path):
    code = """
heartbeat.begin("generate", 1, steps=2)
time.sleep(0.5)
if os.fork() == 0:
    heartbeat.begin("update", 1)
    time.sleep(0.5)
    os._exit(0)
os.wait()
"""
    in_process(code, tmp_path)
    assert {parse(path.read_bytes()).phase for path in tmp_path.iterdir()} == {"generate", "update"}


def test_what_was_counted_in_a_phase_stays_in_the_file_until_the_next_step(tmp_path):
    code = """
heartbeat.begin("generate", 1, steps=2)
heartbeat.update(samples=8, samples_of=8, tokens=99)
heartbeat.begin("weights", 1, steps=2)
heartbeat.begin("update", 1, steps=2)
time.sleep(0.5)
for path in os.scandir(os.environ["COBALT_HEARTBEAT"]):
    print(open(path.path).read())
heartbeat.begin("generate", 2, steps=2)
time.sleep(1.5)
"""
    in_step_1 = json.loads(in_process(code, tmp_path))
    assert in_step_1["finished"] == {"generate": {"samples": 8, "samples_of": 8, "tokens": 99}}
    (path,) = tmp_path.iterdir()
    assert "finished" not in json.loads(path.read_bytes())


def test_without_the_variable_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    in_process("heartbeat.begin('update', 1); heartbeat.add_tokens(3); time.sleep(0.5)", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(300)
def test_the_engines_micro_batches_are_reported_with_the_phase_of_their_batch(tmp_path):
    pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")
    code = """
import inspect, torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp import transformer_impl
from cobalt_verl.micro_batches import TAG, report_micro_batches, tag

report_micro_batches()
report_micro_batches()
rows = [torch.arange(length) for length in (3, 5, 2, 7)]
data = TensorDict({"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}, batch_size=4)
tensordict_utils.assign_non_tensor(data, use_dynamic_bsz=False, micro_batch_size_per_gpu=1, **{TAG: tag(3, "update")})
for done in (4, 3):
    micro_batches, _ = transformer_impl.prepare_micro_batches(data=data, dp_group=None, same_micro_num_in_dp=True)
    for _ in zip(micro_batches, range(done)):
        pass
time.sleep(1.5)
print(inspect.getsource(transformer_impl.FSDPEngine.forward_backward_batch))
"""
    source = in_process(code, tmp_path, process_environment(tmp_path, on_cpu=True))
    (sign,) = (parse(path.read_bytes()) for path in tmp_path.iterdir())
    assert (sign.step, sign.phase, sign.batch, sign.micro_batch, sign.micro_batches) == (3, "update", 2, 3, 4)
    assert sign.tokens == 17 + 3 + 5 + 2
    assert "prepare_micro_batches(" in source and "in enumerate(micro_batches)" in source


# --- the line for the user


@pytest.fixture
def root_handlers():
    """The root logger's handlers, which the test may change."""
    root = logging.getLogger()
    before = root.handlers[:]
    yield root
    root.handlers[:] = before


def test_without_a_terminal_each_change_is_a_line_of_the_log(tmp_path, caplog):
    heartbeat, written = Heartbeat(tmp_path), []
    with caplog.at_level("INFO"), phase_reporter(heartbeat, written.append, seconds=0) as show:
        for samples in (1, 1, 2):
            write_sign(tmp_path, "leader", step=1, steps=2, phase="generate", samples=samples, samples_of=8)
            heartbeat.look()
            show()
    assert [re.search(r"(\d) of 8 samples", line)[1] for line in written] == ["1", "2"]
    assert [record.getMessage() for record in caplog.records] == written


def test_on_a_terminal_the_line_stays_and_the_log_file_gets_its_lines(tmp_path, caplog, root_handlers):
    screen = io.StringIO()
    root_handlers.addHandler(RichHandler(console=Console(file=screen, force_terminal=True, width=120)))
    heartbeat, written = Heartbeat(tmp_path), []
    with caplog.at_level("INFO"), phase_reporter(heartbeat, written.append, seconds=0) as show:
        write_sign(tmp_path, "leader", step=1, steps=2, phase="generate", samples=3, samples_of=8)
        heartbeat.look()
        show()
    assert "3 of 8 samples" in screen.getvalue()
    assert len(written) == 1 and not caplog.records
