"""Run a training command as a watched child process: its output in the log, its progress shown, a hang noticed.

A run hangs when it has made no progress for the limit: no new line of the metrics file, and no phase line with a text
that it has not printed before. `cobalt_verl.progress` prints phase lines, which have counts and no times:
`[progress] step 3 of 16, update, mini-batch 1, micro-batch 40 of 64`. All other output counts for nothing: Ray, vLLM
and clients that try again print while they wait.
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
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from cobalt.report.curves import validation_solved
from cobalt.stage.errors import InfrastructureError
from cobalt.training import run_folder

logger = logging.getLogger(__name__)

END_SECONDS = 15
"""Time that the command has to end after SIGINT."""

_ESCAPES = re.compile(rb"\x1b\[[0-9;]*m")
_PHASE = re.compile(rb"\[progress\] (.+)")  # Ray puts the name of the process in front
_WARNING = re.compile(r"\bWARN(ING)?\b|Warning\b|\[W\d{4}\b")  # of Python, Ray, veRL, vLLM and torch
_ERROR = re.compile(r"\b(?!ChildFailed)\w*(Error|Exception)\b")  # torchrun adds a ChildFailedError to a rank's error


_ALL = 0.9999  # a share of all responses, as a mean of 0.0 and 1.0 in single precision

_WORDS = {
    "reward/score": "mean reward {:.3f}",
    "reward/acc": "{:.1%} solved",
    "actor/loss": "loss {:.4f}",  # offline training, where a step has a response to train on
    "training/response_tokens": "{:.0f} response tokens",
    "timing_s/step": "{:.1f} s",
    "validation/accepted_log_prob": "validation: accepted responses {:.4f} nats a token",
    "validation/other_log_prob": "others {:.4f}",
}
"""What is shown of a step's metrics, in this order."""


def watch(command: list[str], environment: dict[str, str], output: Path, hang_limit: float) -> int:
    """Run a command with its output in the run's `train.log`, and end it when it hangs.

    New phase lines, and a line for each step in the metrics file, are logged as messages.

    Args:
        command: Program and arguments.
        environment: Its whole environment (`cobalt.training.configuration.process_environment`).
        output: The run's folder. The log is appended to, without colours.
        hang_limit: Seconds without progress.

    Returns:
        Its exit code; 128 + N when signal N ended it. If the code is not 0, the last error in the log is reported.

    Raises:
        InfrastructureError: it hung; the message has the phase, the flag, the last error and the log.
    """
    path = output / "train.log"
    report = step_reporter(run_folder.metrics_path(output))
    phases = {"start": None}  # in the order of their lines
    with path.open("ab") as log:
        begin = path.stat().st_size
        child = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, process_group=0
        )
        reader = threading.Thread(target=_copy, args=(child.stdout, log, phases), daemon=True)
        reader.start()
        count, progressed = len(phases), time.monotonic()
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(timeout=min(1.0, hang_limit / 20))
                    break
                if report() or len(phases) > count:
                    count, progressed = len(phases), time.monotonic()
                elif time.monotonic() - progressed > hang_limit:
                    raise InfrastructureError(
                        f"training hung ({list(phases)[-1]}) and was ended: no progress for {hang_limit:g} s"
                        f" (--hang_limit){_last_error(path, begin)}; the log is {path}"
                    )
        finally:
            _end(child)
            reader.join(timeout=END_SECONDS)
            report()
        if code:
            logger.error("training ended with exit code %d%s; the log is %s", code, _last_error(path, begin), path)
        return code if code >= 0 else 128 - code


def _copy(stdout: IO[bytes], log: IO[bytes], phases: dict[str, None]) -> None:
    """Write each line into the log; add each phase that is not among the phases yet, and show it."""
    for line in stdout:
        plain = _ESCAPES.sub(b"", line)
        log.write(plain)
        log.flush()
        match = _PHASE.search(plain)
        phase = match[1].decode("utf-8", "replace").strip() if match else ""
        if phase and phase not in phases:
            phases[phase] = None
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


def step_reporter(metrics: Path) -> Callable[[], bool]:
    """A function that logs a line for each new step in the metrics file, and says whether there was one.

    Args:
        metrics: The file, which need not exist yet; lines that it has at this call are not logged.
    """
    offset = metrics.stat().st_size if metrics.exists() else 0

    def report() -> bool:
        nonlocal offset
        if not metrics.exists():
            return False
        with metrics.open("rb") as file:
            file.seek(offset)
            lines = [line for line in file if line.endswith(b"\n")]
        offset += sum(map(len, lines))
        for record in map(json.loads, lines):
            logger.info("step %d: %s", record["step"], ", ".join(_words(record["metrics"])))
            if record["step"] == 1:
                _warn_of_thinking(record["metrics"])
        return bool(lines)

    return report


def _warn_of_thinking(metrics: dict[str, Any]) -> None:
    """Warn if no response of the first step has the form of a thinking that the reward requires."""
    flawed = metrics.get("reward/flaw_thinking", 0.0)
    if flawed and flawed + metrics.get("reward/no_code", 0.0) > _ALL:
        logger.warning(
            "no program of step 1 has exactly one </think> before it, so that each one loses 0.9 of its reward: if this"
            " model does not think, begin again in another folder with"
            " reward.custom_reward_function.reward_kwargs.require_thinking=false; if it thinks, responses may be cut"
            " off (data.max_response_length)"
        )


def _words(metrics: dict[str, Any]) -> list[str]:
    solved = validation_solved(metrics)
    words = [text.format(metrics[name]) for name, text in _WORDS.items() if name in metrics]
    return words if solved is None else [*words, f"validation {solved:.1%} solved"]
