"""From evaluated records to training rows: which trajectories are kept, where they are cut, prompts, rows for veRL."""

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from support import FakeJudge, square_problem, trajectory_record, write_lines

from cobalt.episode import load_prompts
from cobalt.episode.token_count import PromptTokenCounter, recorded_policy
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.selection import verl_rows
from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.scores import read_scored
from cobalt.selection.segmentation import context, usable_states
from cobalt.selection.selection import max_variance_subset, select, solved_at_first_turn
from cobalt.selection.verl_rows import (
    MultiTurnRowsSettings,
    SingleTurnRowsSettings,
    convert_multi_turn,
    convert_single_turn,
)
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.manifest import manifest_path
from cobalt.stage.records import read_records

SCORES = st.lists(st.integers(0, 20), max_size=12)
RIGHT, HALF, WRONG = (2, 2), (1, 1), (0, 0)  # public and hidden tests passed, of two each


@pytest.fixture
def group_of(tmp_path):
    def make(*samples, turns=None):
        path = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, samples)])
        [group] = read_scored(path, turns or len(samples[0]))
        return group

    return make


@given(SCORES, st.integers(0, 13))
def test_down_sampling_finds_the_largest_variance_that_exhaustive_search_finds(scores, size):
    chosen = max_variance_subset(scores, size)
    assert len(chosen) == len(set(chosen)) == min(size, len(scores))
    if chosen:
        best = max(np.var(subset) for subset in itertools.combinations(scores, len(chosen)))
        assert np.var([scores[index] for index in chosen]) == pytest.approx(best)


@given(SCORES.flatmap(lambda scores: st.tuples(st.just(scores), st.permutations(scores))), st.integers(1, 12))
def test_which_scores_are_chosen_does_not_depend_on_their_order(both, size):
    scores, permuted = both
    assert sorted(scores[i] for i in max_variance_subset(scores, size)) == sorted(
        permuted[i] for i in max_variance_subset(permuted, size)
    )


@pytest.mark.parametrize(
    ("scores", "size", "chosen"),
    [
        ([0, 0, 1, 1], 2, [0, 3]),  # binary scores, even size: half and half (arXiv 2504.13818, Theorem 2)
        ([5, 5, 5, 5], 2, [0, 1]),  # all equal: the smallest k, the first positions
        ([3, 1, 1, 3], 2, [1, 3]),  # of equal scores the low end takes the first, the high end the last
        ([1, 9, 5], 1, [0]),
        ([1, 2], 4, [0, 1]),
        ([], 4, []),
        ([4, 4], 0, []),
    ],
)
def test_ties_are_decided_by_position(scores, size, chosen):
    assert max_variance_subset(scores, size) == chosen


@pytest.mark.parametrize(("first", "solved"), [(RIGHT, True), ((2, 1), False), ((1, 2), False)])
def test_a_problem_that_every_first_program_solves_is_recognised(group_of, first, solved):
    assert solved_at_first_turn(group_of([RIGHT, WRONG], [first, RIGHT])) is solved


@pytest.mark.parametrize(
    ("samples", "rules", "selected", "left_out"),
    [
        # The second and third never change, the fourth is never right, and right once is enough.
        (
            [[WRONG, HALF, RIGHT], [WRONG] * 3, [RIGHT] * 3, [WRONG, HALF, (2, 1)], [RIGHT, HALF, HALF]],
            {}, [0, 4], (2, 1, 0),
        ),
        # Scores 1, 2, 2, 4, 4 over four tests: two of the lowest and two of the highest vary most.
        (
            [[(2, 1), RIGHT], [HALF, RIGHT], [(0, 2), RIGHT], [WRONG, RIGHT], [RIGHT, WRONG]],
            {}, [0, 1, 3, 4], (0, 0, 1),
        ),
        # A test set takes the one that changes least, right or not.
        ([[WRONG, RIGHT], [RIGHT, RIGHT], [HALF, (2, 1)], [HALF, (1, 2)]], {"is_test": True}, [2], (1, 2)),
        # The authors' are in ascending order of their scores, which are 4, 4, 2, 2, 1.
        (
            [[RIGHT, WRONG], [WRONG, RIGHT], [(0, 2), RIGHT], [HALF, RIGHT], [(2, 1), RIGHT]],
            {"authors": True}, [4, 2, 0, 1], (0, 0, 1),
        ),
    ],
    ids=["changing and right", "down-sampling", "test set", "authors"],
)  # fmt: skip
def test_trajectories_are_selected_by_the_papers_rules(group_of, samples, rules, selected, left_out):
    selection = select(group_of(*samples), 4, **rules)
    assert [scored.trajectory.sample for scored in selection.selected] == selected
    assert tuple(selection.dropped.values()) == left_out


TWICE, AGAIN = "public_passed_twice", "solved_again"
KINDS = {"R": (True, True), "P": (True, False), "w": (False, False)}  # all public tests pass, all tests pass


@pytest.mark.parametrize(
    ("programs", "by_the_paper", "without_the_solved_rule"),
    [
        *((programs, (3, None), (3, None)) for programs in ("wwR", "wRw", "Rww", "PwR", "PwP")),
        ("R", (1, None), (1, None)),
        # Two feedbacks in a row that found nothing: the second of them is not used.
        *((programs, (2, TWICE), (2, TWICE)) for programs in ("wRR", "wPR")),
        *((programs, (1, TWICE), (1, TWICE)) for programs in ("PRw", "RR")),
        # Programs t and t + 2 are right: nothing from state t on is used, whatever the program between them is.
        ("RwR", (0, AGAIN), (3, None)),
        *((programs, (0, AGAIN), (1, TWICE)) for programs in ("RRR", "RPR")),
        ("wRwR", (1, AGAIN), (4, None)),
    ],
)
def test_the_papers_rules_stop_a_trajectory(programs, by_the_paper, without_the_solved_rule):
    public_passed, solved = zip(*map(KINDS.get, programs), strict=True)
    assert usable_states(public_passed, solved) == by_the_paper
    assert usable_states(public_passed, solved, "off") == without_the_solved_rule


def test_a_context_ends_with_feedback_and_remembers_the_best_program_in_it(group_of):
    group = group_of([(1, 0), (2, 1), (0, 0), RIGHT], turns=3)  # the last turn is left out
    assert group.trajectories[0].passed == [1, 3, 0]
    contexts = [context(group, group.trajectories[0], turn) for turn in range(4)]
    assert [len(cut.messages) for cut in contexts] == [2, 4, 6, 8]
    assert [cut.messages[-1]["content"] for cut in contexts] == ["problem 0", "feedback 0", "feedback 1", "feedback 2"]
    assert [cut.best_pass_rate * group.tests for cut in contexts] == pytest.approx([0, 1, 3, 3])


# --- prompts

SOLVE = "```python\nprint(int(input()) ** 2)\n```"
CRASH = "```python\nraise ValueError\n```"
PERTURBED = {"inputs": ["2\n", "3\n"], "outputs": ["9\n", "4\n"]}  # square_problem's public tests, outputs swapped


async def process(tmp_path, policy, records, judge=None, **settings):
    source = write_lines(tmp_path / "evaluation.jsonl", records)
    run = ProcessingSettings(source, tmp_path / "prompts.jsonl", policy, **settings)
    summary = (await select_prompts(run, judge or FakeJudge(None))).summary
    return summary, read_records(run.output_file)


@pytest.mark.slow
async def test_prompts_of_a_problem_worked_by_hand(tmp_path, policy):
    record = trajectory_record(7, [[WRONG, HALF, RIGHT], [RIGHT, WRONG, RIGHT], [WRONG] * 3], source="codeforces")
    easy = trajectory_record(8, [[RIGHT, WRONG, WRONG]] * 3)
    summary, rows = await process(tmp_path, policy, [record, easy])
    assert sorted(row["id"] for row in rows) == ["7/-/0", "7/0/1", "7/0/2", "7/0/3"]
    by_turn = {row["turn"]: row for row in rows}
    assert [by_turn[turn]["prev_best_pass_rate"] for turn in range(4)] == [0, 0, 0.5, 1]
    shown = ["system", "problem 7", "answer 0.0", "feedback 0"]
    assert [message["content"] for message in by_turn[1]["prompt"]] == shown
    assert by_turn[3]["prompt"] == record["conversations"][0]
    assert {row["sample"] for row in rows} == {None, 0}
    assert all(json.loads(row["test_cases"]) == json.loads(record["test_cases"]) for row in rows)
    assert {(row["problem_id"], row["difficulty"], row["source"], row["perturbed"]) for row in rows} == {
        (7, "EASY", "codeforces", False)
    }
    assert summary["problems"]["kept"] == 1
    assert summary["problems"]["dropped: every first program is right"] == 1
    assert summary["trajectories"]["dropped: no turn changes the pass rate"] == 1
    assert summary["trajectories"]["dropped: no state of it is left"] == 1
    assert summary["prompts"]["dropped: solved again"] == 3
    assert json.loads(manifest_path(tmp_path / "prompts.jsonl").read_text())["summary"] == summary


PROGRAM = st.tuples(st.integers(0, 2), st.integers(0, 2))
SAMPLES = st.lists(st.tuples(PROGRAM, PROGRAM, PROGRAM), min_size=1, max_size=24)


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SAMPLES, min_size=1, max_size=4), st.booleans())
async def test_a_problem_gives_at_most_13_prompts_and_every_state_is_counted_once(tmp_path, policy, problems, is_test):
    records = [trajectory_record(identifier, samples) for identifier, samples in enumerate(problems)]
    records.append(trajectory_record("kept", [[WRONG] * 3]))
    # The path is the same each time: what an earlier example left would be refused.
    for old in tmp_path.glob("prompts*"):
        old.unlink()
    summary, rows = await process(tmp_path, policy, records, is_test=is_test)
    for identifier in range(len(problems)):
        own = [row for row in rows if row["problem_id"] == identifier]
        assert len(own) <= (1 + 3 if is_test else 1 + 4 * 3)
    trajectories, prompts = Counter(summary["trajectories"]), Counter(summary["prompts"])
    dropped = sum(count for name, count in trajectories.items() if name.startswith("dropped"))
    assert trajectories["read"] == trajectories["kept"] + dropped
    states = 3 * (trajectories["kept"] + trajectories["dropped: no state of it is left"])
    assert states + prompts["kept: after 0 programs"] == sum(prompts.values())
    assert len(rows) == sum(count for name, count in prompts.items() if name.startswith("kept"))


async def test_contexts_over_the_token_limit_are_left_out_and_those_at_it_stay(tmp_path, policy):
    record = trajectory_record(0, [[WRONG, WRONG, RIGHT]])
    counter = PromptTokenCounter(policy)
    lengths = counter.count([record["conversations"][0][:end] for end in (2, 4, 6, 8)])
    assert lengths == sorted(set(lengths))
    for count, limit in enumerate(lengths, 1):
        (tmp_path / str(count)).mkdir()
        summary, rows = await process(tmp_path / str(count), policy, [record], max_prompt_tokens=limit)
        assert sorted(row["turn"] for row in rows) == list(range(count))
        assert summary["prompts"].get("dropped: over the token limit", 0) == 4 - count


def without(record, field):
    return {name: value for name, value in record.items() if name != field}


THREE = trajectory_record(3, [[WRONG, HALF, RIGHT], [WRONG, HALF, RIGHT]])
SQUARE = without(without(trajectory_record(3, [[WRONG, HALF, RIGHT]] * 3), "hidden_verdicts"), "finish_reasons")


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([square_problem(3)], "record 3: .*'conversations'"),
        ([without(THREE, "all_pass_rates")], "record 3: .*'all_pass_rates'.* eval_multi_turn.py"),
        ([without(THREE, "public_pass_rates")], "record 3: .*'public_pass_rates'"),
        ([trajectory_record(3, [[WRONG, RIGHT]])], "record 3: .* 2 .* 3 .*--num_turns 2"),
        ([SQUARE], "record 3: .*run_multi_turn_vllm.py --replay_file"),  # as of another project
        ([THREE | {"all_pass_rates": [[0, 0.3, 1]] * 2}], "record 3: .*'all_pass_rates' .*0.3.* 2 "),
        ([THREE | {"conversations": [THREE["conversations"][0][:-1]] * 2}], "record 3: .*feedback"),
        ([without(THREE, "public_test_cases")], "record 3: .*'public_test_cases'"),
        ([without(THREE, "test_cases")], "record 3: .*'test_cases'"),
        ([THREE | {"public_tests": "perturbed"}], "record 3: .*--perturbed_ratio"),
    ],
)
def test_records_that_are_not_evaluated_trajectories_are_refused(tmp_path, records, message):
    with pytest.raises(UserError, match=message):
        list(read_scored(write_lines(tmp_path / "e.jsonl", records), 3))


def perturbed_record(identifier, response, **fields):
    """A problem with one trajectory of three turns, whose raw responses are all the same."""
    record = trajectory_record(identifier, [[WRONG, WRONG, RIGHT]])
    return record | {"raw_responses": [[response]] * 3, "perturbed_public_test_cases": json.dumps(PERTURBED)} | fields


@pytest.mark.sandbox
async def test_perturbed_copies_end_with_the_impossible_feedback_and_keep_the_true_tests(tmp_path, policy):
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        records = [perturbed_record(0, SOLVE), perturbed_record(1, CRASH), perturbed_record(2, "no program")]
        summary, rows = await process(tmp_path, policy, records, judge, perturbed_ratio=1.0)
    # What the copies say is decided by these, too.
    assert {"judge", "prompts"} <= json.loads(manifest_path(tmp_path / "prompts.jsonl").read_text())["arguments"].keys()
    added = [row for row in rows if row["perturbed"]]
    # A crash shows no expected output, and a response without a program nothing at all.
    assert sorted(row["id"] for row in added) == ["0/0/1/perturbed", "0/0/2/perturbed", "0/0/3/perturbed"]
    by_id = {row["id"]: row for row in rows}
    for row in added:
        original = by_id[row["id"].removesuffix("/perturbed")]
        assert row["prompt"][:-1] == original["prompt"][:-1]
        shown = load_prompts("paper").feedback("Input:\n2\nProgram's Output:\n4\nExpected Output:\n9")
        assert row["prompt"][-1]["content"] == shown
        same = ("test_cases", "prev_best_pass_rate", "turn", "sample", "problem_id")
        assert [row[name] for name in same] == [original[name] for name in same]
    assert summary["perturbed prompts"] == {
        "wanted": 9,
        "dropped: the feedback would show no impossible test": 6,
        "added": 3,
    }


async def test_the_ratio_counts_partial_trajectories_and_the_seed_chooses_them_and_the_order(tmp_path, policy):
    """The impossible tests come from a file of the same problems."""
    chosen, order = [], []
    records = [trajectory_record(i, [[WRONG, WRONG, RIGHT]], raw_responses=[[SOLVE]] * 3) for i in range(8)]
    tests = json.dumps(PERTURBED)
    rows = (square_problem(identifier, perturbed_public_test_cases=tests) for identifier in range(8))
    perturbed = {"perturbed_ratio": 0.25, "perturbed_file": write_lines(tmp_path / "perturbed.jsonl", rows)}
    for attempt, seed in enumerate((1, 1, 2)):
        (tmp_path / str(attempt)).mkdir()
        _, rows = await process(tmp_path / str(attempt), policy, records, FakeJudge(), seed=seed, **perturbed)
        chosen.append({row["id"] for row in rows if row["perturbed"]})
        order.append([row["id"] for row in rows if not row["perturbed"]])
    assert len(chosen[0]) == 6  # of 8 x 3 partial trajectories
    assert chosen[0] == chosen[1] != chosen[2]
    assert order[0] == order[1] != order[2]
    assert sorted(order[0]) == sorted(order[2])


async def test_a_failing_judge_ends_the_run_and_never_becomes_a_prompt(tmp_path, policy):
    answers = itertools.chain([False], itertools.repeat(InfrastructureError("the sandbox died")))
    judge = FakeJudge(lambda *_: next(answers))
    with pytest.raises(InfrastructureError, match="the sandbox died"):
        await process(tmp_path, policy, [perturbed_record(0, SOLVE)], judge, perturbed_ratio=1.0)
    assert not (tmp_path / "prompts.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_turns": 0}, "num_turns .*0"),
        ({"max_trajectories": 0}, "max_trajectories .*0"),
        ({"perturbed_ratio": 1.5}, "perturbed_ratio .*1.5"),
        ({"perturbed_ratio": 1.0}, "--perturbed_file"),
        ({"max_prompt_tokens": 1}, "evaluation.jsonl: .*--max_prompt_tokens.* docs/method.md"),
        *(
            ({"perturbed_ratio": 0.5, "perturbed_file": problem}, message)
            for problem, message in (
                (square_problem(0, public_test_cases=PERTURBED, perturbed_public_test_cases=PERTURBED), "problem 0 "),
                (square_problem(5, perturbed_public_test_cases=PERTURBED), "--perturbed_file"),
                (square_problem(0), "line 1: .*'perturbed_public_test_cases'.* run_perturbation.py"),
                (square_problem(0, perturbed_public_test_cases="x"), "'perturbed_public_test_cases'.* JSON"),
            )
        ),
    ],
)
async def test_settings_that_cannot_work_and_perturbed_tests_of_another_run_are_refused(
    tmp_path, policy, settings, message
):
    if "perturbed_file" in settings:
        settings = settings | {"perturbed_file": write_lines(tmp_path / "p.jsonl", [settings["perturbed_file"]])}
    with pytest.raises(UserError, match=message):
        await process(tmp_path, policy, [trajectory_record(0, [[WRONG, WRONG, RIGHT]])], **settings)
    assert not (tmp_path / "prompts.jsonl").exists()


@pytest.mark.parametrize(
    ("file", "content", "names"),
    [
        ("tokenizer.json", '{"model": {"type": "no such"}}', "policy'.* tokenizer.json"),
        ("tokenizer.json", None, "policy'.* tokenizer.json"),
        ("chat_template.jinja", None, "policy .* chat_template.jinja"),
        *((None, name, f"'{name}'.* tokenizer.json") for name in ("nobody/no-such-model", "no/such/folder")),
    ],
)
def test_a_model_whose_tokenizer_or_chat_template_cannot_be_used_is_named(
    tmp_path, policy, monkeypatch, file, content, names
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = Path(shutil.copytree(policy, tmp_path / "policy"))
    if file and content is None:
        (folder / file).unlink()
    elif file:
        (folder / file).write_text(content)
    with pytest.raises(UserError, match=names):
        PromptTokenCounter(str(folder) if file else content)


@pytest.mark.parametrize(
    ("engine", "policy"),
    [
        ({"model": "nobody/nothing"}, "nobody/nothing"),
        ({"replay": "digest"}, "Qwen/Qwen3-8B"),
        ({"model": "model", "fingerprint": "f"}, None),  # a name that only its own machine knows
        ({"model_name": "gpt-5"}, None),
    ],
)
def test_without_a_policy_its_tokenizer_is_that_of_the_model_that_wrote_the_trajectories(tmp_path, engine, policy):
    (tmp_path / "e.run.json").write_text(json.dumps({"arguments": {"stage": "multi_turn", "engine": engine}}))
    if policy:
        assert recorded_policy(tmp_path / "e.jsonl") == policy
        return
    with pytest.raises(UserError, match="--model"):
        recorded_policy(tmp_path / "e.jsonl")


async def test_selection_takes_the_tokenizer_of_the_model_that_wrote_the_trajectories(tmp_path):
    arguments = {"stage": "multi_turn", "engine": {"model": "nobody/nothing"}}
    (tmp_path / "evaluation.run.json").write_text(json.dumps({"arguments": arguments}))
    with pytest.raises((UserError, InfrastructureError), match="nobody/nothing"):
        await process(tmp_path, None, [trajectory_record(7, [[WRONG, HALF, RIGHT]])])


# --- rows for veRL


def settings_of(tmp_path, policy, files, kind=SingleTurnRowsSettings, limit=4096, **more):
    """The settings of a conversion of two files, or of the records of two."""
    train, validation = (
        one if isinstance(one, Path) else write_lines(tmp_path / f"{name}.jsonl", one)
        for name, one in zip("tv", files, strict=True)
    )
    folder, files = tmp_path / "verl", {"train_file": train, "validation_file": validation}
    return kind(local_dir=folder, model_name=policy, max_prompt_length=limit, **files, **more)


def test_single_turn_rows_pose_the_problem_and_carry_all_tests(tmp_path, policy):
    train = [square_problem(0, difficulty=None), square_problem(1, instruction="Mine.")]
    run = settings_of(tmp_path, policy, (train, [square_problem(1), square_problem(2)]))
    summary = convert_single_turn(run).summary
    assert summary["validation"]["problems also in train"] == 1
    rows = parquet.read_table(run.local_dir / "train.parquet").to_pylist()
    assert list(rows[0]) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    prompts = load_prompts("paper")
    assert rows[0]["prompt"] == [
        {"role": "system", "content": prompts.system},
        {"role": "user", "content": prompts.first_turn("Print the square of a number.")},
    ]
    assert rows[1]["prompt"][1]["content"] == "Mine."
    assert json.loads(rows[0]["reward_model"]["ground_truth"]) == json.loads(square_problem(0)["test_cases"])
    first_turn = {"sample": None, "turn": 0, "prev_best_pass_rate": 0.0, "perturbed": False}
    named = {"index": 1, "split": "train", "id": "1", "problem_id": "1", "difficulty": "EASY"}
    assert rows[1]["extra_info"] == named | first_turn and rows[0]["extra_info"]["difficulty"] is None
    assert summary["train"]["rows"] == 2
    manifest = json.loads(manifest_path(run.local_dir / "train.parquet").read_text())
    assert manifest["summary"] == {"train": summary["train"]}


def test_prompts_that_are_named_word_every_problem_or_are_refused(tmp_path, policy):
    worded = load_prompts("pocket").first_turn("Print the square of a number.")
    train = [square_problem(0), square_problem(1, instruction=worded)]
    run = settings_of(tmp_path, policy, (train, [square_problem(2, instruction="Mine.")]), prompts="pocket")
    with pytest.raises(UserError, match=r"v\.jsonl: record 2: .*'instruction'.*--prompts"):
        convert_single_turn(run)
    run = settings_of(tmp_path, policy, (train, [square_problem(2)]), prompts="pocket")
    assert convert_single_turn(run).summary["train"]["rows"] == 2


@pytest.mark.slow
async def test_verls_own_data_set_reads_the_rows_of_contextual_prompts(tmp_path, policy):
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    files = {"--train_file": tmp_path / "train.jsonl", "--validation_file": tmp_path / "validation.jsonl"}
    for flag, file in files.items():
        record = trajectory_record(file.stem, [[WRONG, HALF, RIGHT], [HALF, RIGHT, WRONG]])
        source = write_lines(tmp_path / f"of_{file.name}", [record])
        prompts = ProcessingSettings(source, file, policy, is_test=flag == "--validation_file")
        following = (await select_prompts(prompts, None)).next
        assert f"{flag} {file} " in following and f"--model {policy}" in following
    run = settings_of(tmp_path, policy, files.values(), MultiTurnRowsSettings)
    convert_multi_turn(run)
    path = str(run.local_dir / "train.parquet")
    config = OmegaConf.create(
        {"max_prompt_length": 4096, "cache_dir": str(tmp_path / "cache"), "filter_overlong_prompts_workers": None}
    )
    tokenizer = AutoTokenizer.from_pretrained(policy)
    data = RLHFDataset([path], tokenizer, config)
    source = json.loads(run.train_file.read_text().splitlines()[0])
    assert len(data) == 7
    assert data[0]["raw_prompt"] == source["prompt"]
    assert json.loads(data[0]["reward_model"]["ground_truth"]) == json.loads(source["test_cases"])
    assert data[6]["index"] == 6
    # veRL measures with the same ruler: a limit that leaves a row out there leaves it out here.
    config.max_prompt_length = PromptTokenCounter(policy).count([source["prompt"]])[0] - 1
    shorter = RLHFDataset([path], tokenizer, config)
    assert source["prompt"] not in [row["raw_prompt"] for row in shorter]


def test_row_groups_stay_small_in_rows_and_in_characters(tmp_path, policy, monkeypatch):
    monkeypatch.setattr(verl_rows, "ROWS_IN_A_GROUP", 3)
    monkeypatch.setattr(verl_rows, "CHARACTERS_IN_A_GROUP", 2000)
    big = {"inputs": ["1" * 1500], "outputs": ["1"]}
    train = [square_problem(i) for i in range(3)] + [square_problem(i, test_cases=big) for i in range(3, 8)]
    run = settings_of(tmp_path, policy, (train, [square_problem(9)]), prompts="pocket")
    convert_single_turn(run)
    file = parquet.ParquetFile(run.local_dir / "train.parquet")
    assert [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)] == [3, 2, 2, 1]
    table = file.read().to_pylist()
    assert [row["extra_info"]["index"] for row in table] == list(range(8))


PROMPT = {
    "id": "1/-/0", "problem_id": 1, "sample": None, "turn": 0, "prompt": [{"role": "user", "content": "a"}],
    "prev_best_pass_rate": 0.0, "perturbed": False, "test_cases": {"inputs": ["1"], "outputs": ["1"]},
}  # fmt: skip
ROWS = {MultiTurnRowsSettings: (convert_multi_turn, PROMPT), SingleTurnRowsSettings: (convert_single_turn, {})}
OF_PROBLEMS, OF_PROMPTS = SingleTurnRowsSettings, MultiTurnRowsSettings


@pytest.mark.parametrize(
    ("kind", "change", "validation", "limit", "message"),
    [
        (OF_PROBLEMS, square_problem(1), [], 4096, "v.jsonl: .*--max_prompt_length 4096"),
        (OF_PROBLEMS, square_problem(1), [square_problem(2)], 5, "t.jsonl: .* 1 .*--max_prompt_length 5"),
        (OF_PROBLEMS, square_problem(1), [square_problem(2)], 0, "max_prompt_length .*0"),
        (OF_PROMPTS, {"problem_id": None, "prompt": None}, [PROMPT], 4096, "process_multi_turn_taco.py"),
        (OF_PROMPTS, {"test_cases": "["}, [PROMPT], 4096, "'1/-/0' .*JSON"),
        (OF_PROMPTS, {"test_cases": {"inputs": [], "outputs": []}}, [PROMPT], 4096, "'test_cases'"),
        (OF_PROMPTS, {"prompt": [{"role": "assistant", "content": "a"}]}, [PROMPT], 4096, "'prompt"),
        (OF_PROMPTS, {"prompt": []}, [PROMPT], 4096, "'prompt"),
        (OF_PROMPTS, {"prev_best_pass_rate": 2}, [PROMPT], 4096, "'prev_best_pass_rate'"),
        (OF_PROMPTS, {"perturbed": None, "prev_best_pass_rate": None}, [PROMPT], 4096, "'prev_best_pass_rate'"),
    ],
)
def test_inputs_without_rows_and_rows_of_another_kind_are_refused_and_leave_no_file(
    tmp_path, policy, kind, change, validation, limit, message
):
    convert, row = ROWS[kind]
    with pytest.raises(UserError, match=message):
        convert(settings_of(tmp_path, policy, ([row | change], validation), kind, limit))
    assert not [path for path in tmp_path.glob("verl/*") if not path.name.endswith(".run.json")]
