"""Attention without flash-attn, packed on GPUs and with shared prompts on a CPU, is that of separate sequences."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")
pytest.importorskip("omegaconf", reason="veRL is not installed (scripts/setup.sh --profile none)")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.slow

VOCABULARY = 50


@pytest.fixture(scope="module")
def parts():
    """The module for GPUs, imported where it was not chosen: veRL's own function is put back."""
    from verl.workers.engine.fsdp import transformer_impl

    before = transformer_impl.logprobs_from_logits
    from cobalt_verl import packed_sdpa

    yield packed_sdpa
    transformer_impl.logprobs_from_logits = before


@pytest.fixture(scope="module")
def shared():
    """The module for a CPU, whose engine needs veRL's platform "cpu"."""
    from cobalt_verl.cpu import shared_prompts

    return shared_prompts


def make_model(attention, window=None, kind="Qwen3"):
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=128, attn_implementation=attention,
        sliding_window=window, **({"use_sliding_window": True, "max_window_layers": 1} if window else {}),
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config).double()


def chosen(logits, labels):
    """The log-probs of labels."""
    return torch.log_softmax(logits, dim=-1).gather(-1, torch.as_tensor(labels, dtype=torch.long)[:, None])[:, 0]


def separate(model, prompts, responses, temperature=1.0):
    """Log-probs of each response, one sequence at a time."""
    pieces = []
    for prompt, response in zip(prompts, responses, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0] / temperature
        pieces.append(chosen(logits[len(prompt) - 1 : -1], response))
    return torch.cat(pieces)


def assert_alike(plain, expected, ours, log_probs):
    """Log-probs and gradients of a model by itself and with an attention of this project."""
    torch.testing.assert_close(log_probs.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, len(expected), dtype=torch.float64)
    (expected * weights).sum().backward()
    (log_probs * weights).sum().backward()
    for one, other in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)


# --- packed sequences


def nested(rows):
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def micro_batch(rows, temperature=1.0):
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    fields = {"input_ids": nested(rows), "position_ids": nested([torch.arange(len(row)) for row in rows])}
    data = TensorDict(fields, batch_size=len(rows))
    tensordict_utils.assign_non_tensor(data, temperature=temperature, use_remove_padding=True)
    return data


def bare_engine(parts, **settings):
    """The engine without a model of its own, which neither method reads."""
    engine = parts.PackedSdpaEngine.__new__(parts.PackedSdpaEngine)
    vars(engine).update({"pad_to_length": None, "use_ulysses_sp": False, "ulysses_sequence_parallel_size": 1})
    vars(engine).update(engine_config=SimpleNamespace(entropy_checkpointing=False), **settings)
    return engine


def packed(parts, model, rows, temperature=1.0, **settings):
    """The log-probs of all tokens after the first of each sequence, through the engine's own two methods."""
    data, engine = micro_batch(rows, temperature), bare_engine(parts, **settings)
    inputs, arguments = engine.prepare_model_inputs(data)
    output = model(**inputs, use_cache=False)
    log_probs = engine.prepare_model_outputs(output, arguments, data, None)["log_probs"]
    return torch.cat([values[:-1] for values in log_probs.unbind()])


def after_the_first(model, rows, temperature=1.0):
    """The same, one sequence at a time."""
    return separate(model, [row[:1] for row in rows], [row[1:] for row in rows], temperature)


token = st.integers(0, VOCABULARY - 1)
sequences = st.lists(st.lists(token, min_size=1, max_size=12), min_size=1, max_size=6)


@pytest.mark.parametrize(("kind", "window"), [("Qwen3", None), ("Llama", None), ("Qwen3", 3)])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@settings(max_examples=10, deadline=None)
@given(rows=sequences)
def test_log_probs_and_gradients_of_packed_sequences_are_those_of_separate_ones(parts, kind, window, temperature, rows):
    if all(len(row) == 1 for row in rows):
        rows = [*rows, [1, 2]]
    plain, ours = make_model("sdpa", window, kind), make_model(parts.ATTENTION, window, kind)
    assert_alike(plain, after_the_first(plain, rows, temperature), ours, packed(parts, ours, rows, temperature))


def test_tokens_that_fill_the_row_up_are_not_seen_by_the_sequences(parts):
    rows, padded = [[1, 2, 3], [4, 5]], {"pad_to_length": True, "pad_to_length_bucket": 8}
    inputs, _ = bare_engine(parts, **padded).prepare_model_inputs(micro_batch(rows))
    assert inputs["sequences"] == ((0, 3), (3, 5), (5, 8))
    log_probs = packed(parts, make_model(parts.ATTENTION), rows, **padded)
    torch.testing.assert_close(log_probs.double(), after_the_first(make_model("sdpa"), rows))


def test_no_call_has_a_mask_and_each_covers_one_sequence(parts, monkeypatch):
    """A mask of all tokens by all tokens does not fit at the paper's lengths."""
    seen = []
    function = torch.nn.functional.scaled_dot_product_attention

    def record(query, *rest, **keywords):
        seen.append((query.shape[2], keywords["attn_mask"], keywords["is_causal"]))
        return function(query, *rest, **keywords)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", record)
    packed(parts, make_model(parts.ATTENTION), [[1, 2, 3], [4, 5]])
    assert seen == [(3, None, True), (2, None, True)] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_place", [True, False])
def test_log_probs_in_chunks_have_the_values_and_gradients_of_a_log_softmax(parts, dtype, in_place):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 1100, 11, generator=generator).to(dtype)
    labels = torch.randint(11, (2, 1100), generator=generator)
    weights = torch.randn(2, 1100, generator=generator)
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    expected = torch.log_softmax(one.float(), -1).gather(-1, labels[..., None])[..., 0]
    scaled = other * 1  # the logits of a model are no leaf
    log_probs = parts.log_probs(scaled, labels, inplace_backward=in_place)
    torch.testing.assert_close(log_probs, expected)
    (expected * weights).sum().backward()
    (log_probs * weights).sum().backward()
    torch.testing.assert_close(other.grad, one.grad)
    assert torch.equal(scaled.detach(), logits) != in_place


def test_the_engine_takes_the_place_of_verls_on_gpus_and_refuses_sequence_parallelism(parts):
    from verl.workers.engine.base import EngineRegistry

    registered = EngineRegistry._engines["language_model"]
    for backend in ("fsdp", "fsdp2"):
        assert registered[backend]["cuda", "nvidia"] is parts.PackedSdpaEngine
    with pytest.raises(ValueError, match="ulysses_sequence_parallel_size"):
        bare_engine(parts, use_ulysses_sp=True)._build_module()


# --- shared prompts

tokens = st.lists(token, min_size=1, max_size=7)


@settings(max_examples=25, deadline=None)
@given(
    different=st.lists(tokens, min_size=3, max_size=3),
    drawn=st.lists(st.tuples(st.integers(0, 2), tokens), min_size=1, max_size=8),
)
def test_log_probs_and_gradients_of_shared_prompts_are_those_of_each_sequence_alone(shared, different, drawn):
    prompts, responses = [different[index] for index, _ in drawn], [response for _, response in drawn]
    plain, ours = make_model("sdpa"), make_model(shared.ATTENTION)
    row = shared.pack(list(map(torch.tensor, prompts)), list(map(torch.tensor, responses)))
    logits = ours(
        input_ids=row.input_ids[None], position_ids=row.positions[None], blocks=row.blocks,
        logits_to_keep=row.predictors, use_cache=False,
    ).logits[0]  # fmt: skip
    assert_alike(plain, separate(plain, prompts, responses), ours, chosen(logits, row.labels))


def test_a_shared_prompt_is_in_the_row_once(shared):
    prompt, other = torch.tensor([1, 2, 3]), torch.tensor([4])
    row = shared.pack([prompt, other, prompt], [torch.tensor([5]), torch.tensor([6, 7]), torch.tensor([8, 9])])
    assert row.input_ids.tolist() == [1, 2, 3, 5, 8, 9, 4, 6, 7]
    assert row.positions.tolist() == [0, 1, 2, 3, 3, 4, 0, 1, 2]
