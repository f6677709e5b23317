"""What each converter of a data set does with rows that it cannot use."""

import asyncio
import inspect
import re

import pytest
import test_apps
import test_mbpp
import test_taco
from support import FakeJudge, write_lines
from test_livecodebench import FUNCTIONAL, cases, function_row, packed, stdin_row

from cobalt.datasets.apps import AppsSettings, apps
from cobalt.datasets.livecodebench import LiveCodeBenchSettings, livecodebench
from cobalt.datasets.mbpp import MbppSettings, mbpp
from cobalt.datasets.taco import TacoSettings, taco
from cobalt.problems.problem import load_problems
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import read_summary
from cobalt.stage.tally import MALFORMED, REPEATED

# Of a data set: the stage on a file and a folder, and two good rows with the ids of their problems.
CONVERTERS = {
    "livecodebench": (
        lambda source, folder: livecodebench(LiveCodeBenchSettings(folder / "train.jsonl", source)),
        {"a": stdin_row("a"), "b": stdin_row("b")},
    ),
    "mbpp": (
        lambda source, folder: mbpp(MbppSettings(folder / "train.jsonl", source)),
        {"MBPP/11": test_mbpp.task(11), "MBPP/13": test_mbpp.task(13)},
    ),
    "apps": (
        lambda source, folder: apps(AppsSettings(folder / "train.jsonl", source), FakeJudge()),
        {"APPS/0": test_apps.row(0), "APPS/1": test_apps.row(1)},
    ),
    "taco": (
        lambda source, folder: taco(TacoSettings(folder, source, dev_size=0), FakeJudge(True)),
        {0: test_taco.row(0), 1: test_taco.row(1)},
    ),
}


def bad(name, make, says=None, **fields):
    return pytest.param(name, make(**fields), says or next(iter(fields)), id=f"{name}-{fields}"[:60])


def mbpp_row(**fields):
    return test_mbpp.task(12, **fields)


def apps_row(**fields):
    return test_apps.row(2, **fields)


def taco_row(**fields):
    return test_taco.row(2) | fields


BAD = [
    bad("livecodebench", stdin_row, question_id=3),
    bad("livecodebench", stdin_row, contest_date="soon"),
    bad("livecodebench", stdin_row, public_test_cases="["),
    bad("livecodebench", stdin_row, "public_test_cases.*'testtype'", public_test_cases='[{"input": "1"}]'),
    bad("livecodebench", stdin_row, "public_test_cases.*'testtype'", public_test_cases="{}"),
    bad("livecodebench", stdin_row, private_test_cases="!"),
    bad("livecodebench", stdin_row, private_test_cases="[]"),
    bad("livecodebench", stdin_row, "'functional'", private_test_cases=packed(cases(FUNCTIONAL, ("1", "1")))),
    bad("livecodebench", function_row, "'func_name'", metadata="{}"),
    bad("livecodebench", function_row, metadata="["),
    bad("livecodebench", function_row, "'func_name'", metadata='{"func_name": "a b"}'),
    bad("livecodebench", function_row, "input of", private_test_cases=packed(cases(FUNCTIONAL, ("x", "1")))),
    bad("livecodebench", function_row, "output of", private_test_cases=packed(cases(FUNCTIONAL, ("1", "x")))),
    *(
        bad("livecodebench", function_row, "surrogate", private_test_cases=packed(cases(FUNCTIONAL, (*test,))))
        for test in (('["\\ud800"]\n2', '"a"'), ("[]\n2", '"\\ud800"'), ("\udfff", "1"))
    ),
    bad("mbpp", mbpp_row, task_id="12"),
    bad("mbpp", mbpp_row, text=None),
    bad("mbpp", mbpp_row, "0 functions", test_list=[]),
    bad("mbpp", mbpp_row, "assert other", test_list=["assert other(1) == 2"]),
    bad("mbpp", mbpp_row, test_list="assert plus_12(1) == 13"),
    bad("mbpp", mbpp_row, "reference", code="def plus_12(x:"),
    bad("mbpp", mbpp_row, "setup", test_setup_code="import random\nrandom.seed(0)"),
    bad("apps", apps_row, question=None),
    bad("apps", apps_row, difficulty=3),
    bad("apps", apps_row, problem_id=None),
    bad("taco", taco_row, id=None),
    bad("taco", taco_row, id=2.5),
    bad("taco", taco_row, question=3),
    bad("taco", taco_row, solutions="["),
    bad("taco", taco_row, solutions=[1]),
]


def converted(folder, convert, rows):
    folder.mkdir()
    outcome = convert(write_lines(folder / "source.jsonl", rows), folder)
    summary = (asyncio.run(outcome) if inspect.isawaitable(outcome) else outcome).summary
    assert read_summary(folder / "train.jsonl") == summary
    return [problem.id for problem in load_problems(folder / "train.jsonl")], summary


def counts_of(summary, reason):
    return [counts[name] for counts in summary.values() for name in counts if name.endswith(reason) and counts[name]]


@pytest.mark.parametrize(("name", "row", "says"), BAD)
def test_a_row_that_cannot_be_read_is_left_out_counted_and_named_by_line_and_field(tmp_path, name, row, says):
    convert, good = CONVERTERS[name]
    first, second = good.values()
    ids, summary = converted(tmp_path / "some", convert, [first, row, first, second])
    assert ids == [*good]
    [named] = summary["first left out"].pop(MALFORMED)
    assert re.search(rf"source\.jsonl, line 2: .*{says}", named)
    assert len(summary["first left out"].pop(REPEATED)) == 1
    assert [counts_of(summary, reason) for reason in (MALFORMED, REPEATED, "read")] == [[1], [1], [4]]
    with pytest.raises(UserError, match=rf"source\.jsonl, line 1: .*{says}"):
        converted(tmp_path / "none", convert, [row])
    assert not (tmp_path / "none" / "train.jsonl").exists()
