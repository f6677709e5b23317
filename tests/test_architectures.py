"""Models that people have, as tiny ones of each kind, and folders that hold no usable one.

`tests/long/test_architectures.py` takes the same models through vLLM, the judge, a training step and the export.
"""

import json

import pytest
from chat_tokenizers import ARCHITECTURES, save_architecture, save_policy
from outside import run_commands_for_imports
from support import ROOT, refused_training, square_problem, write_lines

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from test_training import row, write_rows

from cobalt.engine.model_check import check_model
from cobalt.stage.errors import UserError
from cobalt.training.configuration import TrainingSettings, compose
from cobalt.training.policy import shape_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_sizes_bucket_and_checks_are_right_for_each_architecture(tmp_path, name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = save_architecture(tmp_path, name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    sizes = [parameter.numel() for parameter in model.parameters()]  # tied ones once
    assert shape_of(folder).parameters == pytest.approx(sum(sizes), rel=0.01)
    config = compose(TrainingSettings(tmp_path, folder, tmp_path / "out", scale="cpu"))
    bucket = config.actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes
    assert bucket * 2**20 > 4 * max(sizes)
    assert [error for error in refused_training(config) if ".parquet" not in error] == []


@pytest.mark.parametrize("scale", ["pocket", "cpu"])
@pytest.mark.parametrize("prompt", [1024, 12000])
def test_without_chunks_the_engine_reads_the_longest_prompt_in_one_batch(tmp_path, scale, prompt):
    settings = [f"data.max_prompt_length={prompt}"]
    folder = save_architecture(tmp_path, "llama")
    rollout = compose(TrainingSettings(tmp_path, folder, tmp_path, settings, scale=scale)).actor_rollout_ref.rollout
    assert prompt < rollout.max_model_len <= rollout.max_num_batched_tokens


@pytest.mark.parametrize(
    ("kind", "values", "scale", "named"),
    [
        ("mistral", {"sliding_window": 512}, "cpu", "512"),
        ("mistral", {"sliding_window": 4096}, "cpu", ""),
        ("mistral", {"sliding_window": None}, "cpu", ""),
        ("mistral", {"sliding_window": 512}, "gpu-1", ""),
        ("gemma2", {"sliding_window": 4096, "attn_logit_softcapping": 50.0}, "cpu", "attn_logit_softcapping"),
        ("qwen2", {"sliding_window": 512, "use_sliding_window": False}, "cpu", ""),
    ],
)
def test_an_attention_that_training_on_a_cpu_does_not_have_is_refused(tmp_path, kind, values, scale, named):
    folder = save_policy(tmp_path, "chatml", kind=kind)
    changed(tmp_path / "config.json", **values)
    errors = refused_training(compose(TrainingSettings(tmp_path, folder, tmp_path / "out", scale=scale)))
    others = [error for error in errors if ".parquet" not in error]
    assert len(others) == bool(named) and all(named in error for error in others)


@pytest.mark.parametrize(("content", "refused"), [("<|image|>", False), ("<|im_end|>", True), ("word", True)])
def test_a_special_token_without_an_embedding_is_refused_where_conversations_have_it(tmp_path, content, refused):
    folder = save_architecture(tmp_path, "smollm2")
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    most = max(token["id"] for token in tokenizer["added_tokens"])
    tokens = [token for token in tokenizer["added_tokens"] if token["content"] != content]
    tokens.append({**tokens[0], "content": content, "id": most + 1, "special": content != "word"})
    changed(tmp_path / "tokenizer.json", added_tokens=tokens)
    if refused:
        with pytest.raises(UserError, match="embeddings"):
            check_model(folder)
    else:
        check_model(folder)


FORMS = [{"model": "x"}, {"model": {"vocab": {"a": "b"}}}, {"added_tokens": [{"content": "a"}]}, {"text_config": "x"}]


@pytest.mark.parametrize("content", FORMS, ids=str)
def test_files_of_another_form_are_left_to_those_who_load_the_model(tmp_path, content):
    folder = save_architecture(tmp_path, "smollm2")
    (tmp_path / ("config.json" if "text_config" in content else "tokenizer.json")).write_text(json.dumps(content))
    check_model(folder)


# --- folders that hold no usable model


def changed(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def without(folder, *names):
    for name in names:
        (folder / name).unlink()


def gguf_alone(folder):
    without(folder, "config.json", "model.safetensors")
    (folder / "model.gguf").touch()


BAD = {
    "chat template": lambda folder: without(folder, "chat_template.jinja"),
    "embeddings": lambda folder: changed(folder / "config.json", vocab_size=100),
    "1024 tokens": lambda folder: changed(folder / "config.json", max_position_embeddings=1024),
    "config.json": lambda folder: without(folder, "config.json"),
    "model.gguf": gguf_alone,
    "safetensors": lambda folder: without(folder, "model.safetensors"),
}
"""Words that the sentence must name, and the change that makes the folder so."""

COMMANDS = {
    "train": "train --data_dir {data} --model {model} -o {data}/out",
    "train offline_rl": "train offline-rl --data_dir {data} --model {model} -o {data}/out",
    "sample": "sample -i {data}/problems.jsonl -o {data}/out --model {model} --engine max_model_len=2048",
    "try": "try {data}/problems.jsonl -o {data}/try --model {model} --engine max_model_len=2048",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Answer of each command to each folder, all in one process; see `run_commands_for_imports`."""
    data = tmp_path_factory.mktemp("data")
    write_lines(data / "problems.jsonl", [square_problem(1)])
    messages = [{"role": "user", "content": "u"}]
    response = {"text": "a", "status": "accepted", "reward": 1.0, "origin": "o", "context": []}
    group = {"id": "a", "problem_id": "a", "source": "s", "contrast": "any", "messages": messages}
    write_lines(data / "train.jsonl", [group | {"responses": [response]}])
    for split in ("train", "validation"):
        write_rows(data / f"{split}.parquet", [row(0, split)] * 16)
    words = {}
    for number, (name, spoil) in enumerate(BAD.items()):
        model = data / f"policy{number}"
        model.mkdir()
        save_architecture(model, "smollm2")
        spoil(model)
        for command, line in COMMANDS.items():
            words[command, name] = ["cobalt", *line.format(data=data, model=model).split()]
    ended = run_commands_for_imports(((ROOT, line) for line in words.values()), XDG_RUNTIME_DIR=str(data))
    assert not (data / "out").exists()
    return dict(zip(words, ended, strict=True))


@pytest.mark.sandbox
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("named", BAD)
def test_a_folder_without_a_usable_model_ends_each_command_with_one_sentence_before_anything_starts(
    answers, command, named
):
    code, _, error, imported = answers[command, named]
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert (code, len(lines), "vllm" in imported) == (2, 1, False), error
    assert named in lines[0] and "Traceback" not in error
