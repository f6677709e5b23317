"""The files of docs/recipes, run as they are, with the libraries that they are for and the real judge.

`tests/long/test_trl.py` has a training step of TRL.
"""

import asyncio
import importlib.util
import inspect
import subprocess
import sys

import pytest
from provider import answer, serve
from support import ROOT, square_problem, write_lines

from cobalt.judge.sandbox.sandbox import Sandbox
from cobalt.problems.problem import Problem
from cobalt.stage.errors import InfrastructureError

RECIPES = ROOT / "docs" / "recipes"


def with_recipes(test):
    missing = any(importlib.util.find_spec(name) is None for name in ("trl", "verifiers"))
    reason = "the recipes extra is not installed (scripts/setup.sh --with recipes)"
    return pytest.mark.skipif(missing, reason=reason)(pytest.mark.sandbox(pytest.mark.slow(test)))


GOOD, WRONG = (f"```python\nprint(int(input()) {operation})\n```" for operation in ("** 2", "* 3"))
NONE = "I do not know."
TESTS = Problem.parse(square_problem(0)).tests.to_json()


@pytest.fixture
def recipe(monkeypatch):
    """Imports a file of docs/recipes by its name, as a program beside it would."""
    monkeypatch.syspath_prepend(RECIPES)
    return importlib.import_module


@pytest.fixture
def broken_sandboxes(monkeypatch):
    async def fail(self, *arguments):
        raise InfrastructureError("the sandbox broke")

    monkeypatch.setattr(Sandbox, "run", fail)


@pytest.mark.sandbox
def test_the_local_judge_prints_its_verdicts():
    finished = subprocess.run(
        [sys.executable, RECIPES / "local_judge.py"], capture_output=True, text=True, timeout=60, check=True
    )
    first, *feedback = finished.stdout.splitlines()
    assert first.startswith("0.5 ") and "passed" in first and "wrong_answer" in first
    assert feedback[-1] == "9"


def rewards_of(code_reward, *responses):
    """Call as the trainer makes it: every argument by name, the data set's columns repeated for each completion."""
    count = len(responses)
    columns = {"prompts": [[{"role": "user", "content": "p"}]] * count, "tests": [TESTS] * count}
    completions = [[{"role": "assistant", "content": response}] for response in responses]
    others = {"completion_ids": [[1]] * count, "trainer_state": None, "log_extra": None, "log_metric": None}
    return asyncio.run(code_reward(completions=completions, **columns, **others))


@with_recipes
@pytest.mark.parametrize(("settings", "without_thinking"), [({}, 0.1), ({"require_thinking": False}, 1)])
def test_trl_gets_a_reward_for_each_completion_and_the_better_program_the_higher_one(
    recipe, settings, without_thinking
):
    code_reward = recipe("trl_reward").reward_function(**settings)
    assert inspect.iscoroutinefunction(code_reward), "the trainer would call it as a plain function"
    good, wrong, none, thought = rewards_of(code_reward, GOOD, WRONG, NONE, f"</think>{GOOD}")
    assert -1 == none < wrong < good <= thought == 1
    assert good == pytest.approx(without_thinking)


@with_recipes
def test_trl_gets_an_error_and_no_reward_from_a_judge_that_fails(recipe, broken_sandboxes):
    with pytest.raises(InfrastructureError):
        rewards_of(recipe("trl_reward").reward_function(), GOOD, NONE)


def rollout(recipe, folder, response, **settings):
    """A rollout of verifiers' own agent, with a model that gives one answer, on the one problem of a file."""
    import verifiers.v1 as vf

    taskset = recipe("verifiers_taskset")
    problems = write_lines(folder / "problems.jsonl", [square_problem(0)])
    [task] = taskset.CodeTaskset(taskset.CodeConfig(id="verifiers_taskset", problems=problems, **settings))
    with serve(answer(response)) as provider:
        agent = vf.Agent(
            vf.AgentConfig(
                model="m",
                client=vf.EvalClientConfig(base_url=provider.url, api_key_var="NONE"),
                harness={"id": "one_call_harness"},
                runtime=vf.SubprocessConfig(),
            )
        )
        trace = asyncio.run(agent.run(task))
    assert len(provider.requests) == 1
    return trace


@with_recipes
def test_verifiers_gives_the_better_program_the_higher_reward(recipe, tmp_path):
    traces = [rollout(recipe, tmp_path, response) for response in (GOOD, WRONG, NONE)]
    assert all(trace.ok for trace in traces), [trace.errors for trace in traces]
    good, wrong, none = (trace.rewards["judged"].value for trace in traces)
    assert -1 == none < wrong < good == 1
    trace = rollout(recipe, tmp_path, GOOD, require_thinking=True)
    assert trace.rewards["judged"].value == pytest.approx(0.1), "it has no </think>"


@with_recipes
def test_verifiers_records_a_judge_that_fails_as_an_error_without_a_reward(recipe, tmp_path, broken_sandboxes):
    trace = rollout(recipe, tmp_path, GOOD)
    assert not trace.ok
    assert trace.last_error.type == "TaskError" and "InfrastructureError" in trace.last_error.message
    assert trace.rewards == {"judged": None}
