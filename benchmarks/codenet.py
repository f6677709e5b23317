"""Speed and memory of preproc_codenet.py on files in the form of Project CodeNet.

    python benchmarks/codenet.py [--problems 100] [--submissions 800] [--pages codenet_problem_descriptions.tar.gz]

Writes a folder (`synthetic_codenet.py`), and runs the script on a quarter of the problems and on all of them, and on
the same files as a tar.gz. If memory does not grow with the number of problems, files are read as a stream. The rate is
that of all Python submissions that are read, with the start of the script and the reading of the pages.
"""

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from synthetic_codenet import write_codenet

from cobalt.cli import run_script

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "preproc" / "preproc_codenet.py"


@dataclass(frozen=True)
class Arguments:
    """Measure the preprocessing of CodeNet."""

    problems: int = 100
    """Number of problems in the larger data set."""
    submissions: int = 800
    """Number of Python submissions of each problem (about the mean of the real data)."""
    pages: Path | None = ROOT.parent / "shared" / "data" / "codenet_problem_descriptions.tar.gz"
    """Archive of real problem pages; without it, pages are made up."""
    folder: Path | None = None
    """Folder for the files, which are removed; a temporary folder by default."""
    model_name: str | None = None
    """A policy whose tokenizer measures lengths; default: none does."""


def main(arguments: Arguments) -> int:
    """Measure, print, and return the exit code."""
    pages = arguments.pages if arguments.pages is not None and arguments.pages.exists() else None
    load = f"load average {os.getloadavg()[0]:.1f} before"
    print(f"{len(os.sched_getaffinity(0))} cores, {load}; pages: {'made up' if pages is None else 'real'}")
    print("input     problems  submissions  groups  seconds  CPU seconds  a second  peak MiB")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        few, many = Path(name) / "few", Path(name) / "many"
        write_codenet(few, max(1, arguments.problems // 4), arguments.submissions, pages)
        write_codenet(many, arguments.problems, arguments.submissions, pages)
        packed = Path(name) / "many.tar.gz"
        with tarfile.open(packed, "w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as tar:
            tar.add(many, "Project_CodeNet")
        for kind, source in (("folder", few), ("folder", many), ("tar.gz", packed)):
            _measure(kind, source, Path(name) / f"out-{source.name}", arguments.model_name)
    return 0


def _measure(kind: str, source: Path, output: Path, model_name: str | None) -> None:
    command = [sys.executable, str(SCRIPT), "-i", str(source), "-o", str(output), "--without_samples", "keep"]
    command += [] if model_name is None else ["--model_name", model_name]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status != 0:
        raise SystemExit(f"the script ended with status {status}; nothing was measured")
    summary = json.loads((output / "train.run.json").read_text(encoding="utf-8"))["summary"]
    read, problems = summary["programs"]["read"], summary["problems"]["read"]
    cpu = usage.ru_utime + usage.ru_stime
    row = f"{problems:8}  {read:11,}  {sum(summary['groups'].values()):6,}  {seconds:7.1f}  {cpu:11.1f}"
    print(f"{kind:8}  {row}  {read / seconds:8,.0f}  {usage.ru_maxrss / 1024:8.0f}", flush=True)


if __name__ == "__main__":
    run_script(Arguments, main)
