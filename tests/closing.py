"""The closing lines of `scripts/test.sh`, which runs pytest twice: a plugin that counts, and a program that adds up.

    pytest --closing_record FILE ...         write what became of the tests that were chosen
    python tests/closing.py FOLDER CHECKS    print the sum of the folder's files; CHECKS names other checks that failed

A test of which nothing was reported was not reached: the run was interrupted, or stopped before.
"""

import json
import sys
from collections import Counter
from pathlib import Path

import pytest

INTERRUPTED = 130
"""The exit code of a run that an interrupt ended. pytest's own, 2, is also that of errors during collection."""


def pytest_addoption(parser):
    parser.addoption("--closing_record", metavar="FILE", help="a file for tests/closing.py")


def pytest_configure(config):
    path = config.getoption("--closing_record")
    if path and not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the process that started them
        config.pluginmanager.register(Record(Path(path)))


class Record:
    """What became of each test."""

    def __init__(self, path):
        self.path = path
        self.chosen = set()
        self.outcomes = {}
        self.reasons = {}
        self.interrupted = False

    def pytest_collection_finish(self, session):
        self.chosen |= {item.nodeid for item in session.items}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids):
        self.chosen |= set(ids)

    def pytest_collectreport(self, report):
        if report.failed:
            self.outcomes[report.nodeid] = "failed"

    def pytest_runtest_logreport(self, report):
        if report.failed or (report.when == "call" and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.skipped:
            self.outcomes[report.nodeid] = "skipped"
        if report.skipped and isinstance(report.longrepr, tuple):
            self.reasons[report.nodeid] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_keyboard_interrupt(self, excinfo):
        self.interrupted = excinfo.type is KeyboardInterrupt

    def pytest_sessionfinish(self, session):
        if self.interrupted:
            session.exitstatus = INTERRUPTED
        counts = Counter(self.outcomes.values())
        counts["not reached"] = len(self.chosen - self.outcomes.keys())
        self.path.write_text(json.dumps({"counts": counts, "reasons": Counter(self.reasons.values())}))


def closing_lines(failed_checks, records):
    """The lines that `scripts/test.sh` ends with; the counts are the last one."""
    counts, reasons = Counter(), Counter()
    for record in records:
        counts.update(record["counts"])
        reasons.update(record["reasons"])
    lines = [f"skipped {number} x {reason}" for reason, number in reasons.most_common()]
    lines.append(f"not reached: {counts['not reached']}")
    if failed_checks:
        lines.append(f"failed checks: {failed_checks}")
    return [*lines, "tests: " + ", ".join(f"{counts[name]} {name}" for name in ("passed", "failed", "skipped"))]


if __name__ == "__main__":
    records = [json.loads(path.read_text()) for path in Path(sys.argv[1]).iterdir()]
    sys.stdout.write("\n".join(["", *closing_lines(sys.argv[2], records), ""]))
