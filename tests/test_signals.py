"""Ctrl-C, SIGTERM, kill -9 on a command with its own judge or, in scripts/test_long.sh, engine; on `cobalt serve`."""

import json
import os
import signal
import subprocess
import sys
from itertools import product

import httpx
import pytest
from serving import SIGNALS, running
from support import ROOT, square_problem, trajectory_record, write_lines

from cobalt.serving.services import started_servers, variables
from cobalt.stage.records import read_records

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]

ENDED = {"stop", "length"}
PROGRESS = ("single turn: ", "hidden tests: ")  # of the bar, which a terminal draws over


def ends_well(command, how):
    code, said = command.end(how)
    assert code == {SIGNALS[0]: 130, SIGNALS[1]: 130, SIGNALS[2]: -signal.SIGKILL}[how], said
    said = [line for line in said if not line.startswith(PROGRESS)]
    assert len(said) <= 1, said
    command.assert_nothing_is_left()


ENDS = [*product(["sample"], ["start", "under way"], SIGNALS), *product(["try"], ["start"], SIGNALS[1:])]
LONG = [pytest.param(*end, marks=pytest.mark.services) for end in ENDS if "COBALT_LONG_TESTS" in os.environ]
SLOW = "```python\nimport time\ntime.sleep(0.3)\nprint(int(input()) ** 2)\n```"


@pytest.fixture(scope="module")
def judge_alone():
    """A judge in a process of its own; yields how to reach it."""
    with started_servers(judge={}) as servers:
        yield variables(servers)


@pytest.mark.parametrize(("name", "when", "how"), [*product(["evaluate"], ["under way"], SIGNALS), *LONG])
def test_a_command_with_its_own_engine_or_judge_leaves_nothing_and_its_result_goes_on(
    request, tmp_path, name, when, how
):
    problems = write_lines(tmp_path / "p.jsonl", [square_problem(number) for number in range(30)])
    programs = [
        trajectory_record(number, [[(0, 0)]], responses=None, raw_responses=[[f"{SLOW} {number}"]])
        for number in range(30)
    ]
    result, sampling = tmp_path / "single_turn.jsonl", ["-n", "2", "--max_tokens", "96"]
    words = {
        "sample": ["sample", "-i", problems, "-o", result, "--concurrency", "2", *sampling],
        "try": ["try", problems, "-o", tmp_path, *sampling],
        "evaluate": ["evaluate", "-i", write_lines(tmp_path / "m.jsonl", programs), "-o", result, "--concurrency", "2"],
    }[name]
    if name == "evaluate":
        services, own = request.getfixturevalue("judge_alone"), ["--judge", "concurrency=2"]
    else:
        model = request.getfixturevalue("seed_model")
        services, own = request.getfixturevalue("services"), ["--model", model, "--engine", "max_model_len=1024"]
        own += ["--engine", "dtype=float32"]
    with running(tmp_path, *words, *own) as command:
        if when == "start":  # vLLM's process is there, and has not loaded the model
            command.wait_for(
                lambda: any("spawn_main" in line or "EngineCore" in line for line in command.processes().values())
            )
        else:
            command.wait_for(lambda: result.exists() and result.read_bytes().count(b"\n") >= 2)
        ends_well(command, how)
    assert when != "start" or how == SIGNALS[2] or not list(tmp_path.glob("*.engine.log"))
    records = read_records(result, unfinished=True) if result.exists() else []
    assert len(records) < 30 and (when == "start" or len(records) >= 2)
    assert name == "evaluate" or all(set(record["finish_reasons"]) <= ENDED for record in records)
    # The engine and the judge describe themselves alike behind a URL, so that the result goes on with them.
    words += ["--samples", "seeded"] if name == "sample" else []
    finished = subprocess.run(
        [sys.executable, "-m", "cobalt.commands", *map(str, words)],
        cwd=ROOT, env=os.environ | services, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    by_id = {record["id"]: record for record in read_records(result)}
    assert len(by_id) == 30 and all(by_id[record["id"]] == record for record in records)


@pytest.mark.parametrize("how", SIGNALS)
def test_serve_answers_until_it_is_ended_and_leaves_no_child(tmp_path, how):
    with running(tmp_path, "serve", "--judge", "concurrency=1") as command:
        command.wait_for(lambda: list((tmp_path / "run" / "cobalt").glob("*.json")))
        [state] = (tmp_path / "run" / "cobalt").glob("*.json")
        url = json.loads(state.read_text())["variables"]["COBALT_JUDGE_URL"]
        body = {"code": "print(int(input()) ** 2)", "test_cases": {"inputs": ["2\n"], "outputs": ["4"]}}
        assert httpx.post(url, json=body, timeout=60).json()["passing"] == [True]
        assert httpx.get(f"{url}/health", timeout=60).status_code == 200
        assert 'cobalt_judge_verdicts_total{kind="passed"} 1.0' in httpx.get(f"{url}/metrics", timeout=60).text
        code, said = command.end(how)
        assert code == (-signal.SIGKILL if how == SIGNALS[2] else 0) and len(said) <= 1, said
        command.assert_nothing_is_left()
        assert (how == SIGNALS[2]) == state.exists()
