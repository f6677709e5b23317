"""method.py is the method of a training run: the same updates as by veRL, and nothing of this project for it alone."""

import ast
import asyncio
import random
import re
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
from support import ROOT, composed, locked_folder, result_of, run_ranks

torch = pytest.importorskip("torch", reason="torch is not installed (scripts/setup.sh --profile none)")
pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from cobalt import method  # noqa: E402
from cobalt.engine import GenerationSettings  # noqa: E402
from cobalt.engine.torch_policy import Sample, TorchPolicy  # noqa: E402
from cobalt.method import Completed, Row, Settings  # noqa: E402

# --- the same updates

TINY = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
OWN = Settings(mini_batch=4, micro_batch=2, training=Settings().training.model_copy(update={"temperature": 0.7}))
ENGINES = ["veRL's own", "shared prompts"]
MEANS = ["mini_batch", "micro_batch"]
TOLERANCES = {"advantages": 1e-6, "losses": 1e-5, "gradients": 1e-4, "SGD": 1e-4, "AdamW": 1e-2}


def make_policy(folder):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    vocabulary = {chr(32 + index): index for index in range(95)} | {"<unk>": 95}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="~", pad_token="~"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(tie_word_embeddings=False, **TINY)).save_pretrained(folder)


def make_batch(policy):
    """Two prompts with four responses each, sampled by a policy that is some way off."""
    rng = random.Random(0)

    def tokens(count):
        return [rng.randrange(TINY["vocab_size"]) for _ in range(count)]

    prompts = [prompt for prompt in (tokens(5), tokens(8)) for _ in range(4)]
    responses = [tokens(count) for count in (3, 9, 5, 12, 7, 2, 10, 6)]
    samples = [Sample((*prompt,), (*response,), "", True) for prompt, response in zip(prompts, responses, strict=True)]
    with torch.no_grad():
        values = policy.log_probs(samples, OWN.training.temperature)
    # Both bounds act on both signs of the advantage.
    old = [value + torch.tensor([rng.uniform(-0.6, 0.6) for _ in value]) for value in values]
    old[1][3] = values[1][3] - 1.5  # the bound of 3 acts, too: this response has a negative advantage
    reference = [value + torch.tensor([rng.uniform(-0.5, 0.5) for _ in value]) for value in values]
    return {
        "prompts": prompts, "responses": responses, "rewards": [1.0, -0.3, 0.2, 0.7, -1.0, 0.4, 0.4, 0.1], "old": old,
        "reference": reference, "temperature": OWN.training.temperature,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a policy, a batch, and what veRL makes of them (tests/verl_updates.py)."""
    from omegaconf import OmegaConf

    with locked_folder(tmp_path_factory, "verl_updates") as folder:
        if (folder / "updates.pt").exists():
            return folder
        make_policy(folder / "model")
        torch.save(make_batch(TorchPolicy.load(folder / "model")), folder / "batch.pt")
        config = composed(folder, folder / "model", folder / "run")
        OmegaConf.resolve(config)
        OmegaConf.save(config, folder / "config.yaml")
        finished = run_ranks("verl_updates.py", 1, folder)
        assert finished.returncode == 0, finished.stderr[-3000:]
    return folder


def swapped_functions():
    """The functions of docs/method.md."""
    code, *_ = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "method.md").read_text(), re.DOTALL | re.MULTILINE)
    names = {}
    exec(code, names)
    return names


def groups_of(batch):
    rows = zip(batch["prompts"], batch["responses"], batch["rewards"], strict=True)
    completed = [
        Completed(Sample((*prompt,), (*response,), "", True), result_of(True), reward)
        for prompt, response, reward in rows
    ]
    return [completed[:4], completed[4:]]


def updates(made, optimizer, own, weigh=method.grpo, kind=TorchPolicy):
    """Figures of `tests/verl_updates.py`, by method.py."""
    batch = torch.load(made / "batch.pt")
    policy = kind.load(made / "model")
    groups = groups_of(batch)
    advantages = [value for group in groups for value in weigh(group)]
    samples = [completed.sample for group in groups for completed in group]
    rows = list(map(Row, samples, advantages, batch["old"], batch["reference"]))
    if optimizer == "SGD":
        steps, taken = torch.optim.SGD(policy.model.parameters(), lr=0.1), [rows]
    else:
        steps, taken = torch.optim.AdamW(policy.model.parameters(), lr=1e-3), [rows, rows[:4]]
    mini_batches = iter([rows[:4], rows[4:], rows[:4]])
    losses, gradients, clip = [], [], torch.nn.utils.clip_grad_norm_

    @torch.no_grad()
    def recorded_clip(*arguments):
        mini = next(mini_batches)
        counts = [len(row.old) for row in mini]
        parts = [slice(start, start + own.micro_batch) for start in range(0, 4, own.micro_batch)]
        losses.append(sum(float(method.loss(policy, mini[p], own)) * own.weight(counts, counts[p]) for p in parts))
        gradients.append({name: weight.grad.clone() for name, weight in policy.model.named_parameters()})
        return clip(*arguments)

    with mock.patch.object(torch.nn.utils, "clip_grad_norm_", recorded_clip):
        for part in taken:
            method.update(policy, steps, part, own)
    weights = {name: weight.detach() for name, weight in policy.model.named_parameters()}
    return {"advantages": advantages, "losses": losses, "gradients": gradients, "weights": weights}


def apart(one, other):
    """The largest relative difference of a tensor."""
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).norm() / other[name].norm()) for name in one)


def changes(made, weights):
    from safetensors.torch import load_file

    before = load_file(made / "model" / "model.safetensors")
    return {name: weights[name] - before[name] for name in before}


def differences(made, engine, mean, optimizer, own=None, **planted):
    """Distance of method.py from veRL, by what is compared."""
    verl = torch.load(made / "updates.pt")
    theirs = verl[engine, mean, optimizer]
    if own is None:
        own = OWN if mean == "mini_batch" else OWN._replace(weight=swapped_functions()["micro_batch_mean"])
    ours = updates(made, optimizer, own, **planted)
    assert len(ours["losses"]) == len(theirs["losses"]) == (2 if optimizer == "SGD" else 3)
    assert min(theirs["norms"]) > 1  # so that every gradient is clipped
    return {
        "advantages": float((torch.tensor(ours["advantages"]) - verl["advantages"]).abs().max()),
        "losses": max(abs(one - other) for one, other in zip(ours["losses"], theirs["losses"], strict=True)),
        "gradients": max(map(apart, ours["gradients"], theirs["gradients"])),
        optimizer: apart(changes(made, ours["weights"]), changes(made, theirs["weights"])),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("engine", "mean", "optimizer"), list(product(ENGINES, MEANS, ["SGD", "AdamW"])))
def test_updates_are_those_of_verl(made, engine, mean, optimizer):
    measured = differences(made, engine, mean, optimizer)
    assert not {name: value for name, value in measured.items() if value > TOLERANCES[name]}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ranks_of_verl_wait_longer_for_each_other_than_a_slow_disk_takes(made):
    from cobalt_verl.reporting_worker import GROUP_SECONDS

    assert torch.load(made / "updates.pt")["limit"] == GROUP_SECONDS


def test_sizes_are_those_of_a_training_run_on_the_pocket_world(tmp_path):
    config = composed(tmp_path, tmp_path, tmp_path / "run", scale="pocket")
    own, actor, rollout = Settings(), config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert own.clip == (1 - actor.clip_ratio_low, 1 + actor.clip_ratio_high)
    assert (actor.clip_ratio_c, actor.optim.clip_grad) == (3, 1)
    assert (own.kl, own.learning_rate) == (actor.kl_loss_coef, actor.optim.lr)
    assert (own.contexts, own.mini_batch) == (config.data.train_batch_size, actor.ppo_mini_batch_size * rollout.n)
    assert all(getattr(own.training, name) == rollout[name] for name in ("n", "temperature", "top_p"))
    assert own.training.max_tokens == own.collecting.max_tokens == config.data.max_response_length


# --- its policy


@pytest.fixture(scope="module")
def speaker(policy):
    """A random policy with a chat template."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(policy)
    torch.manual_seed(1)
    return TorchPolicy(Qwen3ForCausalLM(Qwen3Config(**TINY | {"vocab_size": len(tokenizer)})).eval(), tokenizer)


def asked(speaker, *questions, temperature=1.0, **settings):
    """The groups of samples of questions that are asked at the same time."""
    policy = TorchPolicy(speaker.model, speaker.tokenizer)  # one event loop each
    generation = GenerationSettings(n=3, max_tokens=12, temperature=temperature, **settings)

    async def all_at_once():
        conversations = [[{"role": "user", "content": question}] for question in questions]
        return await asyncio.gather(*(policy.sample(messages, generation) for messages in conversations))

    return asyncio.run(all_at_once())


SHORT, LONG = "0 1", "problem 0 1 2 3 answer 3 2 1 0"


def test_a_sample_depends_on_its_seed_and_index_and_not_on_its_batch(speaker):
    both = asked(speaker, SHORT, LONG, seed=5, top_p=0.9)
    assert both == [asked(speaker, question, seed=5, top_p=0.9)[0] for question in (SHORT, LONG)]
    assert len({sample.response for sample in both[0]}) == 3
    assert asked(speaker, SHORT, seed=6, top_p=0.9)[0] != both[0]


def test_a_greedy_sample_and_one_of_a_small_nucleus_have_the_most_probable_tokens_and_log_probs_say_so(speaker):
    samples = [group[0] for group in asked(speaker, SHORT, LONG, temperature=0)]
    [nucleus] = asked(speaker, SHORT, seed=0, top_p=1e-9)
    assert {sample.response for sample in nucleus} == {samples[0].response}
    with torch.no_grad():
        values = speaker.log_probs(samples, 0.7)
        for sample, log_probs in zip(samples, values, strict=True):
            logits = speaker.model(torch.tensor([sample.prompt + sample.response])).logits[0] / 0.7
            expected = logits.log_softmax(-1)[len(sample.prompt) - 1 : -1]
            assert expected.argmax(-1).tolist() == list(sample.response)
            torch.testing.assert_close(log_probs, expected.max(-1).values, rtol=1e-4, atol=1e-5)


# --- swapped functions


def test_functions_that_a_reader_swaps_in_weigh_a_group():
    import numpy as np

    from cobalt.reward import offline, verpo

    sample = Sample((1,), (2,), "", True)
    outcomes = [(True, True, True), (True, False, False), (True, True, False), (False, False, False)]
    rewards = [1.0, -0.2, 0.3, -1.0]
    group = [Completed(sample, result_of(*passed), reward) for passed, reward in zip(outcomes, rewards, strict=True)]
    functions = swapped_functions()
    by_verpo = functions["verpo_advantages"](group)
    expected = verpo.advantages([np.array([passed], float) for passed in outcomes], [True, False, False, False])
    assert by_verpo == pytest.approx([float(value[0]) for value in expected])
    assert by_verpo[0] > by_verpo[2] > by_verpo[1] > by_verpo[3]
    normalised = functions["offline_advantages"](group)
    assert normalised == pytest.approx(method.grpo(group), abs=1e-6)
    assert functions["exponential_advantages"](group) == pytest.approx(np.exp(normalised))
    assert offline.exponential(np.array(rewards), 1.0).tolist() == functions["exponential_advantages"](group)
    for name in ("verpo_advantages", "offline_advantages", "exponential_advantages"):
        assert all(type(value) is float for value in functions[name](group))


# --- what it imports


def test_nothing_is_imported_that_only_method_uses():
    imports = [
        node for node in ast.walk(ast.parse(Path(method.__file__).read_text())) if isinstance(node, ast.ImportFrom)
    ]
    names = {alias.name for node in imports if "cobalt" in node.module for alias in node.names}
    paths = [*(ROOT / "cobalt").rglob("*.py"), *(ROOT / "verl" / "cobalt_verl").rglob("*.py")]
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths if path.name != "method.py"]
    used = {getattr(node, "id", None) or getattr(node, "attr", None) for tree in trees for node in ast.walk(tree)}
    assert names and names <= used
