"""Measures beside the paper's protocol: each agrees with its definition, counted out over all draws."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from outside import run_commands
from support import square_problem, trajectories_of, trajectory_record, write_lines, write_report

from cobalt.rollout.metrics import best_of_k
from cobalt.rollout.protocols import (
    Outcomes,
    best_of,
    outcomes_of,
    pass_at,
    protocol_figures,
    stopping_turns,
)
from cobalt.stage.errors import UserError

PROGRAMS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)


@given(PROGRAMS, st.data())
def test_best_of_k_is_the_mean_over_all_draws_of_k_programs(programs, data):
    k = data.draw(st.integers(1, len(programs)))
    chances = []
    for draw in itertools.combinations(programs, k):
        best = [right for score, right in draw if score == max(score for score, _ in draw)]
        chances.append(sum(best) / len(best))
    scores, correct = zip(*programs, strict=True)
    assert best_of_k(scores, correct, k) == pytest.approx(sum(chances) / len(chances))


@pytest.mark.parametrize(
    ("public", "turns"), [([0.5, 1.0, 0.0], [0, 1, 1]), ([1.0, 0.0, 1.0], [0, 0, 0]), ([0.0, 0.5, 0.5], [0, 1, 2])]
)
def test_a_stopped_trajectory_keeps_its_first_program_that_passes_the_public_tests(public, turns):
    assert stopping_turns(public) == turns


def outcomes(*samples, difficulty=""):
    """Of one problem; `samples` is [sample][turn] of (share of public tests, right)."""
    return Outcomes(
        difficulty,
        tuple(tuple(right for _, right in sample) for sample in samples),
        tuple(tuple(share for share, _ in sample) for sample in samples),
    )


def test_each_measure_is_averaged_over_problems_by_turn():
    unlucky = outcomes([(1.0, False), (1.0, True)], [(0.5, False), (0.5, False)])  # stops before it is right
    repaired = outcomes([(0.0, False), (1.0, True)], [(1.0, True), (0.0, False)])  # stops before it breaks
    both = [unlucky, repaired]
    assert [mean.value for mean in pass_at(both, 1)] == [0.25, 0.5]
    assert [mean.value for mean in pass_at(both, 2)] == [0.5, 1.0]
    figures = {name: [mean.value for mean in means] for name, means in protocol_figures(both, []).items()}
    assert figures["stopped"] == [0.25, 0.5]  # of `repaired` both samples, of `unlucky` none
    assert figures["programs until then"] == [1.0, 1.5]
    assert [mean.value for mean in best_of(both, 2)] == [0.5, 1.0]
    assert [mean.value for mean in best_of(both, 1)] == [mean.value for mean in pass_at(both, 1)]


def test_a_measure_without_any_success_has_a_bound_and_not_a_point():
    never = [outcomes([(0.0, False)], [(0.0, False)])] * 3
    figures = protocol_figures(never, [1, 2])
    assert figures.pop("programs until then")[0].interval == (1.0, 1.0)  # a number of programs has no bound
    assert figures.keys() == {"pass@1", "pass@2", "stopped", "best of 2"}
    assert all(mean.interval == pytest.approx((0.0, 0.632), abs=1e-3) for [mean] in figures.values())


def test_without_public_results_the_measures_that_need_them_are_missing():
    unknown = outcomes_of(trajectories_of(square_problem(1, raw_responses=[["a"]], all_pass_rates=[[1.0]])))
    assert unknown.public is None
    assert {name: means[0].value for name, means in protocol_figures([unknown], [1]).items()} == {"pass@1": 1.0}


def test_a_k_beyond_the_samples_is_refused():
    one = [outcomes([(1.0, True)])]
    for function in (pass_at, best_of):
        with pytest.raises(UserError, match="at least 2 samples"):
            function(one, 2)
        with pytest.raises(UserError, match="1 or more"):
            function(one, 0)


def test_a_report_has_the_measures_and_the_difficulties(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    records = [
        trajectory_record(number, [[(0, 0), (2, 2)], [(1, 0), (1, 0)]], difficulty=name)
        for number, name in enumerate(("EASY", "HARD"))
    ]
    write_lines(folder / "evaluation.jsonl", records)
    words = "-m cobalt.report run -o"
    lines = ("report --k 1 2", "other --k 3")
    ended = run_commands((tmp_path, f"{words} {line}".split()) for line in lines)
    for (code, _, said), expected in zip(ended, (None, "k = 3"), strict=True):
        assert code == (2 if expected else 0) and (expected or "") in said, said
    rows = protocol_rows(tmp_path / "report" / "report.md")
    assert rows["pass@2", "1"] == rows["best of 2", "1"] == 1.0
    assert rows["stopped", "1"] == rows["pass@1", "1"] == 0.5
    assert (tmp_path / "report" / "difficulty.csv").exists()


def test_the_best_by_tests_that_are_the_hidden_ones_is_called_an_oracle(tmp_path):
    (tmp_path / "run").mkdir()
    samples = [[(0, 0), (2, 2)], [(1, 0), (1, 0)]]
    records = [trajectory_record(number, samples) for number in range(2)]
    shown = [record | {"public_test_cases": record["hidden_test_cases"]} for record in records]
    for problems, names in ((shown, {"oracle best of 2"}), ([shown[0], records[1]], {"best of 2"})):
        write_lines(tmp_path / "run" / "evaluation.jsonl", problems)
        report = write_report({"a": tmp_path / "run"}, tmp_path / "report")
        assert {name for name, _ in protocol_rows(report) if "best" in name} == names
        assert "oracle" in report.read_text().partition("Other measures")[2]
    write_lines(tmp_path / "run" / "evaluation.jsonl", records)
    assert "oracle" not in write_report({"a": tmp_path / "run"}, tmp_path / "report").read_text()


def protocol_rows(report):
    """The values of a report's other measures, by measure and turn."""
    lines = report.with_name("protocols.csv").read_text().splitlines()
    return {tuple(line.split(",")[1:3]): float(line.split(",")[3]) for line in lines[1:]}
