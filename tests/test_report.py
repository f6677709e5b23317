"""Reports of evaluated runs: what is compared, what is refused, and that the figures are right and can be read."""

import csv
import io
import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from outside import assert_each_is_refused
from support import square_problem, write_lines, write_report

from cobalt.episode.record import read_trajectories
from cobalt.hacking.categories import OUTCOMES
from cobalt.hacking.events import LOOKED_AT, TEMPTED, HackingEvent, count_categories, read_events
from cobalt.report import __main__ as report_command
from cobalt.report.comparison import change_between, check_comparable
from cobalt.report.plots import plot_turns
from cobalt.report.run_tables import differences_table, turns_table, usage_table
from cobalt.report.runs import named_paths, read_run, recorded_model
from cobalt.report.tables import Table, to_csv, to_markdown
from cobalt.report.terminal import turn_table
from cobalt.rollout.evaluate import turn_metrics, write_metrics
from cobalt.rollout.protocols import outcomes_of
from cobalt.stage.cli import show
from cobalt.stage.errors import UserError


def make_run(folder, rates, *, settings=None, engine=None, problems=square_problem, ids=None, **fields):
    """A run folder as scripts/multi_turn.sh leaves it; `rates` is [problem][sample][turn], `fields` are per problem."""
    folder.mkdir(parents=True)
    ids = range(len(rates)) if ids is None else ids
    records = [
        problems(
            identifier,
            raw_responses=[[""] * len(rate) for _ in rate[0]],
            all_pass_rates=rate,
            **{name: value[number] for name, value in fields.items()},
        )
        for number, (identifier, rate) in enumerate(zip(ids, rates, strict=True))
    ]
    path = write_lines(folder / "evaluation.jsonl", records)
    write_metrics(turn_metrics(list(map(outcomes_of, read_trajectories(path))), str(path)), path)
    generation = {"temperature": 0.6, "max_tokens": 64, "seed": 0, "n": 2} | (settings or {})
    source = {"stage": "multi_turn", "generation": generation, "turns": 9, "engine": engine or {"model": folder.name}}
    manifest = {"arguments": {"stage": "evaluation", "judge": {"comparison": "strip"}}, "sources": [source]}
    (folder / "evaluation.run.json").write_text(json.dumps(manifest))
    return folder


EARLY = [[[0.0, 1.0], [0.5, 0.0]], [[1.0, 1.0], [0.0, 1.0]]]  # Pass@1 0.25, then 0.75
LATE = [[[0.0, 1.0], [0.5, 1.0]], [[1.0, 1.0], [1.0, 1.0]]]  # Pass@1 0.5, then 1.0
ZERO = [[[0.0, 0.0], [0.5, 0.0]], [[0.0, 0.0], [0.0, 0.5]]]


def runs_of(tmp_path, **rates):
    return [read_run(name, make_run(tmp_path / name, of_run)) for name, of_run in rates.items()]


def two_runs(tmp_path, second=LATE, **options):
    return [*runs_of(tmp_path, early=EARLY), read_run("late", make_run(tmp_path / "late", second, **options))]


def test_differences_are_paired_by_problem_whatever_the_order_of_the_records(tmp_path):
    early, late = two_runs(tmp_path, LATE[::-1], ids=[1, 0], settings={"seed": 7})
    assert (early.model, late.model) == ("early", "late")
    assert check_comparable([early, late]) == [], "models and seeds may differ"
    change = change_between(early, 0, late, 0)
    assert change.difference == pytest.approx(0.25)  # problem 0 gains nothing, problem 1 a half
    assert change.interval == (0.0, 0.5)
    assert change.relative == pytest.approx(1.0)


@pytest.mark.parametrize(("problems", "noted"), [(29, True), (30, False)])
def test_tables_over_few_problems_say_so(tmp_path, problems, noted):
    [run] = runs_of(tmp_path, a=[[[0.0]], [[1.0]], *([[[0.0]]] * (problems - 2))])
    assert run.metrics[0].problems == problems
    for caption in (turns_table([run]).caption, turn_table(run.metrics, "t").caption or ""):
        assert (f"Only {problems} problems" in str(caption)) is noted


def test_paired_intervals_are_those_of_a_bootstrap_that_keeps_pairs_together(tmp_path):
    generator = np.random.default_rng(1)
    before = (generator.random((40, 4, 1)) < 0.4).astype(float)
    after = np.maximum(before, (generator.random((40, 4, 1)) < 0.2).astype(float))
    one, two = runs_of(tmp_path, a=before.tolist(), b=after.tolist())
    change, same = change_between(one, 0, two, 0), change_between(one, 0, one, 0)
    pairs = np.stack([before.mean(axis=(1, 2)), after.mean(axis=(1, 2))])
    draws = generator.integers(40, size=(20_000, 40))
    resampled = pairs[:, draws].mean(axis=2)
    expected = np.quantile(resampled[1] - resampled[0], [0.025, 0.975])
    assert change.interval == pytest.approx(tuple(expected), abs=0.01)
    assert change.clear == (change.interval[0] > 0) and not same.clear


def test_tables_hold_the_figures_that_the_evaluation_wrote_and_no_change_relative_to_zero(tmp_path):
    runs = two_runs(tmp_path)
    written = json.loads((tmp_path / "early/evaluation.metrics.json").read_text())["turns"]
    rows = [row for row in csv.DictReader(io.StringIO(to_csv(turns_table(runs)))) if row["run"] == "early"]
    assert [float(row["pass_at_1"]) for row in rows] == [row["pass_at_1"] for row in written] == [0.25, 0.75]
    assert [[float(row["lower"]), float(row["upper"])] for row in rows] == [row["interval"] for row in written]
    assert turns_table(runs).rows[0] == ["0", "25.0 (0-50)", "50.0 (0-100)"]
    runs = [*runs_of(tmp_path, zero=ZERO), runs[1]]
    assert turns_table(runs).rows[-1] == ["relative", "n/a", "+100.0 %"]
    assert all(row[1].endswith(", n/a") for row in differences_table(runs).rows)


def other_tests(identifier, **fields):
    return square_problem(identifier, **fields, hidden_test_cases={"inputs": ["9"], "outputs": ["81"]})


@pytest.mark.parametrize(
    ("options", "named"), [({"ids": [0, "one"]}, "such as 1"), ({"problems": other_tests}, "hidden tests of 2 .* 0")]
)
def test_runs_of_other_problems_or_hidden_tests_are_refused_with_what_differs(tmp_path, options, named):
    with pytest.raises(UserError, match=f"early .* late.*{named}"):
        check_comparable(two_runs(tmp_path, **options))


@pytest.mark.parametrize(
    ("options", "message", "allow"),
    [
        ({"settings": {"temperature": 1.0}}, "multi_turn.generation.temperature is 0.6 in early and 1.0 in late",
         "temperature"),
        ({"settings": {"top_p": 1.0}}, "multi_turn.generation.top_p is None in early and 1.0",
         "generation.top_p"),
        ({"second": [[turns[:1] for turns in samples] for samples in LATE]}, "turns is 2 in early and 1 in late",
         "turns"),
        ({"second": [samples[:1] for samples in LATE]}, "samples is 2 in early and 1 in late", "samples"),
        ({"problems": lambda i, **f: square_problem(i, **f, public_test_cases={"inputs": [], "outputs": []})},
         "public tests (digest) is", "public tests"),
    ],
)  # fmt: skip
def test_runs_of_different_settings_are_refused_unless_they_are_named(tmp_path, options, message, allow):
    runs = two_runs(tmp_path, **options)
    with pytest.raises(UserError) as error:
        check_comparable(runs)
    assert message in str(error.value)
    check_comparable(runs, shlex.split(str(error.value).rpartition("--allow ")[2]))
    with pytest.raises(UserError):
        check_comparable(runs, ["emperature"])  # not a part of a name
    [phrase] = check_comparable(runs, [allow])
    assert message in phrase
    folders = {run.name: run.evaluation.parent for run in runs}
    report = write_report(folders, tmp_path / "report", allowed=[allow]).read_text()
    assert "Setting that differs: " in report


def test_tokens_and_costs_are_summed_where_the_records_have_them(tmp_path):
    make_run(
        tmp_path / "a", EARLY, completion_tokens=[[[10, 20], [1, 1]], [[30, 40], [1, 1]]],
        finish_reasons=[[["stop", "length"], ["stop", "stop"]]] * 2,
        costs=[[[0.5, None], [0.25, 0.25]], [[0.5, 0.5], [0.25, 0.25]]],
    )  # fmt: skip
    run = read_run("a", tmp_path / "a")
    first, last = run.usage
    assert (first.responses, first.completion_tokens, first.cut_off, first.cost, first.priced) == (4, 100, 2, 1.5, 3)
    assert (last.completion_tokens, last.prompt_tokens) == (4, None)
    shown = dict(usage_table([run]).rows)
    assert shown["cost $"] == "2.50 or more"
    assert (shown["generated tokens"], shown["at the first turn"], shown["cut off %"]) == ("104", "25", "25.0")
    assert shown["prompt tokens"] == "n/a"


def test_categories_are_counted_as_the_classifier_wrote_them(tmp_path):
    names = ["Hard Coding", "hard_coding", "Others", None, "unknown"]
    lines = [{"id": 0, "sample": 1, "turn": turn, "category": name, "patch": "x"} for turn, name in enumerate(names)]
    events = read_events(write_lines(tmp_path / "e.jsonl", lines))
    counts = count_categories(events)
    assert counts == dict.fromkeys(OUTCOMES, 0) | {"hard coding": 2, "others": 1, "not classified": 1, "unknown": 1}
    assert events[0] == HackingEvent(id=0, sample=1, turn=0, category="hard coding")


EVENT = {"id": 0, "sample": 1, "turn": 0}


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([EVENT | {"sample": "1"}], "line 1: field 'sample'"),
        ([EVENT | {"sample": True}], "line 1: field 'sample'"),
        ([EVENT | {"current_code": 5}], "line 1: field 'current_code'"),
        ([EVENT | {"category": "cheating"}], "line 1: .*'cheating'"),
        ([EVENT | {"category": ""}], "line 1: category ''"),
    ],
)
def test_malformed_events_are_named_and_one_counts_once(tmp_path, lines, message):
    with pytest.raises(UserError, match=message):
        read_events(write_lines(tmp_path / "e.jsonl", lines))
    assert len(read_events(write_lines(tmp_path / "e.jsonl", [EVENT, EVENT]))) == 1


NASTY = r"a|b_c*<b>`$1$ & 50% #~^\{}[x](y)"
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", '=HYPERLINK("http://x")']


def test_markdown_and_csv_keep_a_text_in_its_cell_and_none_is_a_formula():
    data = [[NASTY, 1.0], ['x\n,"', None], ["a=b", "1-2\r=3"], *([text, -1.5] for text in FORMULAS)]
    table = Table("t", NASTY, ["run", NASTY], [[NASTY, "1"]], ["run", "value"], data)
    safe = [["'" + text.replace("\r", "\n"), "-1.5"] for text in FORMULAS]
    expected = [["run", "value"], [NASTY, "1.0"], ['x\n,"', ""], ["a=b", "1-2\n=3"], *safe]
    assert list(csv.reader(io.StringIO(to_csv(table)))) == expected
    header, rule, row, *_ = to_markdown(table).splitlines()
    assert [line.replace(r"\|", "").count("|") for line in (header, rule, row)] == [3, 3, 3]
    assert r"\<b\>" in row


MARKUP = "m | <img src=x> ](http://x) **b**\n# heading\n\n- item `c` \x1b[31m"


def test_a_report_shows_names_from_manifests_as_they_are(tmp_path):
    plain = make_run(tmp_path / "plain", EARLY)
    early = make_run(tmp_path / "early", EARLY, engine={"model": MARKUP, "fingerprint": "<b>|x"})
    written = write_report({"early": early}, tmp_path / "r").read_text()
    assert len(written.splitlines()) == len(write_report({"plain": plain}, tmp_path / "s").read_text().splitlines())
    [line] = [line for line in written.splitlines() if "heading" in line]
    assert re.search(r"(?<!\\)[<>*`#|\[\]]", line) is None
    assert all(character.isprintable() for character in line)


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        ({"model": "model", "fingerprint": "6ad22c8412345678"}, "model-6ad22c84"),
        ({"model": "model", "fingerprint": "6ad22c8412345678", "name": "ft-6ad22c84"}, "ft-6ad22c84"),
        ({"model": "model", "fingerprint": "6ad22c8412345678", "name": "mine"}, "mine-6ad22c84"),
        ({"model": "Qwen/Qwen3-8B", "name": "Qwen3-8B-b968826d"}, "Qwen3-8B-b968826d"),
        ({"model": "Qwen/Qwen3-8B"}, "Qwen/Qwen3-8B"),
        ({"model_name": "gpt-5"}, "gpt-5"),
    ],
)
def test_a_report_names_the_model_with_a_digest(tmp_path, engine, name):
    folder = make_run(tmp_path / "early", EARLY, engine=engine)
    assert f"model {name}," in write_report({"early": folder}, tmp_path / "r").read_text()
    assert recorded_model(folder / "evaluation.jsonl") == name


@pytest.mark.slow
def test_a_report_has_every_table_and_plot_and_the_same_bytes_again(tmp_path):
    runs = {"early": make_run(tmp_path / "early", EARLY), "late": make_run(tmp_path / "late", LATE)}
    hacking = {
        "late": write_lines(tmp_path / "e.jsonl", [{"id": 0, "sample": 0, "turn": 1, "category": "Others"}]),
        "none": write_lines(tmp_path / "none.jsonl", []),
    }
    (tmp_path / "e.run.json").write_text(json.dumps({"arguments": {}, "summary": {LOOKED_AT: {TEMPTED: 8}}}))
    (tmp_path / "late/evaluation.errors.jsonl").write_text('{"id": 2, "error": "\u2028\x85"}\n', encoding="utf-8")
    for folder in ("one", "one", "two"):  # the second replaces the first
        report = write_report(runs, tmp_path / folder, hacking=hacking)
    names = {path.name for path in (tmp_path / "one").iterdir()}
    tables = {f"{name}.csv" for name in ("pass_at_1", "differences", "usage", "hacking")}
    assert names == tables | {"pass_at_1.png", "pass_at_1.svg", "report.md", "report.md.run.json"}
    for name in names - {"report.md.run.json"}:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    text = report.read_text()
    for row in ("events | 1 | 0", "turns after an impossible test | 8 | n/a", "events per 100 of them | 12.5 | n/a"):
        assert f"| {row} |" in text
    assert "1 problems could not be evaluated" in text
    assert (tmp_path / "one/pass_at_1.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "one/pass_at_1.svg").getroot().tag.endswith("svg")
    manifest = json.loads((tmp_path / "one/report.md.run.json").read_text())
    assert set(manifest["arguments"]["runs"]) == {"early", "late"}
    write_report({"early": runs["early"]}, tmp_path / "one")
    left = {path.name for path in (tmp_path / "one").iterdir()}
    assert left == {name for name in names if name.startswith(("pass_at_1", "usage", "report"))}, "the old report's go"


def test_plots_take_any_name_of_a_run(tmp_path):
    [run] = runs_of(tmp_path, a=EARLY)
    plot_turns(dict.fromkeys(("_x", "$\\frac", "<b>&"), run.metrics), tmp_path / "p.svg")
    text = (tmp_path / "p.svg").read_text()
    assert all(name in text for name in ("<!--  _x -->", "frac", "&lt;b&gt;&amp;"))


def test_mistakes_get_one_sentence(tmp_path):
    early = make_run(tmp_path / "early", EARLY)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/report.md").write_text("mine")
    plain = write_lines(tmp_path / "plain.jsonl", [square_problem(1)])
    cases = [
        ([], {}, "name at least one run"),
        ([tmp_path / "none"], {}, "none"),
        ([tmp_path], {}, "evaluation.jsonl"),
        ([plain], {}, "record 1: "),
        ([early, early], {}, "'early'.* early-2="),
        ([early], {"hacking": {"x": tmp_path / "absent.jsonl"}}, "cannot read"),
        ([early], {"folder": early / "evaluation.jsonl"}, "early/evaluation.jsonl"),
        ([early], {"folder": tmp_path / "theirs"}, r"report\.md"),
    ]
    for event, named in (((99, 0, 1), "problem 99, turn 1"), ((0, 9, 1), "sample 9"), ((0, 0, 3), "problem 0, turn 3")):
        line = dict(zip(("id", "sample", "turn"), event, strict=True))
        cases.append(([early], {"hacking": {"early": write_lines(tmp_path / named, [line])}}, named))
    for runs, options, message in cases:
        with pytest.raises(UserError, match=message):
            write_report(named_paths(tuple(map(str, runs))), **{"folder": tmp_path / "r"} | options)
    assert {path.name: path.read_text() for path in (tmp_path / "theirs").iterdir()} == {"report.md": "mine"}
    assert_each_is_refused([("-m", "cobalt.report", early, "--hacking", "x=absent.jsonl")], ["cannot read"])


def test_the_report_in_a_terminal_has_its_tables_and_no_pictures(tmp_path, capsys):
    runs = (str(make_run(tmp_path / "a", EARLY)), f"after={make_run(tmp_path / 'b', LATE)}")
    assert show(report_command.main(report_command.Arguments(runs, tmp_path / "report"))) == 0
    assert "pass_at_1.png" in (tmp_path / "report" / "report.md").read_text()
    shown = capsys.readouterr().out
    assert "25.0" in shown and "+50.0" in shown and "after" in shown and "🌆" not in shown
