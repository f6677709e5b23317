"""CPU time of processes in a step of training (`benchmarks/processes.py`): a busy process is found, and named."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from support import ROOT

from cobalt.errors import UserError

BUSY = "while True: pass"


@pytest.fixture
def processes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import processes

    yield processes
    sys.modules.pop("processes", None)


def test_a_busy_process_is_named_with_its_share_of_a_step(processes, tmp_path, capsys, monkeypatch):
    busy = subprocess.Popen([sys.executable, "-c", BUSY])
    looked, look = threading.Event(), processes.spent

    def spent():
        found = look()
        looked.set()
        return found

    def train():
        lines = [f'{{"step": {step}}}\n' for step in range(4)]  # that of step 0 is a validation
        metrics.write_text("".join(lines[:2]))
        try:
            assert looked.wait(60)
            until = psutil.Process(busy.pid).cpu_times().user + 1
            while psutil.Process(busy.pid).cpu_times().user < until:
                time.sleep(0.02)
        finally:  # the command waits for them
            metrics.write_text("".join(lines))

    monkeypatch.setattr(processes, "spent", spent)
    metrics = tmp_path / "metrics.jsonl"
    training = threading.Thread(target=train)
    try:
        training.start()
        assert processes.main(processes.Arguments(tmp_path, first=1, last=3)) == 0
    finally:
        training.join()
        busy.kill()
        busy.wait()
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("a step: ")
    (found,) = (line for line in lines if line.endswith(f"{Path(sys.executable).name} -c {BUSY}"))
    assert float(found.split()[0]) >= 0.5  # of two steps, in which it had a second or more


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 3), (4, 3)])
def test_steps_that_are_no_range_are_refused(processes, tmp_path, first, last):
    with pytest.raises(UserError):
        processes.main(processes.Arguments(tmp_path, first, last))


def test_a_run_that_is_past_the_first_step_is_refused(processes, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": 3}\n')
    with pytest.raises(UserError, match="step 3"):
        processes.main(processes.Arguments(tmp_path, first=2, last=8))
