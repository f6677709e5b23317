"""What the tests notice: a sample of small defects in the rooms whose numbers people trust, and which of them survive.

    python tests/long/mutants.py runs/mutants.jsonl [--tree OTHER_CHECKOUT] [--seed 0] [--number 200]

A defect changes one operator, constant, condition or returned value of `judge`, `reward`, `selection`, `episode` or
`stage`, in a copy of the tree. It is killed if one of the test files that name its module fails, with those that always
exercise its package; a defect that these files do not notice in LIMIT seconds has survived. Tests of services are not
run, and some defects change nothing that can be seen, so that the share of the killed is compared with another tree's
and is not a grade. The same command goes on where it stopped, and prints the shares.
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

import pytest
import tyro

ROOT = Path(__file__).resolve().parents[2]
LIMIT, FILES = 60, 8  # seconds of a defect's tests, and files of them
PACKAGES = {  # tests that exercise the package without naming each of its modules
    "judge": ["test_judge_values", "test_calling", "test_judge_programs", "test_judge_attacks"],
    "reward": ["test_reward"],
    "selection": ["test_selection"],
    "episode": ["test_conversation"],
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
        self.number, self.count, self.what = number, 0, ""

    def visit(self, node: ast.AST) -> Any:
        other = changed(node)
        if other is not None:
            self.count += 1
            if self.count - 1 == self.number:
                self.what = f"{ast.unparse(node)!s:.80} -> {ast.unparse(other)!s:.80}".replace("\n", " ")
                return ast.copy_location(other, node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(item) if isinstance(item, ast.AST) else item for item in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
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


def tests_of(tree: Path, file: str, package: str) -> list[str]:
    """The test files of a module: those of its package, and those that name it or its public names, most first."""
    text, module = (tree / file).read_text(), file.removesuffix(".py").replace("/", ".")
    names = {module, *re.findall(r"^(?:async )?(?:def|class) ([A-Za-z]\w+)", text, re.MULTILINE)}
    pattern, scores = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in names)), {}
    for path in (tree / "tests").glob("test_*.py"):
        test = path.read_text()
        if not re.search(r"^pytestmark = \[?pytest\.mark\.services", test, re.MULTILINE):
            scores[path.stem] = len(pattern.findall(test)) if f"cobalt.{package}" in test else 0
    named = sorted((stem for stem in scores if scores[stem]), key=lambda stem: (-scores[stem], stem))
    return list(dict.fromkeys([*(stem for stem in PACKAGES[package] if stem in scores), *named]))[:FILES]


def failing(tree: Path, tests: Sequence[str]) -> list[str]:
    """The first test of some files that fails; [] if all pass, or none fails in LIMIT seconds."""
    process = SERVER.Process(target=run_tests, args=(tree, tests))
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return []
    log = (tree / "tests.log").read_text(errors="replace")
    named = re.findall(r"^(?:FAILED|ERROR) (\S+)", log, re.MULTILINE)
    return [] if process.exitcode == 0 else named or ["none by name"]


def run_tests(tree: Path, tests: Sequence[str]) -> None:
    """Run test files of a tree in this process, a child without any module of the project; its output goes to a file."""
    os.setsid()
    log = os.open(tree / "tests.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(tree)
    paths = [str(tree), str(tree / "verl"), str(tree / "tests")]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": ":".join(paths), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    flags = ("-x", "-p", "no:cacheprovider", "-m", "not services", "--timeout", str(LIMIT))
    sys.exit(pytest.main([*flags, *tests]))


def judged(defect: dict[str, Any], tree: Path, passing: dict[str, bool]) -> dict[str, Any]:
    """Plant a defect in a copy of the tree, run its tests, and take it out again.

    A test that fails without the defect, too, such as one that wants the checkout's history, is left out; `passing` has
    those of which it is known.
    """
    path, planter = tree / defect["file"], Planted(defect["site"])
    before = path.read_text()
    tests = [f"tests/{stem}.py" for stem in tests_of(tree, defect["file"], defect["package"])]
    planted = ast.unparse(ast.fix_missing_locations(planter.visit(ast.parse(before))))
    while True:
        path.write_text(planted)
        failed = failing(tree, tests)
        path.write_text(before)
        if failed and "::" in failed[0] and failed[0] not in passing:
            passing[failed[0]] = not failing(tree, failed[:1])
        if not failed or passing.get(failed[0], True):
            return {**defect, "what": planter.what, "killed": bool(failed), "by": failed[0] if failed else ""}
        tests.append(f"--deselect={failed[0]}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The results so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True)
class Arguments:
    """Plant defects, one at a time, and see which of them the tests notice."""

    results: Annotated[Path, tyro.conf.Positional]
    """A line for each defect."""
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
    done = {(row["file"], row["site"]) for row in rows_of(arguments.results)}
    copies: Queue[Path] = Queue()
    passing: dict[str, bool] = {}
    left_out = shutil.ignore_patterns(".git", ".venv", "runs", "pocket")
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(arguments.workers) as pool,
        arguments.results.open("a") as file,
    ):
        for index in range(arguments.workers):
            copies.put(Path(shutil.copytree(arguments.tree, Path(folder) / str(index), ignore=left_out)))

        def one(defect: dict[str, Any]) -> None:
            copy = copies.get()
            try:
                file.write(json.dumps(judged(defect, copy, passing)) + "\n")
                file.flush()
            finally:
                copies.put(copy)

        drawn = draw(arguments.tree, arguments.seed, arguments.number)
        list(pool.map(one, [defect for defect in drawn if (defect["file"], defect["site"]) not in done]))
    for package in PACKAGES:
        killed = [row["killed"] for row in rows_of(arguments.results) if row["package"] == package]
        sys.stdout.write(f"{package:10} {sum(killed)} of {len(killed)} killed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Arguments)))
