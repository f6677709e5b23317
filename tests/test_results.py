"""The comparison over seeds: pooled figures, repairs, recoverability, equal time, costs, and the page of results."""

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, trajectory_record, write_lines
from test_report import make_run

from cobalt.hacking.events import LOOKED_AT, TEMPTED
from cobalt.report.runs import read_run
from cobalt.stage.errors import UserError
from studies import offline as offline_study
from studies import pooled_pages, reproduce
from studies.costs import training_seconds
from studies.equal_time import last_step_within
from studies.methods import EQUAL_TIME, METHODS, SECOND_ROUND, SeedFolders
from studies.offline import MOVED, OFFLINE_METHODS, ROWS, WRITERS, OfflineFolders
from studies.recoverability import recoverability
from studies.seed_tables import gain_table, marks
from studies.seeds import gain, moves, over_runs, pooled, run_differences

# --- figures over seeds


def runs_of(folder, rates_by_seed):
    """The runs of a method by seed, from rates as `make_run` has them."""
    return {seed: read_run("m", make_run(folder / str(seed), rates)) for seed, rates in rates_by_seed.items()}


def test_a_pooled_figure_is_the_mean_over_the_problems_of_all_seeds(tmp_path):
    runs = runs_of(tmp_path, {0: [[[0.0, 1.0]], [[1.0, 1.0]]], 1: [[[0.0, 0.0]]]})
    assert [pooled(runs, turn).mean for turn in (0, 1)] == pytest.approx([1 / 3, 2 / 3])
    assert pooled(runs, 1).lower <= 2 / 3 <= pooled(runs, 1).upper


def test_a_difference_is_paired_within_each_problem_of_each_seed_and_has_an_interval_where_it_varies(tmp_path):
    """If each program of the second turn is as good as the first one of its own problem, there is no spread."""
    rates = {0: [[[0.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.0]]], 1: [[[1.0, 1.0]], [[0.0, 0.0]], [[1.0, 1.0]]]}
    runs, other = runs_of(tmp_path / "a", rates), runs_of(tmp_path / "b", dict(reversed(rates.items())))
    for estimate in (gain(runs, 0, runs, 1).problems, gain(runs, 0, other, 1).problems):
        assert (estimate.mean, estimate.lower, estimate.upper) == (0, 0, 0) and not estimate.clear
    varied = runs_of(tmp_path / "c", {seed: [[[0.0, 1.0]], [[1.0, 1.0]]] * 2 for seed in (0, 1)})
    estimate = gain(varied, 0, varied, 1).problems
    assert estimate.mean == pytest.approx(0.5) and 0 < estimate.lower < 0.5 < estimate.upper <= 1 and estimate.clear


@pytest.mark.parametrize(
    ("gains", "known"),
    [
        ((8, 8, 7), True),
        # Clear over the problems of both seeds, but the seeds differ too much.
        ((14, 14, 0), False),
        # The seeds agree, but other problems might turn so small a gain around.
        ((1, 1, 1), False),
        # Equal by chance: two runs have no spread to judge by.
        ((12, 12), False),
        # One run says nothing about others.
        ((12,), False),
    ],
)
def test_a_sign_is_known_where_other_problems_and_other_runs_would_both_have_it(tmp_path, gains, known):
    """Of 40 problems the one method solves 10, and the other as many more as `gains` says, by seed."""
    base, other = (
        runs_of(tmp_path / name, {seed: [[[float(n < right)]] for n in range(40)] for seed, right in enumerate(counts)})
        for name, counts in (("a", [10] * len(gains)), ("b", [10 + more for more in gains]))
    )
    assert run_differences(base, 0, other, 0) == pytest.approx([more / 40 for more in gains])
    difference = gain(base, 0, other, 0)
    assert (difference.runs is None) == (len(gains) == 1)
    assert difference.known is known
    table = gain_table("gain", {"a": base, "b": other}, "b")
    assert ("cannot tell" in table.rows[0][2]) is not known


def evaluated(folder, problems):
    """A file of evaluated trajectories; `problems` is [problem][sample][turn], whether the program is right."""
    rates = [[[float(right) for right in turns] for turns in group] for group in problems]
    return make_run(folder, rates) / "evaluation.jsonl"


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
def test_moves_count_every_pair_of_neighbouring_turns_once(tmp_path_factory, trajectories):
    path = evaluated(tmp_path_factory.mktemp("moves") / "run", [[turns] for turns in trajectories])
    for turn, move in enumerate(moves([path, path]), 1):
        del move["repeated"]
        pairs = 2 * [(turns[turn - 1], turns[turn]) for turns in trajectories]
        assert move == Counter(
            wrong=sum(not before for before, _ in pairs),
            repaired=sum(not before and after for before, after in pairs),
            right=sum(before for before, _ in pairs),
            stayed=sum(before and after for before, after in pairs),
        )


def test_a_wrong_program_that_is_written_again_is_repeated(tmp_path):
    record = trajectory_record("p", [[(0, 0), (0, 0), (0, 0)]])
    for turn, program in enumerate(("print(1)", "print(1)", "print(2)")):
        record["raw_responses"][turn][0] = f"<think>{turn}</think>```python\n{program}\n```"
    path = write_lines(tmp_path / "evaluation.jsonl", [record])
    assert [(move["wrong"], move["repeated"]) for move in moves([path])] == [(1, 1), (1, 0)]


YES, NO = True, False


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # Repaired by the next turn: it costs its own turn alone.
        ([[[YES, YES, YES], [NO, YES, YES]]] * 2, [(0, 2, -1.0)]),
        # Never repaired: it costs every later turn.
        ([[[YES, YES, YES], [NO, NO, NO]]], [(0, 1, -3.0)]),
        # Programs are compared after the same beginning: at turn 1 a right one after a right one says nothing about a
        # wrong one after a wrong one. After a right program a mistake costs its own turn, after a wrong one the next,
        # too: the problem has their mean.
        ([[[YES, YES, YES], [NO, NO, NO], [NO, YES, YES], [YES, NO, YES]]], [(0, 1, -1.5), (1, 1, -1.5)]),
        # Hard problems do not pass for costly mistakes: wrong everywhere on one, right everywhere on another.
        ([[[NO] * 3] * 2, [[YES] * 3] * 2], []),
    ],
)
def test_a_mistake_costs_the_turns_until_it_is_repaired_within_one_problem(tmp_path, groups, expected):
    rows = recoverability([evaluated(tmp_path / "run", groups)])
    assert [(turn, problems, advantage.mean) for turn, problems, _, _, advantage in rows] == expected
    assert len(groups) == 1 or all(after_wrong == 1.0 for _, _, _, after_wrong, _ in rows)


# --- equal time and costs


def training_run(folder, seconds, checkpoints=(), **metrics):
    folder.mkdir(parents=True, exist_ok=True)
    fixed = {"response_length/mean": 10.0, "reward/judged_tests": 4.0, "actor/perf/cpu_memory_used_gb": 5.0} | metrics
    lines = [{"step": step, "metrics": fixed | {"timing_s/step": s}} for step, s in enumerate(seconds, 1)]
    write_lines(folder / "metrics.jsonl", lines)
    (folder / "config.yaml").write_text("data: {train_batch_size: 2}\nactor_rollout_ref: {rollout: {n: 3}}\n")
    for step in checkpoints:
        (folder / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
    return folder


def test_the_time_of_a_run_is_that_of_its_steps_with_a_first_one_like_the_others(tmp_path):
    run = training_run(tmp_path / "run", [50.0] + [10.0] * 5, checkpoints=(2, 4, 6))
    assert training_seconds(run, 3) == 30
    with pytest.raises(UserError, match=rf"{run} .*\b7\b"):
        training_seconds(run, 7)
    assert [last_step_within(run, seconds) for seconds in (5, 20, 39.9, 40, 1000)] == [2, 2, 2, 4, 6]
    with pytest.raises(UserError, match=str(tmp_path / "other")):
        last_step_within(training_run(tmp_path / "other", [10.0]), 100)


# --- the page


def steps_file(folder, names):
    """The record of steps that took a second each, besides the start of their services."""
    timed = {"seconds": 5.0, "services_seconds": 4.0}
    write_lines(folder / "steps.jsonl", [{"id": number, "step": name} | timed for number, name in enumerate(names, 1)])


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of two seeds with everything that the page needs: two problems, three turns, tiny costs."""
    monkeypatch.chdir(tmp_path)
    folder, names = Path("runs/mini"), []
    for seed in (0, 1):
        at = SeedFolders(folder, seed)
        (at.world / "data").mkdir(parents=True)
        ceilings = {"single_turn": 0.5, "blind": [0.5, 0.75, 0.75], "repair": [0.5, 1.0, 1.0]}
        (at.world / "data" / "ceilings.json").write_text(json.dumps({"test": ceilings}))
        for index, method in enumerate((*METHODS, *EQUAL_TIME)):
            rates = [[[0.0, float(index > 3), 1.0]], [[1.0, 1.0, float(seed == 0)]]]
            make_run(at.evaluation(method), rates)
            at.model(method).mkdir(parents=True, exist_ok=True)
            (at.model(method) / ".cobalt-export").write_text("step 1\n")
            if method.perturbed:
                make_run(at.perturbed(method), rates)
                write_lines(at.perturbed(method) / "events.jsonl", [])
                manifest = {"arguments": {}, "summary": {LOOKED_AT: {TEMPTED: 3}}}
                (at.perturbed(method) / "events.run.json").write_text(json.dumps(manifest))
        for slug in dict.fromkeys(slug for method in METHODS for slug, _ in method.trained):
            turns = {"reward/turns": 3.0} if slug.endswith("_mt") else {}
            training_run(at.home / f"{slug}_training", [2.0] * 64, **turns)
        for slug in ("cobalt", "ft_cobalt", SECOND_ROUND):
            make_run(at.home / f"{slug}_collection", [[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]])
        names += dict.fromkeys(at.step(name) for method in METHODS for name in method.prepared)
    steps_file(folder, names)
    return folder


def write_results(folder, page, seeds=(0, 1)):
    assert reproduce.main(reproduce.Arguments(folder, seeds=seeds, page=page, table=True)) == 0
    return page.read_text()


def table_rows(text, heading):
    """The cells of a table of a page, its head first."""
    lines = text.partition(f"### {heading}\n")[2].lstrip().partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def costs_of(path):
    """The first numbers of each row of a file of costs, by method and seed."""
    named = ("steps", "prompts", "examples", "seconds", "data_seconds")
    return {(row["method"], int(row["seed"])): [float(row[name]) for name in named] for row in rows_of(path)}


def test_the_page_has_the_figures_and_the_costs_of_the_runs_and_keeps_the_text_around_them(study):
    page = Path("docs/RESULTS.md")
    page.parent.mkdir()
    begin, end = marks(reproduce.MODULE)
    page.write_text(f"# Mine\n\nbefore\n{begin}\nstale\n{end}\nafter\n")
    model = next(SeedFolders(study, 1).model(method) for method in EQUAL_TIME if method.slug == "cobalt_time")
    (model / ".cobalt-export").write_text("step 64\n")
    text = write_results(study, page)
    assert text.startswith("# Mine\n\nbefore\n") and text.endswith(f"{end}\nafter\n") and "stale" not in text
    shares = [
        row["pass_at_1"] for row in rows_of(Path("docs/RESULTS/equal_examples.csv")) if row["method"] == "FT-Cobalt"
    ]
    # Two seeds with two problems each: at turn 2 three of four programs are right.
    assert shares == ["0.5", "1.0", "0.75"]
    # Of base's four programs at turn 0 two are wrong, and stay so; the two right ones stay right.
    assert [*rows_of(Path("docs/RESULTS/moves.csv"))[0].values()] == ["base", *"12", "0.0", "0.0", "2", "1.0", "0.0"]
    timed = {cells[0]: cells[-2] for cells in table_rows(text, "Equal time")}
    assert timed["Cobalt, own trajectories"] == "1 / 64 (end)", "a row of equal time says where its training ended"
    costs = costs_of(Path("docs/RESULTS/costs.csv"))
    for seed in (0, 1):
        # 16 steps of FT and 16 of Cobalt, 2 prompts with 3 samples each, 2 s a step; four commands of 1 s made
        # their data.
        assert costs["FT-Cobalt", seed] == [32.0, 64.0, 192.0, 68.0, 4.0]
        # 12 steps of 2 prompts, each of which has 3 trajectories of 3 responses.
        assert costs["GRPO-MT", seed] == [12.0, 24.0, 216.0, 25.0, 1.0]
    head, *rows = table_rows(text, "Costs")
    by_head = {cells[0]: dict(zip(head, cells, strict=True)) for cells in rows}
    # A trajectory of three responses: nearly as dear by prompt, cheaper by response.
    for method, of_prompt, of_response in (("FT-Cobalt", "1.06", "354"), ("GRPO-MT", "1.04", "116")):
        assert (by_head[method]["s a prompt"], by_head[method]["ms a response"]) == (of_prompt, of_response)
    events = rows_of(Path("docs/RESULTS/impossible_feedback.csv"))[0]
    assert (events["events"], events["turns_after_an_impossible_test"]) == ("0", "6")
    assert write_results(study, page, (1, 0)) == text, "columns of seeds are in order whatever the flag says"


@pytest.fixture
def offline(study):
    """A study of offline training with everything that its tables need, beside `study`."""
    folder, names = Path("runs/offline"), []
    response = {"text": "a", "reward": 1.0, "origin": "0", "context": []}
    group = {"id": "p/0", "problem_id": "p", "source": "s", "contrast": "required"}
    group["messages"] = [{"role": "user", "content": "q"}]
    group["responses"] = [response | {"status": status} for status in ("accepted", "wrong_answer") * 2]
    for seed in (0, 1):
        at = OfflineFolders(folder, seed, study)
        for method in OFFLINE_METHODS:
            metrics = {"training/responses": 5.0, "perf/cpu_memory_used_gb": 4.0, "validation/kl": 0.25}
            training_run(at.home / f"{method.slug}_training", [2.0] * 8, **metrics)
            data = at.home / f"{method.groups.slug}_data"
            data.mkdir(parents=True, exist_ok=True)
            write_lines(data / "train.jsonl", [group])
            make_run(at.tested(method), [[[0.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]]])
        for moved in MOVED:
            at.divergence(moved).parent.mkdir(parents=True, exist_ok=True)
            at.divergence(moved).write_text(json.dumps({"kl": 0.125, "responses": 4, "tokens": 40}))
        for row in ROWS:
            make_run(at.samples(row), [[[0.0], [1.0]], [[1.0], [1.0]]])
        names += [at.step(f"{writer.slug}_submissions") for writer in WRITERS]
        names += dict.fromkeys(at.step(method.groups.slug) for method in OFFLINE_METHODS)
    steps_file(folder, names)
    return offline_study.Arguments(folder, seeds=(0, 1), page=Path("RESULTS.md"), table=True, reproduced=study)


def test_offline_rows_have_their_tables_in_the_page_of_the_comparison(study, offline):
    page = offline.page
    page.write_text("\n".join([*marks(reproduce.MODULE), "between", *marks(offline_study.MODULE), "end\n"]))
    compared = write_results(study, page).partition("between")[0]
    assert offline_study.main(offline) == 0
    text = page.read_text()
    assert text.partition("between")[0] == compared and text.endswith("end\n")
    assert "took 3 s a seed" in text
    # 8 steps of 5 responses: 2 accepted ones 20 times, or 4 responses 10 times.
    cells = {line.split(" | ")[0]: line.split(" | ")[-4:] for line in text.splitlines() if "0.250 |" in line}
    assert (cells["| SFT"], cells["| RLOO"]) == (["40", "2", "20.0", "0.250 |"], ["40", "4", "10.0", "0.250 |"])
    assert {line.split(" | ")[0] for line in text.splitlines() if "0.125 |" in line} == {"| Cobalt", "| FT-Cobalt"}
    assert [*rows_of(Path("RESULTS/samples.csv"))[0].values()][:5] == ["base", "all", "4", "1", "0.75"]
    costs = costs_of(Path("RESULTS/offline_costs.csv"))
    # Eight steps of 2 groups with 5 responses in all, 2 s each, and groups in 1 s; where trajectories were collected
    # for it, 1 s more.
    assert costs["SFT", 1] == [8.0, 16.0, 40.0, 17.0, 1.0]
    assert costs["Cobalt's partial trajectories, offline", 1] == [8.0, 16.0, 40.0, 18.0, 2.0]
    OfflineFolders(offline.output_dir, 1, study).divergence(MOVED[0]).unlink()
    with pytest.raises(UserError, match=MOVED[0].name):
        offline_study.main(offline)


@pytest.mark.parametrize(
    ("named", "spoil"),
    [
        ("seed1", lambda at: (at(1).evaluation(METHODS[4]) / "evaluation.jsonl").unlink()),
        ("ceilings", lambda at: (at(0).world / "data" / "ceilings.json").unlink()),
        ("ft_training", lambda at: write_lines(at(0).home / "ft_training/metrics.jsonl", [{"step": 1, "metrics": {}}])),
        ("begin", lambda at: Path("RESULTS.md").write_text("mine, without marks")),
        ("RESULTS.md", lambda at: Path("RESULTS.md").mkdir()),
    ],
)
def test_what_is_wrong_with_a_study_or_its_page_is_named_and_nothing_is_written(study, named, spoil):
    spoil(lambda seed: SeedFolders(study, seed))
    page = Path("RESULTS.md")
    before = page.read_bytes() if page.is_file() else None
    with pytest.raises(UserError, match=named):
        write_results(study, page)
    assert before == (page.read_bytes() if page.is_file() else None)


# --- the published pages


@pytest.mark.parametrize(
    ("page", "gains", "passes", "base"),
    [
        ("RESULTS", "gain", "equal_examples", "FT-Cobalt"),
        ("RESULTS", "gain_cobalt", "equal_examples", "Cobalt"),
        ("RESULTS", "offline_gain_base", "offline", "base"),
        ("RESULTS_seed2", "offline_gain_sft", "offline", "SFT"),
    ],
)
def test_the_published_intervals_over_runs_follow_from_the_published_seeds(page, gains, passes, base):
    folder = ROOT / "docs" / page
    seeds = {
        (row["method"], row["turn"]): [float(value) for name, value in row.items() if name.startswith("seed_")]
        for row in rows_of(folder / f"{passes}.csv")
    }
    rows = rows_of(folder / f"{gains}.csv")
    assert len(rows) >= 30
    for row in rows:
        others, own = seeds[row["method"], row["turn"]], seeds[base, row["turn"]]
        each = [a - b for a, b in zip(own, others, strict=True)]
        assert float(row["difference"]) == pytest.approx(sum(each) / len(each), abs=1e-9)
        runs = over_runs(each)
        published = [float(row[name]) if row[name] else None for name in ("runs_lower", "runs_upper")]
        assert published == ([None, None] if runs is None else pytest.approx([runs.lower, runs.upper], abs=1e-9))


def test_the_table_of_three_seeds_is_that_of_the_command(capsys):
    assert pooled_pages.main(pooled_pages.Arguments((ROOT / "docs/RESULTS", ROOT / "docs/RESULTS_seed2"))) == 0
    page = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in capsys.readouterr().out.splitlines() if line]
    assert len(rows) > 12
    assert [line for line in rows if line not in page] == []
