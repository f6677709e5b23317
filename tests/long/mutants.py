"""Defects that tests notice: a sample of small defects in the packages whose numbers people trust, and which survive.

    pip install coverage pytest-cov
    python tests/long/mutants.py runs/mutants [--tree OTHER_CHECKOUT] [--seed 0] [--number 200]

First the tests without services run once under coverage, which says which test runs which line, and how much of the
library's branches runs in the tests' own processes. Then a defect changes one operator, constant, condition or returned
value of `judge`, `reward`, `selection`, `episode` or `stage`, in a copy of the tree. It is killed if one of the tests
that run its line fails, the quickest first; where no test does, as within the sandbox, or where the line runs when its
module is imported, the files that exercise the package are run. A defect that these tests do not notice in LIMIT
seconds has survived. Some defects change nothing that can be seen, so that the share of the killed is compared with
another tree's, and is not a grade. Wants an idle machine; the same command goes on where it stopped, and prints the
shares. `survivors.jsonl`, beside this file, has what survived in two trees, by commit.
"""

import ast
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Annotated, Any
from xml.etree import ElementTree

import pytest
import tyro

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 60  # seconds of a defect's tests
PACKAGES = {  # tests that exercise the package, for what runs in no test
    "judge": ["test_judge_values", "test_calling", "test_syscall_filter", "test_judge_programs", "test_judge_attacks"],
    "reward": ["test_reward"],
    "selection": ["test_selection"],
    "episode": ["test_conversation", "test_fidelity"],
    "stage": ["test_stage", "test_records", "test_command_line"],
}
OPERATORS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip

LIBRARIES = ["pytest", "hypothesis", "numpy", "pandas", "pyarrow.parquet", "torch", "transformers", "datasets", "tyro"]
SERVER = multiprocessing.get_context("forkserver")  # its children begin with these libraries, which take seconds
SERVER.set_forkserver_preload(LIBRARIES)


def changed(node: ast.AST) -> ast.AST | None:
    """The node with its defect; None for a node that has none."""
    match node:
        case ast.Compare(ops=[operator, *rest]) if type(operator) in OPERATORS:
            return ast.Compare(node.left, [OPERATORS[type(operator)](), *rest], node.comparators)
        case ast.BoolOp(op=operator):
            return ast.BoolOp(OPERATORS[type(operator)](), node.values)
        case ast.BinOp(op=operator) if type(operator) in OPERATORS:
            return ast.BinOp(node.left, OPERATORS[type(operator)](), node.right)
        case ast.UnaryOp(op=ast.Not()):
            return node.operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            return ast.Constant(value + 1)
        case ast.Return(value=ast.AST() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            return ast.Return(ast.Constant(None))
        case ast.Break() | ast.Continue():
            return OPERATORS[type(node)]()
        case ast.If() | ast.IfExp():
            return type(node)(ast.Constant(False), node.body, node.orelse)
    return None


class Planted(ast.NodeTransformer):
    """Plants the defect with this number, or counts them. Annotations have none."""

    def __init__(self, number: int = -1) -> None:
        self.number, self.count, self.what, self.lines = number, 0, "", (1, 1)
        self.depth, self.inside = 0, False  # of functions; whether the defect is in one

    def visit(self, node: ast.AST) -> Any:
        other = changed(node)
        if other is not None:
            self.count += 1
            if self.count - 1 == self.number:
                self.lines = (node.lineno, getattr(node, "test", node).end_lineno or node.lineno)
                self.inside = self.depth > 0
                self.what = f"{ast.unparse(node)!s:.80} -> {ast.unparse(other)!s:.80}".replace("\n", " ")
                return ast.copy_location(other, node)
        self.depth += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        self.depth -= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        return node


def draw(tree: Path, seed: int, number: int) -> list[dict[str, Any]]:
    """Defects of a tree, drawn by a seed, the same number for each package."""
    generator, drawn = random.Random(seed), []
    for package in PACKAGES:
        sites = []
        for path in sorted((tree / "cobalt" / package).rglob("*.py")):
            counter = Planted()
            counter.visit(ast.parse(path.read_text()))
            sites += [(str(path.relative_to(tree)), index) for index in range(counter.count)]
        chosen = generator.sample(sites, number // len(PACKAGES))
        drawn += [{"package": package, "file": file, "site": site} for file, site in chosen]
    return drawn


@dataclass(frozen=True)
class Covered:
    """Result of a run of the tests under coverage for a tree."""

    tree: Path
    data: Any
    seconds: dict[str, float]

    def tests_of(self, defect: dict[str, Any], planted: Planted) -> list[str]:
        """The tests that run a defect's lines, the quickest first; without one the package's files."""
        (first, last), package = planted.lines, defect["package"]
        by_line = self.data.contexts_by_lineno(str(self.tree / defect["file"])) if planted.inside else {}
        names = {name.partition("|")[0] for line in range(first, last + 1) for name in by_line.get(line, ()) if name}
        known = sorted(names & self.seconds.keys(), key=lambda name: (self.seconds[name], name))
        return known or [f"tests/{stem}.py" for stem in PACKAGES[package] if (self.tree / f"tests/{stem}.py").exists()]


def cover(tree: Path, folder: Path) -> Covered:
    """Run the tests of a tree under coverage, or read what an earlier call has left in the folder."""
    from coverage import CoverageData

    data, report = folder / "coverage", folder / "tests.xml"
    if not report.exists():
        os.environ["COVERAGE_FILE"] = str(data)
        flags = ["-m", "not services", "-n", "3", "--dist", "worksteal", "--timeout", "300", f"--junitxml={report}.new"]
        flags += ["--cov=cobalt", "--cov-branch", "--cov-context=test", f"--cov-report=json:{folder / 'coverage.json'}"]
        process = SERVER.Process(target=run_tests, args=(tree, [*flags, "tests"]))
        process.start()
        process.join()
        Path(f"{report}.new").rename(report)
    seconds = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is None and case.find("error") is None and case.find("skipped") is None:
            name = f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"
            seconds[name] = float(case.get("time") or 0)
    read = CoverageData(str(data))
    read.read()
    totals = json.loads((folder / "coverage.json").read_text())["totals"]
    sys.stdout.write(f"branches   {totals['covered_branches']} of {totals['num_branches']}\n")
    return Covered(tree, read, seconds)


def failing(tree: Path, tests: Sequence[str]) -> str:
    """The first test that fails; "" if all pass, or none fails in LIMIT seconds."""
    flags = ("-x", "-p", "no:cacheprovider", "-m", "not services", "--timeout", str(LIMIT))
    process = SERVER.Process(target=run_tests, args=(tree, [*flags, *tests]))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return ""
    log = (tree / "tests.log").read_text(errors="replace")
    named = re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    return "" if process.exitcode == 0 else [*named, "none by name"][0]


def run_tests(tree: Path, arguments: Sequence[str]) -> None:
    """Run pytest for a tree in this process, a child without modules of the project; its output goes to a file."""
    os.setsid()
    log = os.open(tree / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    paths = [str(tree), str(tree / "verl"), str(tree / "tests")]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    sys.exit(pytest.main(list(arguments)))


def judged(defect: dict[str, Any], tree: Path, covered: Covered) -> dict[str, Any]:
    """Plant a defect in a copy of the tree, run the tests of its lines, and take it out again."""
    path, planter = tree / defect["file"], Planted(defect["site"])
    before = path.read_text()
    planted = ast.unparse(ast.fix_missing_locations(planter.visit(ast.parse(before))))
    tests = covered.tests_of(defect, planter)
    path.write_text(planted)
    failed = failing(tree, tests) if tests else ""
    path.write_text(before)
    return {**defect, "what": planter.what, "killed": bool(failed), "by": failed, "tests": len(tests)}


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Arguments:
    """Plant defects, one at a time, and see which of them the tests notice."""

    output_dir: Annotated[Path, tyro.conf.Positional]
    """Folder of `mutants.jsonl`, a line for each defect, and of what coverage measured."""
    tree: Path = ROOT
    """The checkout whose defects and tests are meant."""
    seed: int = 0
    """Of the draw."""
    number: int = 200
    """Of defects."""
    workers: int = 2
    """Defects at a time."""


def main(arguments: Arguments) -> int:
    """Judge every defect that the results lack; returns the exit code."""
    output = arguments.output_dir.resolve()
    output.mkdir(parents=True, exist_ok=True)
    results, tree = output / "mutants.jsonl", arguments.tree.resolve()
    covered, copies = cover(tree, output), Queue[Path]()
    done = {(row["file"], row["site"]) for row in rows_of(results)}
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(arguments.workers) as pool,
        results.open("a") as file,
    ):
        for index in range(arguments.workers):
            copies.put(Path(folder) / str(index))
            shutil.copytree(tree, Path(folder) / str(index), ignore=shutil.ignore_patterns(".git", ".venv", "runs"))

        def one(defect: dict[str, Any]) -> None:
            copy = copies.get()
            try:
                file.write(json.dumps(judged(defect, copy, covered)) + "\n")
                file.flush()
            finally:
                copies.put(copy)

        drawn = draw(tree, arguments.seed, arguments.number)
        list(pool.map(one, [defect for defect in drawn if (defect["file"], defect["site"]) not in done]))
    for package in PACKAGES:
        killed = [row["killed"] for row in rows_of(results) if row["package"] == package]
        sys.stdout.write(f"{package:10} {sum(killed)} of {len(killed)} killed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
