"""From evaluated records to prompts: reading, the limit on length, counts, order, perturbed copies, bad input."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import FakeJudge, square_problem, trajectory_record, write_lines

from cobalt.episode import load_prompts
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.judge import JudgeSettings, LocalJudge
from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.scores import read_scored
from cobalt.selection.segmentation import context
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.stage.manifest import manifest_path
from cobalt.stage.records import read_records

RIGHT, HALF, WRONG = (2, 2), (1, 1), (0, 0)
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
    assert by_turn[0]["sample"] is None
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
    trajectories, prompts = summary["trajectories"], summary["prompts"]
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
    for kept, limit in enumerate(lengths, 1):
        (tmp_path / str(kept)).mkdir()
        summary, rows = await process(tmp_path / str(kept), policy, [record], max_prompt_tokens=limit)
        assert sorted(row["turn"] for row in rows) == list(range(kept))
        assert summary["prompts"]["dropped: over the token limit"] == 4 - kept
    (tmp_path / "none").mkdir()
    other = trajectory_record(1, [[WRONG] * 3])
    other["conversations"][0][1]["content"] = "0"
    summary, rows = await process(tmp_path / "none", policy, [record, other], max_prompt_tokens=lengths[0] - 1)
    assert [row["problem_id"] for row in rows] == [1]
    assert summary["problems"]["dropped: the problem is over the token limit"] == 1


def test_prompts_are_measured_as_the_tokenizer_itself_measures_them(policy):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(policy)
    conversations = trajectory_record(0, [[WRONG, HALF, RIGHT], [RIGHT, WRONG, RIGHT]])["conversations"]
    conversations[0][3]["content"] = "é \U0001f600 <|im_end|> <think>\n\tx = 1"
    encoded = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=True)
    assert PromptTokenCounter(policy).count(conversations) == [len(ids) for ids in encoded["input_ids"]]
    assert PromptTokenCounter(policy).count([]) == []


def authors_file(record):
    """A record as the authors release it: without verdicts and finish reasons, its axes known by lengths alone."""
    record = {name: value for name, value in record.items() if name not in ("hidden_verdicts", "finish_reasons")}
    for name in ("public_pass_rates", "raw_responses"):
        record[name] = [list(row) for row in zip(*record[name], strict=True)]
    return record


def test_later_turns_are_left_out(tmp_path):
    path = write_lines(tmp_path / "e.jsonl", [trajectory_record(0, [[WRONG, HALF, RIGHT, WRONG]])])
    [group] = read_scored(path, 2)
    assert group.trajectories[0].passed == [0, 2]
    assert context(group, group.trajectories[0], 2).messages[-1]["content"] == "feedback 1"


def without(record, field):
    return {name: value for name, value in record.items() if name != field}


THREE = trajectory_record(3, [[WRONG, HALF, RIGHT], [WRONG, HALF, RIGHT]])
SQUARE = trajectory_record(3, [[WRONG, HALF, RIGHT]] * 3)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([square_problem(3)], "record 3: .*'conversations'"),
        ([without(THREE, "all_pass_rates")], "record 3: .*'all_pass_rates': run eval_multi_turn.py"),
        ([without(THREE, "public_pass_rates")], "has no 'public_pass_rates'"),
        ([trajectory_record(3, [[WRONG, RIGHT]])], "2 turns, .* 3 .*--num_turns 2"),
        ([authors_file(SQUARE)], "the axes of its fields"),
        ([THREE | {"all_pass_rates": [[0, 0.3, 1]] * 2}], "field 'all_pass_rates' holds 0.3, .* 2 tests"),
        ([THREE | {"conversations": [THREE["conversations"][0][:-1]] * 2}], "record 3: .*feedback"),
        ([THREE, THREE], "id 3 is already used"),
        ([without(THREE, "public_test_cases")], "record 3: .*field 'public_test_cases'"),
        ([without(THREE, "test_cases")], "field 'test_cases' is missing"),
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
    added = [row for row in rows if row["perturbed"]]
    # A crash shows no expected output, and a response without a program nothing at all.
    assert sorted(row["id"] for row in added) == ["0/0/1/perturbed", "0/0/2/perturbed", "0/0/3/perturbed"]
    by_id = {row["id"]: row for row in rows}
    for row in added:
        original = by_id[row["id"].removesuffix("/perturbed")]
        assert row["prompt"][:-1] == original["prompt"][:-1]
        text = row["prompt"][-1]["content"]
        assert "Input:\n2\nProgram's Output:\n4\nExpected Output:\n9" in text
        assert text == load_prompts("paper").feedback("Input:\n2\nProgram's Output:\n4\nExpected Output:\n9")
        same = ("test_cases", "prev_best_pass_rate", "turn", "sample", "problem_id")
        assert [row[name] for name in same] == [original[name] for name in same]
    assert summary["perturbed prompts"] == {
        "wanted": 9,
        "dropped: the feedback would show no impossible test": 6,
        "dropped: over the token limit": 0,
        "added": 3,
    }


@pytest.mark.sandbox
async def test_the_ratio_counts_partial_trajectories_and_the_seed_chooses_them_and_the_order(tmp_path, policy):
    """The impossible tests come from a file of the same problems."""
    chosen, order = [], []
    records = [trajectory_record(i, [[WRONG, WRONG, RIGHT]], raw_responses=[[SOLVE]] * 3) for i in range(8)]
    tests = json.dumps(PERTURBED)
    rows = (square_problem(identifier, perturbed_public_test_cases=tests) for identifier in range(8))
    perturbed = {"perturbed_ratio": 0.25, "perturbed_file": write_lines(tmp_path / "perturbed.jsonl", rows)}
    async with LocalJudge(JudgeSettings(concurrency=1)) as judge:
        for attempt, seed in enumerate((1, 1, 2)):
            (tmp_path / str(attempt)).mkdir()
            _, rows = await process(tmp_path / str(attempt), policy, records, judge, seed=seed, **perturbed)
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
        ({"num_turns": 0}, "num_turns is 0"),
        ({"max_trajectories": 0}, "max_trajectories is 0"),
        ({"perturbed_ratio": 1.5}, "perturbed_ratio is 1.5"),
        ({"perturbed_ratio": 1.0}, "give --perturbed_file"),
        ({"max_prompt_tokens": 1}, "no prompt is left"),
        *(
            ({"perturbed_ratio": 0.5, "perturbed_file": problem}, message)
            for problem, message in (
                (square_problem(0, public_test_cases=PERTURBED, perturbed_public_test_cases=PERTURBED), "other public"),
                (square_problem(5, perturbed_public_test_cases=PERTURBED), "give --perturbed_file"),
                (square_problem(0), "field 'perturbed_public_test_cases' is missing"),
                (square_problem(0, perturbed_public_test_cases="x"), "not valid JSON"),
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


@pytest.mark.parametrize("name", ["nobody/no-such-model", "no/such/folder"])
def test_a_model_that_cannot_be_fetched_asks_for_a_local_folder(monkeypatch, name):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=f"tokenizer of '{name}'.* folder"):
        PromptTokenCounter(name)


BROKEN = [
    ("tokenizer.json", '{"model": {"type": "no such"}}', "cannot load the tokenizer"),
    ("tokenizer.json", None, "cannot load the tokenizer"),
    ("chat_template.jinja", None, "has no chat template"),
]


@pytest.mark.parametrize(("file", "content", "says"), BROKEN)
def test_a_broken_tokenizer_or_chat_template_is_named(tmp_path, policy, file, content, says):
    folder = Path(shutil.copytree(policy, tmp_path / "policy"))
    (folder / file).unlink() if content is None else (folder / file).write_text(content)
    with pytest.raises(UserError, match=says):
        PromptTokenCounter(str(folder)).count([[{"role": "user", "content": "a"}]])
