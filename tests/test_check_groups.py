"""Recorded statuses against verdicts on samples: what contradicts is counted, and the judge's tools read the result."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from support import square_problem, write_lines

from cobalt.datasets.offline.check import CONTRADICTS, PASSES, CheckSettings, check_groups, choose_programs
from cobalt.datasets.offline.groups import OfflineGroup, OfflineResponse, Status
from cobalt.judge import ExecResult, Verdict, VerdictKind
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.records import read_records


class SayingJudge:
    """Gives each program the verdict that it says, after a number of failures."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures

    async def describe(self) -> Mapping[str, Any]:
        return {"kind": "saying"}

    async def judge(self, code, suite, *, stop_at_first_failure=False):
        if self.failures:
            self.failures -= 1
            raise InfrastructureError("lost")
        kind = VerdictKind(code.split("#")[1])
        passing = [kind is VerdictKind.PASSED] * len(suite)
        return ExecResult(passing, ["x"] * len(suite), [Verdict(kind)] * len(suite))


def response(number, status, kind):
    reward = 1.0 if status is Status.ACCEPTED else 0.0
    text = f"```python\n{number}#{kind}\n```" if kind else "nothing"
    return OfflineResponse(text, status, reward, f"s{number}", ())


def groups(*pairs, problem="p1"):
    return [
        OfflineGroup(f"{problem}/{place}", problem, "codenet", ({"role": "user", "content": "?"},), pair, "required")
        for place, pair in enumerate(pairs)
    ]


PAIRS = [
    (response(0, Status.ACCEPTED, "passed"), response(1, Status.WRONG_ANSWER, "passed")),
    (response(2, Status.ACCEPTED, "runtime_error"), response(3, Status.WRONG_ANSWER, "wrong_answer")),
    (response(4, Status.ACCEPTED, "passed"), response(5, Status.COMPILE_ERROR, "passed")),
    (response(6, Status.ACCEPTED, "passed"), response(7, Status.COMPILE_ERROR, "compile_error")),
    (response(8, Status.ACCEPTED, "passed"), response(9, Status.NO_CODE, "")),
]


@pytest.fixture
def settings(tmp_path):
    made = groups(*PAIRS) + groups(PAIRS[0], problem="of another file")
    source = write_lines(tmp_path / "groups.jsonl", [group.to_record() for group in made])
    problems = write_lines(tmp_path / "problems.jsonl", [square_problem("p1")])
    return CheckSettings(input_file=source, problems_file=problems, output_file=tmp_path / "check.jsonl")


async def test_the_table_counts_what_passes_and_what_contradicts(settings):
    assert (await check_groups(settings, SayingJudge())).summary == {
        "accepted": {"judged": 5, PASSES: 4, CONTRADICTS: 1, "runtime_error": 1},
        "wrong_answer": {"judged": 2, PASSES: 1, CONTRADICTS: 0, "wrong_answer": 1},
        "compile_error": {"judged": 2, PASSES: 1, CONTRADICTS: 1, "compile_error": 1},
    }


async def test_only_so_many_programs_of_a_status_are_judged_and_a_seed_chooses_them(settings):
    chosen = replace(settings, most=2)
    summary = (await check_groups(chosen, SayingJudge())).summary
    assert [counts["judged"] for counts in summary.values()] == [2, 2, 2]
    first = read_records(chosen.output_file)
    again = replace(chosen, output_file=chosen.output_file.with_name("again.jsonl"))
    await check_groups(again, SayingJudge())
    assert read_records(again.output_file) == first
    by_seed = [choose_programs(replace(chosen, seed=seed), frozenset({"p1"})) for seed in range(1, 6)]
    assert any(other != by_seed[0] for other in by_seed)


async def test_a_failure_of_the_judge_is_retried_and_never_a_verdict(settings):
    assert (await check_groups(settings, SayingJudge(failures=2))).summary["accepted"]["judged"] == 5
    with pytest.raises(InfrastructureError):
        await check_groups(settings, SayingJudge(failures=1000))


async def test_problems_of_other_groups_and_no_program_are_refused(settings, tmp_path):
    other = write_lines(tmp_path / "other.jsonl", [square_problem("elsewhere")])
    with pytest.raises(UserError, match="other"):
        await check_groups(replace(settings, problems_file=other), SayingJudge())
    with pytest.raises(UserError, match="most"):
        replace(settings, most=0)
