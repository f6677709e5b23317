"""A result says what made it, and is not continued with other arguments or other data."""

import json
import sys

import pytest

from cobalt.stage.errors import UserError
from cobalt.stage.manifest import manifest_path, open_manifest, recorded_arguments, write_summary

ARGUMENTS = {"n": 16, "engine": {"model": "m"}}


@pytest.fixture
def run(tmp_path):
    for name in ("data", "same/data", "changed/data", "other"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("two\n" if "changed" in name else "one\n")
    result = tmp_path / "run" / "result.jsonl"
    open_manifest(result, ARGUMENTS, [tmp_path / "data.jsonl"])
    result.write_text('{"id": 1}\n')
    return tmp_path / "data.jsonl", result


def test_the_manifest_lies_beside_the_result_and_holds_what_made_it_and_a_broken_one_is_named(run):
    _, result = run
    content = json.loads(manifest_path(result).read_text())
    assert content["arguments"] == recorded_arguments(result) == ARGUMENTS
    assert len(content["inputs"]["data.jsonl"]) == 64
    assert {"command", "git", "packages", "python", "started"} <= content.keys()
    assert recorded_arguments(result.with_name("other.jsonl")) is None
    for content in ("[]", "{}", '{"arguments": []}', "{", "[" * 100000):
        manifest_path(result).write_text(content)
        with pytest.raises(UserError, match=r"result\.run\.json"):
            recorded_arguments(result)


@pytest.mark.parametrize(
    ("arguments", "inputs", "differences"),
    [
        ({"n": 4}, ["data"], r"n was 16, now 4"),
        ({"engine": {"model": "other"}}, ["same/data"], r"engine\.model was 'm', now 'other'"),
        ({}, ["changed/data"], r"the content of input data\.jsonl differs"),
        ({}, ["other"], r"input data\.jsonl is not given; input other\.jsonl is new"),
        ({}, ["data", "other"], r"input other\.jsonl is new"),
    ],
)
def test_resuming_with_other_arguments_or_data_is_refused_and_the_differences_named(
    run, tmp_path, arguments, inputs, differences
):
    with pytest.raises(UserError, match=rf"\({differences}\)"):
        open_manifest(run[1], ARGUMENTS | arguments, [tmp_path / f"{name}.jsonl" for name in inputs])


def test_a_result_without_a_manifest_is_not_continued_and_a_run_without_a_record_starts_anew(run):
    data, result = run
    manifest_path(result).unlink()
    with pytest.raises(UserError, match=r"result\.run\.json"):
        open_manifest(result, {"n": 16}, [data])
    result.unlink()
    for number in (8, 4):  # the first failed before its first record
        open_manifest(result, {"n": number}, [data])
    assert recorded_arguments(result) == {"n": 4}


def test_what_began_a_result_stays_and_each_resumption_and_the_summary_are_added(run):
    data, result = run
    began = json.loads(manifest_path(result).read_text())
    result.write_text("{}")
    open_manifest(result, ARGUMENTS, [data], complete=True)
    assert json.loads(manifest_path(result).read_text()) == began
    write_summary(result, {"problems": {"read": 3}})
    open_manifest(result, {"n": 16, "engine": {"model": "m", "name": "m-12345678"}}, [data])  # another name for people
    resumed = json.loads(manifest_path(result).read_text())
    assert {name: resumed[name] for name in began} == began
    assert resumed["summary"] == {"problems": {"read": 3}}
    assert [entry["python"] for entry in resumed["resumed"]] == [began["python"]]


def test_of_inputs_with_one_name_each_is_compared_in_any_folder_but_in_their_order(tmp_path):
    inputs = [tmp_path / name / "data.jsonl" for name in ("a", "b", "c", "d")]
    for path in inputs:
        path.parent.mkdir()
        path.write_text("even" if path.parent.name in "ac" else "odd")
    result = tmp_path / "result.jsonl"
    open_manifest(result, {}, inputs[:2])
    result.write_text('{"id": 1}\n')
    open_manifest(result, {}, inputs[2:])
    for others in (inputs[1:3], inputs[:1] * 2):
        with pytest.raises(UserError, match=r"\(the content of input data\.jsonl differs\)"):
            open_manifest(result, {}, others)


SECRET = "VERY-SECRET-0123456789"


@pytest.mark.parametrize(
    "words",
    [
        [f"--openai-api-key={SECRET}"],
        ["--aws_access_key_id", SECRET],
        ["--judge", f"token={SECRET}"],
        [f"--engine=token={SECRET}"],
        [f"trainer.wandb_api_key={SECRET}"],
        [f"WANDB_API_KEY={SECRET}"],
        [f"db-password={SECRET}"],
        [f"client_secret_value={SECRET}"],
        [f"credentials={SECRET}"],
        [f"apiKey={SECRET}"],
        [f"env_vars={{HF_HOME: x, WANDB_API_KEY: {SECRET}}}"],
        [f'{{"token": "{SECRET}"}}'],
        [f"--api_base=https://user:{SECRET}@host/v1"],
        # What only resembles a secret, and long words, which take no time:
        ["--max_tokens", "4096", "--key_file=k", "a.tokenizer=t", "NCCL_IB_PKEY=1", "https://host/a@b", "="],
        ["a" * 10**6, "a=" * 10**6, "://" * 10**5, "a " * 10**5, "a" + " " * 10**5],
    ],
    ids=lambda words: " ".join(words).replace(SECRET, "X")[:80],
)
def test_a_manifest_has_the_command_line_without_its_secrets(tmp_path, monkeypatch, words):
    command = ["script.py", "--before", "1", *words, "--after", "2"]
    monkeypatch.setattr(sys, "argv", command)
    open_manifest(tmp_path / "r.jsonl", {})
    text = manifest_path(tmp_path / "r.jsonl").read_text()
    assert SECRET not in text
    hidden = [number for number, word in enumerate(command) if SECRET in word]
    shown = json.loads(text)["command"]
    assert [number for number, words in enumerate(zip(command, shown, strict=True)) if len({*words}) > 1] == hidden
