"""Offline RL on veRL's engine: rows, and a real run of the pocket model that learns and is exported."""

import importlib.util
import json
import os
import random
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from support import ROOT, locked_folder, write_lines

pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from cobalt.datasets.offline.judged import judged_groups
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.episode.token_count import load_tokenizer
from cobalt.reward.offline import OfflineSettings
from cobalt.stage.errors import UserError
from cobalt.training.offline import Arguments, main
from cobalt.training.offline_tokens import RowIndex, load_groups, share
from studies import divergence

pytestmark = pytest.mark.slow

SYSTEM = {"role": "system", "content": "Think, then write one Python block."}


def group(identifier, right, wrong, question="Print one.", contrast="required"):
    def response(program, status, reward):
        text = f"```python\n{program}\n```"
        return {"text": text, "status": status, "reward": reward, "origin": program[:9], "context": []}

    return {
        "id": f"{identifier}/0",
        "problem_id": str(identifier),
        "source": "test",
        "contrast": contrast,
        "messages": [SYSTEM, {"role": "user", "content": question}],
        "responses": [
            *(response(program, "accepted", 1.0) for program in right),
            *(response(program, "wrong_answer", -0.3) for program in wrong),
        ],
    }


def pocket_groups(count, seed):
    """Right programs of pocket problems, and programs with one mistake."""
    from cobalt.pocket.problems import draw_task

    rng = random.Random(seed)
    for number in range(count):
        task = draw_task(rng, "EASY")
        wrong = rng.sample(task.confusions(), 2)
        yield group(f"{seed}-{number}", [task.program(task.solution)], map(task.program, wrong), task.statement)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with locked_folder(tmp_path_factory, "groups") as folder:
        if not (folder / "validation.jsonl").exists():
            write_lines(folder / "train.jsonl", pocket_groups(24, 1))
            write_lines(folder / "validation.jsonl", pocket_groups(8, 2))
    return folder


def train(data, model, output, *settings, estimator="grpo"):
    """A run of six steps or fewer on one core, where rounding is the same on every run; returns its steps' metrics."""
    cores = sorted(os.sched_getaffinity(0))
    command = ["taskset", "--cpu-list", cores[os.getpid() % len(cores)]]
    command += ["bash", "scripts/train_offline_rl.sh", "--data_dir", data, "--model", model, "--output_dir", output]
    command += ["--estimator", estimator, "data.train_batch_size=8", "trainer.total_epochs=2", *settings]
    finished = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(output)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr
    return metrics_of(data, output)


def metrics_of(data, output):
    """The metrics of a run's steps, whose numbers must follow each other."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    first = 0 if (data / "validation.jsonl").exists() else 1  # step 0 is a validation
    assert [line["step"] for line in lines] == list(range(first, first + len(lines)))
    return [line["metrics"] for line in lines]


def weights_of(model):
    from safetensors.torch import load_file

    return load_file(model / "model.safetensors")


SETTINGS = ["offline.kl=0.01", "offline.clip=0.2", "trainer.save_freq=2"]


@pytest.fixture(scope="module")
def whole_run(data, seed_model, tmp_path_factory):
    with locked_folder(tmp_path_factory, "offline") as folder:
        run = folder / "run"
        if not (run / "model").exists():
            train(data, seed_model, run, *SETTINGS)
    return run, metrics_of(data, run)


@pytest.mark.timeout(900)
def test_training_raises_accepted_programs_above_the_others(whole_run):
    run, metrics = whole_run
    assert len(metrics) == 7
    gap = [m["validation/accepted_log_prob"] - m["validation/other_log_prob"] for m in (metrics[0], metrics[-1])]
    assert gap[1] > gap[0]
    assert metrics[0]["validation/kl"] == 0 < metrics[-1]["validation/kl"]
    assert all(m["training/responses"] == 24 and m["actor/grad_norm"] > 0 for m in metrics[1:])
    assert list((run / "tensorboard").iterdir())
    assert "[progress] " in (run / "train.log").read_text()


@pytest.mark.timeout(900)
def test_the_exported_policy_has_moved_as_far_as_its_last_validation_says(whole_run, data, seed_model, tmp_path):
    run, metrics = whole_run
    groups, measured = data / "validation.jsonl", []
    for reference in (run / "model", seed_model):  # the second is another setting, which is refused
        arguments = divergence.Arguments(str(reference), str(run / "model"), groups, tmp_path / f"{len(measured)}.json")
        assert divergence.main(arguments) == divergence.main(arguments) == 0
        measured.append(json.loads(arguments.output_file.read_bytes()))
    assert measured[0]["kl"] == 0 and measured[0]["responses"] == 24 < measured[0]["tokens"]
    assert measured[1]["kl"] == pytest.approx(metrics[-1]["validation/kl"], rel=1e-3)
    with pytest.raises(UserError, match="0.json .*start"):
        divergence.main(replace(arguments, output_file=tmp_path / "0.json"))


def test_policies_whose_tokenizers_differ_have_no_divergence(data, seed_model, policy, tmp_path):
    with pytest.raises(UserError, match=f"{seed_model} .*{policy} "):
        divergence.main(divergence.Arguments(str(seed_model), policy, data / "validation.jsonl", tmp_path / "kl.json"))


def test_merged_adapters_are_the_weights_with_their_product():
    import torch

    from cobalt_verl.merge import merge_adapters

    weight, low, high = torch.ones(3, 2), torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [0.0], [2.0]])
    name = "base_model.model.model.layers.0.q_proj"
    weights = {
        f"{name}.base_layer.weight": weight, f"{name}.lora_A.default.weight": low,
        f"{name}.lora_B.default.weight": high, "base_model.model.model.norm.weight": torch.ones(2),
    }  # fmt: skip
    with pytest.raises(ValueError, match="lora_train_meta.json"):
        merge_adapters(dict(weights), None)
    merge_adapters(weights, 0.5)
    assert weights.keys() == {"model.layers.0.q_proj.weight", "model.norm.weight"}
    assert weights["model.layers.0.q_proj.weight"].tolist() == [[1.5, 2.0], [1.0, 1.0], [2.0, 3.0]]


@pytest.fixture(scope="module")
def tokenizer(policy):
    return load_tokenizer(policy)


@pytest.fixture
def loaded(tokenizer, tmp_path):
    """Groups as token ids, by an estimator."""

    def load(records, estimator="rloo", **settings):
        path = write_lines(tmp_path / "g.jsonl", records)
        return load_groups(path, tokenizer, OfflineSettings(estimator, **settings), 1000)

    return load


def test_values_of_a_response_lie_at_the_tokens_before_its_own(tokenizer, loaded):
    from cobalt_verl.offline_batch import batch, response_values

    (tokens,) = loaded([group("a", ["0"], ["1"])])
    row = tokens[0]
    fields = batch(tokens)
    ids, mask = fields["input_ids"].unbind()[0].tolist(), fields["loss_mask"].unbind()[0].tolist()
    predicted = [following for following, wanted in zip(ids[1:], mask[:-1], strict=True) if wanted]
    assert predicted == row.response.tolist()
    assert predicted[-1] == tokenizer.eos_token_id
    assert mask[-1] == 0
    assert tokenizer.decode(predicted[:-1]) == "```python\n0\n```"
    values = fields["advantages"].unbind()[0]
    assert response_values(row, values).tolist() == pytest.approx([1.3] * len(row.response))
    assert values.count_nonzero() == len(row.response)


def test_the_prompt_of_a_response_is_rendered_with_the_context_of_its_turn(tokenizer, loaded):
    wrong = {"role": "user", "content": "Wrong."}
    later = [[{"role": "assistant", "content": text}, wrong] for text in ("2", "3")]
    for contexts in ([[], []], later):
        record = group("a", ["0"], ["1"])
        for response, context in zip(record["responses"], contexts, strict=True):
            response["context"] = context
        (tokens,) = loaded([record])
        for row, context in zip(tokens, contexts, strict=True):
            messages = [*record["messages"], *context]
            expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            assert tokenizer.decode(row.prompt) == expected


def test_supervised_training_reads_the_accepted_responses_alone_and_a_group_without_one_stays_a_group(loaded):
    (tokens,) = loaded([group("a", ["0", "00"], ["1", "2"])], "sft")
    assert [(row.advantage, row.accepted) for row in tokens] == [(1, True), (1, True)]
    records = [group("a", [], ["1", "2"], contrast="any"), group("b", ["0", "00"], [], contrast="any")]
    assert [len(one) for one in loaded(records, "sft")] == [0, 2]
    for estimator in ("rloo", "grpo"):
        assert [row.advantage for one in loaded(records, estimator) for row in one] == pytest.approx([0] * 4)
    with pytest.raises(UserError, match="g.jsonl: .* sft "):
        loaded(records[:1], "sft")


def test_every_rank_hands_over_as_many_rows_and_those_that_it_repeats_do_not_count(loaded):
    from cobalt_verl.offline_batch import batch

    groups = loaded([group(str(n), ["0"] * (n % 2), ["1", "2"], contrast="any") for n in range(4)], "sft", kl=0.1)
    spare = RowIndex(1, 0, False)
    assert share(groups, [3, 2, 1], 0, 1) == [RowIndex(3, 0), RowIndex(1, 0)]
    assert [share(groups, [0, 2], rank, 2) for rank in (0, 1)] == [[], []]
    assert [share(groups, [0, 3], rank, 2) for rank in (0, 1)] == [[spare], [RowIndex(3, 0)]]
    assert [share(groups, [1, 2, 3, 0], rank, 2) for rank in (0, 1)] == [
        [RowIndex(1, 0), RowIndex(3, 0)],
        [spare, spare],
    ]
    rows = groups[1]
    assert batch(rows)["loss_mask"].values().sum() == sum(len(row.response) for row in rows)
    assert batch(rows, counts=[False])["loss_mask"].values().sum() == 0


@pytest.mark.parametrize(("estimator", "share"), [("rloo", 0.5), ("grpo", 0.5), ("exponential", 0.5), ("sft", 1.0)])
def test_groups_whose_rewards_are_all_equal_are_counted(loaded, estimator, share):
    from cobalt_verl.trainers.offline import equal_groups

    records = [group("a", ["0"], ["1"]), group("b", ["0", "1", "2"], [], contrast="any")]
    assert equal_groups(loaded(records, estimator)) == share


@pytest.mark.parametrize("missing", ["eos_token", "chat_template"])
def test_a_policy_that_cannot_end_a_response_is_refused(policy, tmp_path, missing):
    path, broken = write_lines(tmp_path / "g.jsonl", [group("a", ["0"], ["1"])]), load_tokenizer(policy)
    setattr(broken, missing, None)
    with pytest.raises(UserError, match=missing):
        load_groups(path, broken, OfflineSettings("rloo"), 1000)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"estimator": "ppo"}, "estimator"),
        ({"scale": "laptop"}, "offline_scale"),
        ({"overrides": ["data.train_batch_size=0"]}, "train_batch_size"),
        ({"overrides": ["data.train_batch_size=500"]}, "train.jsonl .*24 .*data.train_batch_size 500"),
        ({"overrides": ["data.train_batch_size=5", "trainer.n_gpus_per_node=2"]}, "data.train_batch_size 5 .* 2 "),
        ({"overrides": ["data.max_length=20"]}, "train.jsonl: 72 .*data.max_length 20"),
        ({"overrides": ["trainer.total_training_steps=99"]}, "total_training_steps"),
        ({"overrides": ["trainer.save_freq=null"]}, "save_freq"),
        ({"overrides": ["data.seed=-1"]}, "data.seed"),
        ({"overrides": ["optim.lr=inf"]}, "optim.lr"),
        ({"overrides": ["data.train_max_samples=1"]}, "data.train_max_samples"),
        ({"overrides": ["model.path=elsewhere"]}, "model.path"),
        ({"overrides": ["cobalt.gpu_memory_gib=80GB"]}, "cobalt.gpu_memory_gib .*'80GB'"),
        ({"overrides": ["data.chat_template_thinking=perhaps"]}, "chat_template_thinking"),
        ({"overrides": ["offline.gamma=1"]}, "gamma"),
        ({"overrides": ["model.override_config.attn_implementation=flash_attention_2"]}, "flash_attention_2"),
        ({"model": "no/such/folder"}, "'no/such/folder'"),
        ({"data_dir": Path("nowhere")}, "train.jsonl"),
        ({"overrides": ["trainer.save_freq"]}, "'trainer.save_freq'"),
    ],
)
def test_a_mistake_is_named_before_anything_is_trained(data, seed_model, tmp_path, change, names):
    right = {"data_dir": data, "model": str(seed_model), "output_dir": tmp_path / "run", "overrides": []}
    with pytest.raises(UserError, match=names):
        main(Arguments(**right | change))
    assert not (tmp_path / "run").exists()


def test_groups_of_another_rendering_are_refused(seed_model, tmp_path):
    judged = [{"code": f"print({n})", "result": n < 2} for n in range(4)]
    problems = [{"id": n, "question": f"Print {n}.", "generated_solutions": judged} for n in range(8)]
    source, folder = write_lines(tmp_path / "apps.jsonl", problems), tmp_path / "data"
    flags = {"chat_template_thinking": "off", "near_duplicates": 2, "validation_share": 0}
    judged_groups(JudgedSettings(output_dir=folder, input_files=(source,), model_name=str(seed_model), **flags))
    with pytest.raises(UserError, match="chat_template_thinking=off"):
        main(Arguments(folder, str(seed_model), tmp_path / "run", [], dry_run=True))
    same = ["data.chat_template_thinking=off", "data.train_batch_size=4"]
    assert main(Arguments(folder, str(seed_model), tmp_path / "run", same, dry_run=True)) == 0
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("scale", ["pocket", "paper-0.5b", "paper-7b"])
def test_every_scale_composes(data, seed_model, tmp_path, scale, capsys):
    assert main(Arguments(data, str(seed_model), tmp_path / "run", [], scale=scale, print_config=True)) == 0
    printed = capsys.readouterr().out
    assert "estimator: rloo" in printed
    if importlib.util.find_spec("flash_attn") is None:
        assert ("cobalt_verl.packed_sdpa" in printed) == (scale != "pocket")
    assert not (tmp_path / "run").exists()
