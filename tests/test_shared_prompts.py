"""The engine for CPUs computes shared prompts once; log-probs, entropies and gradients are those of whole sequences."""

import pytest

torch = pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")
pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

VOCABULARY = 50


@pytest.fixture(scope="module")
def parts():
    """The module, whose engine needs veRL's platform "cpu"."""
    from cobalt_verl.cpu import shared_prompts

    return shared_prompts


@pytest.fixture(scope="module")
def make_model(parts):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def make(attention):
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=128, attn_implementation=attention,
        )  # fmt: skip
        return Qwen3ForCausalLM(config).double()

    return make


tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7)
samples = st.lists(st.tuples(st.integers(0, 2), tokens), min_size=1, max_size=8)


def by_sample(model, prompts, responses):
    """Log-probs of each response, one sequence at a time."""
    found = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(input_ids=torch.cat([prompt, response])[None]).logits[0]
        log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        found.append(log_probs.gather(-1, response[:, None])[:, 0])
    return torch.cat(found)


def packed_log_probs(parts, model, prompts, responses):
    packed = parts.pack(prompts, responses)
    logits = model(
        input_ids=packed.input_ids[None], position_ids=packed.positions[None], blocks=packed.blocks,
        logits_to_keep=packed.predictors, use_cache=False,
    ).logits[0]  # fmt: skip
    return torch.log_softmax(logits, dim=-1).gather(-1, packed.labels[:, None])[:, 0]


@settings(max_examples=25, deadline=None)
@given(different=st.lists(tokens, min_size=3, max_size=3), drawn=samples)
def test_log_probs_and_gradients_are_those_of_each_sequence_alone(parts, make_model, different, drawn):
    prompts = [torch.tensor(different[place]) for place, _ in drawn]
    responses = [torch.tensor(response) for _, response in drawn]
    plain, shared = make_model("sdpa"), make_model(parts.ATTENTION)
    weights = torch.linspace(-1, 1, sum(map(len, responses)), dtype=torch.float64)
    expected = by_sample(plain, prompts, responses)
    found = packed_log_probs(parts, shared, prompts, responses)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    for one, other in zip(plain.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


def test_a_shared_prompt_is_in_the_row_once(parts):
    prompt, other = torch.tensor([1, 2, 3]), torch.tensor([4])
    packed = parts.pack([prompt, other, prompt], [torch.tensor([5]), torch.tensor([6, 7]), torch.tensor([8, 9])])
    assert packed.input_ids.tolist() == [1, 2, 3, 5, 8, 9, 4, 6, 7]
    assert packed.positions.tolist() == [0, 1, 2, 3, 3, 4, 0, 1, 2]
    assert packed.predictors.tolist() == [2, 6, 7, 2, 4]
    assert packed.labels.tolist() == [5, 6, 7, 8, 9]
    assert [(block.prompt, block.responses) for block in packed.blocks] == [(3, (1, 2)), (1, (2,))]
    assert [block.pieces for block in packed.blocks] == [(3, 1, 2), (3,)]
    assert packed.blocks[0].seen.int().tolist() == [
        [1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1],
    ]  # prompt, itself
