"""Parquet for veRL: columns, lengths, splits, and veRL's own data set reading them."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet
from support import square_problem, trajectory_record, write_lines

from cobalt.episode import load_prompts
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.selection import verl_rows
from cobalt.selection.processing import ProcessingSettings, select_prompts
from cobalt.selection.verl_rows import (
    MultiTurnRowsSettings,
    SingleTurnRowsSettings,
    convert_multi_turn,
    convert_single_turn,
)
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import manifest_path

COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]
RIGHT, HALF, WRONG = (2, 2), (1, 1), (0, 0)


def settings_of(tmp_path, policy, files, kind=SingleTurnRowsSettings, limit=4096, **more):
    """The settings of a conversion of two files, or of the records of two."""
    train, validation = (
        one if isinstance(one, Path) else write_lines(tmp_path / f"{name}.jsonl", one)
        for name, one in zip("tv", files, strict=True)
    )
    folder, files = tmp_path / "verl", {"train_file": train, "validation_file": validation}
    return kind(local_dir=folder, model_name=policy, max_prompt_length=limit, **files, **more)


async def multi_turn(tmp_path, policy):
    """Contextual prompts of two splits, made by the whole chain, which says how it goes on."""
    files = {False: tmp_path / "train.jsonl", True: tmp_path / "validation.jsonl"}
    for is_test, file in files.items():
        record = trajectory_record(file.stem, [[WRONG, HALF, RIGHT], [HALF, RIGHT, WRONG]])
        source = write_lines(tmp_path / f"of_{file.name}", [record])
        outcome = await select_prompts(ProcessingSettings(source, file, policy, is_test=is_test), None)
        assert [f"{flag} {file} " in outcome.next for flag in ("--train_file", "--validation_file")] == [
            not is_test, is_test,
        ]  # fmt: skip
        assert f"--model {policy}" in outcome.next
    return settings_of(tmp_path, policy, files.values(), MultiTurnRowsSettings)


def test_single_turn_rows_pose_the_problem_and_carry_all_tests(tmp_path, policy):
    train = [square_problem(0), square_problem(1, instruction="Mine.")]
    run = settings_of(tmp_path, policy, (train, [square_problem(2)]))
    summary = convert_single_turn(run).summary
    rows = parquet.read_table(run.local_dir / "train.parquet").to_pylist()
    assert list(rows[0]) == COLUMNS
    prompts = load_prompts("paper")
    assert rows[0]["prompt"] == [
        {"role": "system", "content": prompts.system},
        {"role": "user", "content": prompts.first_turn("Print the square of a number.")},
    ]
    assert rows[1]["prompt"][1]["content"] == "Mine."
    assert json.loads(rows[0]["reward_model"]["ground_truth"]) == json.loads(square_problem(0)["test_cases"])
    first_turn = {"sample": None, "turn": 0, "prev_best_pass_rate": 0.0, "perturbed": False}
    named = {"index": 1, "split": "train", "id": "1", "problem_id": "1", "difficulty": "EASY"}
    assert rows[1]["extra_info"] == named | first_turn
    assert summary["train"]["rows"] == 2
    manifest = json.loads(manifest_path(run.local_dir / "train.parquet").read_text())
    assert manifest["summary"] == {"train": summary["train"]}
    longest = summary["train"]["longest prompt, tokens"]
    for limit, rows in ((longest, 2), (longest - 1, 1)):
        (tmp_path / f"{limit}").mkdir()
        run = settings_of(tmp_path / f"{limit}", policy, (train, train[1:]), limit=limit)
        assert convert_single_turn(run).summary["train"]["rows"] == rows


def test_prompts_that_are_named_word_every_problem_or_are_refused(tmp_path, policy):
    worded = load_prompts("pocket").first_turn("Print the square of a number.")
    train = [square_problem(0), square_problem(1, instruction=worded)]
    run = settings_of(tmp_path, policy, (train, [square_problem(2, instruction="Mine.")]), prompts="pocket")
    with pytest.raises(UserError, match=r"v\.jsonl: record 2: .*'instruction'.*--prompts"):
        convert_single_turn(run)
    run = settings_of(tmp_path, policy, (train, [square_problem(2)]), prompts="pocket")
    assert convert_single_turn(run).summary["train"]["rows"] == 2


@pytest.mark.slow
async def test_verls_own_data_set_reads_the_rows_and_streams_them(tmp_path, policy):
    import datasets
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    run = await multi_turn(tmp_path, policy)
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
    streamed = datasets.load_dataset("parquet", data_files=path, split="train", streaming=True)
    assert [row["extra_info"]["index"] for row in streamed] == list(range(7))


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


@pytest.mark.parametrize(
    ("train", "validation", "limit", "message"),
    [
        ([square_problem(1)], [], 4096, "v.jsonl: .* 0 of 0 .*--max_prompt_length 4096"),
        ([square_problem(1)], [square_problem(2)], 5, "1 of 1 .*--max_prompt_length 5"),
        ([square_problem(1)], [square_problem(2)], 0, "max_prompt_length is 0"),
        ([square_problem(1, test_cases="{")], [square_problem(2)], 4096, "record 1: field 'test_cases': .*not valid"),
        ([square_problem(1), square_problem(1)], [square_problem(2)], 4096, "id 1 is already used"),
    ],
)  # fmt: skip
def test_bad_problems_are_refused_and_leave_no_file(tmp_path, policy, train, validation, limit, message):
    with pytest.raises(UserError, match=message):
        convert_single_turn(settings_of(tmp_path, policy, (train, validation), limit=limit))
    assert not [path for path in tmp_path.glob("verl/*") if not path.name.endswith(".run.json")]


PROMPT = {
    "id": "1/-/0", "problem_id": 1, "sample": None, "turn": 0, "prompt": [{"role": "user", "content": "a"}],
    "prev_best_pass_rate": 0.0, "perturbed": False, "test_cases": {"inputs": ["1"], "outputs": ["1"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (square_problem(1), "process_multi_turn_taco.py"),
        ({"test_cases": "["}, "not valid JSON"),
        ({"test_cases": {"inputs": [], "outputs": []}}, "'test_cases' has no test"),
        ({"prompt": [{"role": "assistant", "content": "a"}]}, "'prompt"),
        ({"prompt": []}, "'prompt"),
        ({"prev_best_pass_rate": 2}, "'prev_best_pass_rate'"),
        ({"perturbed": None, "prev_best_pass_rate": None}, "'prev_best_pass_rate'"),
    ],
)
def test_rows_that_are_not_contextual_prompts_are_refused(tmp_path, policy, change, message):
    row = change if "question" in change else PROMPT | change
    with pytest.raises(UserError, match=message):
        convert_multi_turn(settings_of(tmp_path, policy, ([row], [PROMPT]), MultiTurnRowsSettings))
