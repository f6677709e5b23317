"""Run a training command as a watched child process: its output in the log, its progress shown, a hang noticed.

A run hangs when it has made no progress for the limit: no new line of the metrics file, and no phase line with a text
that it has not printed before. `cobalt_verl.progress` prints phase lines, which have counts and no times:
`[progress] step 3 of 16, update, mini-batch 1, micro-batch 40 of 64`. All other output counts for nothing.
"""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import IO

import psutil

from cobalt.report.curves import METRICS, validation_solved
from cobalt.stage.errors import InfrastructureError

logger = logging.getLogger(__name__)

END_SECONDS = 15  # that the command has to end after SIGINT

_ESCAPES = re.compile(rb"\x1b\[[0-9;]*m")
_PHASE = re.compile(rb"(\(WorkerDict )?.*\[progress\] (.+)")  # Ray puts the name of the process in front
_WARNING = re.compile(r"\bWARN(ING)?\b|Warning\b|\[W\d{4}\b")  # of Python, Ray, veRL, vLLM and torch
_ERROR = re.compile(r"\b(?!ChildFailed)\w*(Error|Exception)\b")  # torchrun adds a ChildFailedError to a rank's error

_WORDS = {
    "reward/score": "mean reward {:.3f}",
    "reward/acc": "{:.1%} solved",
    "actor/loss": "loss {:.4f}",  # offline training, where a step has a response to train on
    "training/response_tokens": "{:.0f} response tokens",
    "timing_s/step": "{:.1f} s",
    "validation/accepted_log_prob": "validation: accepted responses {:.4f} nats a token",
    "validation/other_log_prob": "others {:.4f}",
}
"""Metrics of a step that are shown, in this order."""


def watch(command: list[str], environment: dict[str, str], output: Path, hang_limit: float) -> int:
    """Run a command with its output in the `train.log` of a run's folder, and end it when it hangs.

    The log is appended to, without colours. New phase lines and steps are logged as messages, and the last error in
    the log where the command fails. Raises InfrastructureError after `hang_limit` seconds without progress.

    Returns:
        Its exit code; 128 + N when signal N ended it.
    """
    path, metrics = output / "train.log", output / METRICS
    reported = metrics.stat().st_size if metrics.exists() else 0
    phases = {"start": False}  # in the order of their lines: whether it is a worker's
    with path.open("ab") as log:
        begin = path.stat().st_size
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
        reader = threading.Thread(target=_copy, args=(child.stdout, log, phases), daemon=True)
        reader.start()
        progress, progressed = (reported, len(phases)), time.monotonic()
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(timeout=min(1.0, hang_limit / 20))
                    break
                reported = _report_steps(metrics, reported)
                if progress != (reported, len(phases)):
                    progress, progressed = (reported, len(phases)), time.monotonic()
                elif time.monotonic() - progressed > hang_limit:
                    raise InfrastructureError(
                        f"training hung ({_last_phase(phases)}) and was ended: no progress for {hang_limit:g} s"
                        f" (--hang_limit){_last_error(path, begin)}; the log is {path}"
                    )
        finally:
            _end(child)
            reader.join(timeout=END_SECONDS)
            _report_steps(metrics, reported)
        if code:
            logger.error("training ended with exit code %d%s; the log is %s", code, _last_error(path, begin), path)
        return code if code >= 0 else 128 - code


def _last_phase(phases: dict[str, bool]) -> str:
    """The trainer's last phase, with the worker's counts if they are of this phase: a worker's line may be late."""
    said = list(phases.items())  # at once, because another thread adds to them
    of_trainer = [phase for phase, of_worker in said if not of_worker][-1]
    return [phase for phase, _ in said if phase.startswith(of_trainer)][-1]


def _copy(stdout: IO[bytes], log: IO[bytes], phases: dict[str, bool]) -> None:
    """Write each line into the log; add each phase that is not among the phases yet, and show it."""
    for line in stdout:
        plain = _ESCAPES.sub(b"", line)
        log.write(plain)
        log.flush()
        match = _PHASE.search(plain)
        phase = match[2].decode("utf-8", "replace").strip() if match else ""
        if match and phase and phase not in phases:
            phases[phase] = match[1] is not None
            logger.info("%s", phase)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the command by SIGINT, so that it can leave Ray in order; kill what is left of it and of its children."""
    children: list[psutil.Process] = []
    if child.poll() is None:
        children = psutil.Process(child.pid).children(recursive=True)  # some have a process group of their own
        child.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    for process in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()


def _last_error(log: Path, begin: int) -> str:
    """The last line of the log from byte `begin` on that names an error, as the end of a sentence; "" without one."""
    lines = log.read_bytes()[begin:].decode("utf-8", "replace").splitlines()
    errors = [line.strip() for line in lines if _ERROR.search(line) and not _WARNING.search(line)]
    return f"; its last error: {errors[-1]}" if errors else ""


def _report_steps(metrics: Path, begin: int) -> int:
    """Log a line for each whole line of the metrics file from byte `begin` on; returns the byte after them."""
    if not metrics.exists():
        return begin
    with metrics.open("rb") as file:
        file.seek(begin)
        lines = [line for line in file if line.endswith(b"\n")]
    for record in map(json.loads, lines):
        values, solved = record["metrics"], validation_solved(record["metrics"])
        words = [text.format(values[name]) for name, text in _WORDS.items() if name in values]
        words += [] if solved is None else [f"validation {solved:.1%} solved"]
        logger.info("step %d: %s", record["step"], ", ".join(words))
    return begin + sum(map(len, lines))
