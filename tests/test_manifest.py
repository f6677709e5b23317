"""A result says what made it, and is not continued with other arguments or other data."""

import contextlib
import json
import sys
from pathlib import Path

import pytest

from cobalt.stage.errors import UserError
from cobalt.stage.manifest import manifest_path, open_manifest, recorded_arguments, write_summary

ARGUMENTS = {"n": 16, "engine": {"model": "m"}}
RESULT = Path("run/result.jsonl")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in map(Path, ("a/data", "b/data", "same/a/data", "same/b/data", "c/other")):
        path.parent.mkdir(parents=True)
        path.write_text(path.parent.name)


def begin(*inputs):
    open_manifest(RESULT, ARGUMENTS, map(Path, inputs))
    RESULT.write_text('{"id": 1}\n')


def test_the_manifest_lies_beside_the_result_and_holds_what_made_it_and_a_broken_one_is_named():
    begin("a/data")
    content = json.loads(manifest_path(RESULT).read_text())
    assert content["arguments"] == recorded_arguments(RESULT) == ARGUMENTS
    assert len(content["inputs"]["data"]) == 64
    assert {"command", "git", "packages", "python", "started"} <= content.keys()
    assert recorded_arguments(RESULT.with_name("other.jsonl")) is None
    for content in ("[]", "{}", '{"arguments": []}', "{", "[" * 100000):
        manifest_path(RESULT).write_text(content)
        with pytest.raises(UserError, match=r"result\.run\.json"):
            recorded_arguments(RESULT)


@pytest.mark.parametrize(
    ("began", "arguments", "inputs", "named"),
    [
        (["a/data"], {"n": 4}, ["a/data"], "n was 16, now 4"),
        (["a/data"], {"engine": {"model": "other"}}, ["same/a/data"], r"engine\.model was 'm', now 'other'"),
        (["a/data"], {}, ["b/data"], "the content of input data differs"),
        (["a/data"], {}, ["c/other"], "input data is not given; input other is new"),
        (["a/data"], {}, ["a/data", "c/other"], "input other is new"),
        # Of inputs with one name each is compared, in any folder but in their order.
        (["a/data", "b/data"], {}, ["same/a/data", "same/b/data"], None),
        (["a/data", "b/data"], {}, ["b/data", "a/data"], "the content of input data differs"),
        (["a/data", "b/data"], {}, ["a/data", "a/data"], "the content of input data differs"),
    ],
)
def test_resuming_with_other_arguments_or_data_is_refused_and_the_differences_named(began, arguments, inputs, named):
    begin(*began)
    with pytest.raises(UserError, match=rf"\({named}\)") if named else contextlib.nullcontext():
        open_manifest(RESULT, ARGUMENTS | arguments, map(Path, inputs))


def test_a_result_without_a_manifest_is_not_continued_and_a_run_without_a_record_starts_anew():
    begin()
    manifest_path(RESULT).unlink()
    with pytest.raises(UserError, match=r"result\.run\.json"):
        open_manifest(RESULT, {"n": 16})
    RESULT.unlink()
    for number in (8, 4):  # the first failed before its first record
        open_manifest(RESULT, {"n": number})
    assert recorded_arguments(RESULT) == {"n": 4}


def test_what_began_a_result_stays_and_each_resumption_and_the_summary_are_added():
    begin()
    began = json.loads(manifest_path(RESULT).read_text())
    open_manifest(RESULT, ARGUMENTS, complete=True)
    assert json.loads(manifest_path(RESULT).read_text()) == began
    write_summary(RESULT, {"problems": {"read": 3}})
    open_manifest(RESULT, {"n": 16, "engine": {"model": "m", "name": "m-12345678"}})  # another name for people
    resumed = json.loads(manifest_path(RESULT).read_text())
    assert {name: resumed[name] for name in began} == began
    assert resumed["summary"] == {"problems": {"read": 3}}
    assert [entry["python"] for entry in resumed["resumed"]] == [began["python"]]


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
def test_a_manifest_has_the_command_line_without_its_secrets(monkeypatch, words):
    command = ["script.py", "--before", "1", *words, "--after", "2"]
    monkeypatch.setattr(sys, "argv", command)
    open_manifest(RESULT, {})
    text = manifest_path(RESULT).read_text()
    assert SECRET not in text
    hidden = [number for number, word in enumerate(command) if SECRET in word]
    shown = json.loads(text)["command"]
    assert [number for number, words in enumerate(zip(command, shown, strict=True)) if len({*words}) > 1] == hidden
