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
from studies import offline_results, reproduce, results
from studies.costs import training_seconds
from studies.equal_time import last_step_within
from studies.methods import EQUAL_TIME, METHODS, SECOND_ROUND, SeedFolders
from studies.offline import MOVED, OFFLINE_METHODS, ROWS, WRITERS, OfflineFolders
from studies.page import marks
from studies.recoverability import recoverability
from studies.seed_tables import gain_table
from studies.seeds import difference, moves, over_runs, pooled, run_differences, sign_known, student_interval

# --- figures over seeds


def test_a_pooled_figure_is_the_mean_over_the_problems_of_all_seeds(tmp_path):
    first = read_run("m", make_run(tmp_path / "a", [[[0.0, 1.0]], [[1.0, 1.0]]]))
    second = read_run("m", make_run(tmp_path / "b", [[[0.0, 0.0]]]))
    runs = {0: first, 1: second}
    assert [pooled(runs, turn).mean for turn in (0, 1)] == pytest.approx([1 / 3, 2 / 3])
    assert pooled(runs, 1).lower <= 2 / 3 <= pooled(runs, 1).upper


def test_a_difference_is_paired_within_each_problem_of_each_seed(tmp_path):
    """Each program of the second turn is as good as the first one of its own problem, and of no other: no spread."""
    rates = {0: [[[0.0, 0.0]], [[1.0, 1.0]], [[0.0, 0.0]]], 1: [[[1.0, 1.0]], [[0.0, 0.0]], [[1.0, 1.0]]]}
    runs = {seed: read_run("a", make_run(tmp_path / f"a{seed}", of_seed)) for seed, of_seed in rates.items()}
    other = {seed: read_run("b", make_run(tmp_path / f"b{seed}", of_seed)) for seed, of_seed in reversed(rates.items())}
    for estimate in (difference(runs, 0, runs, 1), difference(runs, 0, other, 1)):
        assert (estimate.mean, estimate.lower, estimate.upper) == (0, 0, 0) and not estimate.clear


def test_a_difference_that_varies_over_problems_has_an_interval_around_its_mean(tmp_path):
    rates = [[[0.0, 1.0]], [[1.0, 1.0]], [[0.0, 1.0]], [[1.0, 1.0]]]
    runs = {seed: read_run("a", make_run(tmp_path / f"a{seed}", rates)) for seed in (0, 1)}
    estimate = difference(runs, 0, runs, 1)
    assert estimate.mean == pytest.approx(0.5) and 0 < estimate.lower < 0.5 < estimate.upper <= 1 and estimate.clear


def gained(tmp_path, gains):
    """Runs of two methods by seed, the second right on as many more of 40 problems as `gains` says."""

    def runs(name, counts):
        rates = enumerate([[[float(n < right)]] for n in range(40)] for right in counts)
        return {seed: read_run(name, make_run(tmp_path / f"{name}{seed}", own)) for seed, own in rates}

    return runs("a", [10] * len(gains)), runs("b", [10 + gain for gain in gains])


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
    base, other = gained(tmp_path, gains)
    assert run_differences(base, 0, other, 0) == pytest.approx([gain / 40 for gain in gains])
    runs = over_runs(run_differences(base, 0, other, 0))
    assert (runs is None) == (len(gains) == 1)
    assert sign_known(difference(base, 0, other, 0), runs) is known
    table = gain_table("gain", {"a": base, "b": other}, "b")
    assert ("cannot tell" in table.rows[0][2]) is not known


outcomes = st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6)


def evaluated(folder, problems):
    """A file of evaluated trajectories; `problems` is [problem][sample][turn], whether the program is right."""
    return make_run(folder, [[[float(right) for right in turns] for turns in group] for group in problems]) / (
        "evaluation.jsonl"
    )


@given(trajectories=outcomes)
def test_moves_count_every_pair_of_neighbouring_turns_once(tmp_path_factory, trajectories):
    path = evaluated(tmp_path_factory.mktemp("moves") / "run", [[turns] for turns in trajectories])
    for turn, move in enumerate(moves([path, path]), 1):
        del move["repeated"]
        pairs = 2 * [(turns[turn - 1], turns[turn]) for turns in trajectories]
        expected = Counter(
            wrong=sum(not before for before, _ in pairs),
            repaired=sum(not before and after for before, after in pairs),
            right=sum(before for before, _ in pairs),
            stayed=sum(before and after for before, after in pairs),
        )
        assert move == expected


def test_a_wrong_program_that_is_written_again_is_repeated(tmp_path):
    record = trajectory_record("p", [[(0, 0), (0, 0), (0, 0)]])
    raw = record["raw_responses"]
    for turn, program in enumerate(("print(1)", "print(1)", "print(2)")):
        raw[turn][0] = f"<think>{turn}</think>```python\n{program}\n```"
    path = write_lines(tmp_path / "evaluation.jsonl", [record])
    assert [(move["wrong"], move["repeated"]) for move in moves([path])] == [(1, 1), (1, 0)]


# --- one-step recoverability


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


def test_the_last_checkpoint_within_a_time_is_chosen_and_at_least_the_first(tmp_path):
    run = training_run(tmp_path / "run", [10.0] * 6, checkpoints=(2, 4, 6))
    assert [last_step_within(run, seconds) for seconds in (5, 20, 39.9, 40, 1000)] == [2, 2, 2, 4, 6]
    with pytest.raises(UserError, match="no checkpoint"):
        last_step_within(training_run(tmp_path / "other", [10.0] * 3), 100)


def test_the_time_of_a_run_is_that_of_its_steps_with_a_first_one_like_the_others(tmp_path):
    run = training_run(tmp_path / "run", [50.0, 10.0, 10.0])
    assert training_seconds(run, 3) == 30
    with pytest.raises(UserError, match="3 steps"):
        training_seconds(run, 4)


# --- the page


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of two seeds with everything that the page needs: two problems, three turns, tiny costs."""
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/mini")
    records = []
    for seed in (0, 1):
        at = SeedFolders(folder, seed)
        (at.world / "data").mkdir(parents=True)
        ceilings = {"single_turn": 0.5, "blind": [0.5, 0.75, 0.75], "repair": [0.5, 1.0, 1.0]}
        (at.world / "data" / "ceilings.json").write_text(json.dumps({"test": ceilings}))
        for place, method in enumerate((*METHODS, *EQUAL_TIME)):
            rates = [[[0.0, float(place > 3), 1.0]], [[1.0, 1.0, float(seed == 0)]]]
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
            training_run(at.training(slug), [2.0] * 64, **turns)
        for slug in ("cobalt", "ft_cobalt", SECOND_ROUND):
            make_run(at.collection(slug), [[[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]])
        names = dict.fromkeys(at.step(name) for method in METHODS for name in method.prepared)
        records += [{"step": name, "seconds": 5.0, "services_seconds": 4.0} for name in names]
    write_lines(folder / "steps.jsonl", [{"id": number, **record} for number, record in enumerate(records, 1)])
    return folder


def test_the_page_has_the_figures_of_the_runs_and_keeps_the_text_around_them(study):
    page = Path("docs/RESULTS.md")
    page.parent.mkdir()
    begin, end = marks(results.MODULE)
    page.write_text(f"# Mine\n\nbefore\n{begin}\nstale\n{end}\nafter\n")
    write_results(study, (0, 1), page)
    text = page.read_text()
    assert text.startswith("# Mine\n\nbefore\n") and text.endswith(f"{end}\nafter\n") and "stale" not in text
    rows = (page.parent / "RESULTS" / "equal_examples.csv").read_text().splitlines()
    # Two seeds with two problems each: at turn 2 three of four programs are right.
    assert [row.split(",")[2] for row in rows if row.startswith("FT-Cobalt,")] == ["0.5", "1.0", "0.75"]
    # Of base's four programs at turn 0 two are wrong, and stay so; the two right ones stay right.
    moved = (page.parent / "RESULTS" / "moves.csv").read_text().splitlines()
    assert moved[1] == "base,1,2,0.0,0.0,2,1.0,0.0"
    first = text
    write_results(study, (0, 1), page)
    assert page.read_text() == first


def write_results(folder, seeds, output):
    assert results.main(results.Arguments(folder, output, seeds)) == 0


def table_rows(text, heading):
    """The cells of a table of a page, its head first."""
    lines = text.partition(f"### {heading}\n")[2].lstrip().partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]


def costs_of(path):
    """The numbers of each row of a file of costs, from `steps` on, by method and seed."""
    with path.open() as file:
        _, *rows = csv.reader(file)
    return {(method, int(seed)): list(map(float, cells)) for method, seed, *cells in rows}


def test_costs_have_the_training_and_the_collection(study):
    page = Path("RESULTS.md")
    write_results(study, (0, 1), page)
    costs = costs_of(Path("RESULTS/costs.csv"))
    for seed in (0, 1):
        # 16 steps of FT and 16 of Cobalt, 2 prompts with 3 samples each, 2 s a step; four commands of 1 s made
        # their data.
        assert costs["FT-Cobalt", seed][:5] == [32.0, 64.0, 192.0, 68.0, 4.0]
        # 12 steps of 2 prompts, each of which has 3 trajectories of 3 responses.
        assert costs["GRPO-MT", seed][:5] == [12.0, 24.0, 216.0, 25.0, 1.0]
    shown = {cells[0]: cells for cells in table_rows(page.read_text(), "Costs")}
    by_head = {method: dict(zip(shown[""], cells, strict=True)) for method, cells in shown.items()}
    # A trajectory of three responses: nearly as dear by prompt, cheaper by response.
    assert (by_head["FT-Cobalt"]["s a prompt"], by_head["FT-Cobalt"]["ms a response"]) == ("1.06", "354")
    assert (by_head["GRPO-MT"]["s a prompt"], by_head["GRPO-MT"]["ms a response"]) == ("1.04", "116")
    impossible = Path("RESULTS/impossible_feedback.csv").read_text().splitlines()
    assert [row.split(",")[-2:] for row in impossible if row.startswith("FT,")] == [["0", "6"]]


def test_a_row_of_equal_time_says_where_its_training_ended(study):
    page, at = Path("RESULTS.md"), SeedFolders(study, 1)
    model = next(at.model(method) for method in EQUAL_TIME if method.slug == "cobalt_time")
    (model / ".cobalt-export").write_text("step 64\n")
    write_results(study, (0, 1), page)
    timed = {cells[0]: cells[-2] for cells in table_rows(page.read_text(), "Equal time")}
    assert timed["Cobalt, own trajectories"] == "1 / 64 (end)"


@pytest.fixture
def offline(study):
    """A study of offline training with everything that its tables need, beside `study`."""
    folder, records = Path("runs/offline"), []
    for seed in (0, 1):
        at = OfflineFolders(folder, seed, study)
        for method in OFFLINE_METHODS:
            metrics = {"training/responses": 5.0, "perf/cpu_memory_used_gb": 4.0, "validation/kl": 0.25}
            training_run(at.training(method.slug), [2.0] * 8, **metrics)
            response = {"text": "a", "reward": 1.0, "origin": "0", "context": []}
            group = {"id": "p/0", "problem_id": "p", "source": "s", "contrast": "required"}
            group["messages"] = [{"role": "user", "content": "q"}]
            statuses = ("accepted", "wrong_answer", "accepted", "wrong_answer")
            group["responses"] = [response | {"status": status} for status in statuses]
            at.data(method.groups.slug).mkdir(parents=True, exist_ok=True)
            write_lines(at.data(method.groups.slug) / "train.jsonl", [group])
            make_run(at.tested(method), [[[0.0, 1.0, 1.0]], [[1.0, 1.0, 1.0]]])
        for moved in MOVED:
            at.divergence(moved).parent.mkdir(parents=True, exist_ok=True)
            at.divergence(moved).write_text(json.dumps({"kl": 0.125, "responses": 4, "tokens": 40}))
        for row in ROWS:
            make_run(at.samples(row), [[[0.0], [1.0]], [[1.0], [1.0]]])
        names = [at.step(f"{writer.slug}_submissions") for writer in WRITERS]
        names += dict.fromkeys(at.step(method.groups.slug) for method in OFFLINE_METHODS)
        records += [{"step": name, "seconds": 5.0, "services_seconds": 4.0} for name in names]
    write_lines(folder / "steps.jsonl", [{"id": number, **record} for number, record in enumerate(records, 1)])
    return folder


def test_offline_rows_have_their_tables_in_the_page_of_the_comparison(study, offline):
    page = Path("RESULTS.md")
    page.write_text("\n".join([*marks(results.MODULE), "between", *marks(offline_results.MODULE), "end\n"]))
    write_results(study, (0, 1), page)
    compared = page.read_text().partition("between")[0]
    arguments = offline_results.Arguments(offline, page, (0, 1), study)
    assert offline_results.main(arguments) == 0
    text = page.read_text()
    assert text.partition("between")[0] == compared and text.endswith("end\n")
    assert "took 3 s a seed" in text
    # 8 steps of 5 responses: 2 accepted ones 20 times, or 4 responses 10 times.
    cells = {line.split(" | ")[0]: line.split(" | ")[-4:] for line in text.splitlines() if "0.250 |" in line}
    assert (cells["| SFT"], cells["| RLOO"]) == (["40", "2", "20.0", "0.250 |"], ["40", "4", "10.0", "0.250 |"])
    assert {line.split(" | ")[0] for line in text.splitlines() if "0.125 |" in line} == {"| Cobalt", "| FT-Cobalt"}
    samples = Path("RESULTS/samples.csv").read_text().splitlines()
    assert samples[1].startswith("base,all,4,1,0.75,")
    costs = costs_of(Path("RESULTS/offline_costs.csv"))
    # Eight steps of 2 groups with 5 responses in all, 2 s each, and groups in 1 s; where trajectories were collected
    # for it, 1 s more.
    assert costs["SFT", 1][:5] == [8.0, 16.0, 40.0, 17.0, 1.0]
    assert costs["Cobalt's partial trajectories, offline", 1][:5] == [8.0, 16.0, 40.0, 18.0, 2.0]


def test_a_row_whose_divergence_is_missing_is_named(study, offline):
    OfflineFolders(offline, 1, study).divergence(MOVED[0]).unlink()
    with pytest.raises(UserError, match=MOVED[0].name):
        offline_results.main(offline_results.Arguments(offline, Path("RESULTS.md"), (0, 1), study))


@pytest.mark.parametrize("seeds", [(), (0, 0)])
def test_seeds_that_are_none_or_not_different_are_refused(study, seeds):
    for write in (lambda: results.main(results.Arguments(study, Path("RESULTS.md"), seeds)),
                  lambda: reproduce.study(reproduce.Arguments(seeds=seeds))):  # fmt: skip
        with pytest.raises(UserError, match="--seeds"):
            write()


def test_columns_of_seeds_are_in_order_whatever_the_flag_says(study):
    for name, seeds in (("a", (0, 1)), ("b", (1, 0))):
        assert results.main(results.Arguments(study, Path(f"{name}.md"), seeds)) == 0
    assert Path("a.md").read_text().replace("(a/", "(b/") == Path("b.md").read_text()


@pytest.mark.parametrize(
    ("named", "spoil"),
    [
        ("seed1", lambda at: (at(1).evaluation(METHODS[4]) / "evaluation.jsonl").unlink()),
        ("ceilings", lambda at: (at(0).world / "data" / "ceilings.json").unlink()),
        ("ft_training", lambda at: write_lines(at(0).training("ft") / "metrics.jsonl", [{"step": 1, "metrics": {}}])),
        ("begin", lambda at: Path("RESULTS.md").write_text("mine, without marks")),
        ("RESULTS.md", lambda at: Path("RESULTS.md").mkdir()),
    ],
)
def test_what_is_wrong_with_a_study_or_its_page_is_named_and_nothing_is_written(study, named, spoil):
    spoil(lambda seed: SeedFolders(study, seed))
    before = Path("RESULTS.md").read_bytes() if Path("RESULTS.md").is_file() else None
    with pytest.raises(UserError, match=named):
        write_results(study, (0, 1), Path("RESULTS.md"))
    assert before == (Path("RESULTS.md").read_bytes() if Path("RESULTS.md").is_file() else None)


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
    with (folder / f"{passes}.csv").open() as file:
        seeds = {
            (row["method"], row["turn"]): [float(value) for name, value in row.items() if name.startswith("seed_")]
            for row in csv.DictReader(file)
        }
    with (folder / f"{gains}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 30
    for row in rows:
        others, own = seeds[row["method"], row["turn"]], seeds[base, row["turn"]]
        each = [a - b for a, b in zip(own, others, strict=True)]
        assert float(row["difference"]) == pytest.approx(sum(each) / len(each), abs=1e-9)
        published = [row["runs_lower"], row["runs_upper"]]
        if len(each) == 1:
            assert published == ["", ""]
        else:
            assert list(map(float, published)) == pytest.approx(student_interval(each), abs=1e-9)
