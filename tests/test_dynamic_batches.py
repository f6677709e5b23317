"""Packing and dynamic micro-batches leave the gradient of a mini-batch as it is, except for means of micro-batches."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="veRL is not installed (scripts/setup.sh --profile none)")
pytest.importorskip("verl", reason="veRL is not installed (scripts/setup.sh --profile none)")

pytestmark = pytest.mark.slow

VOCABULARY = 50
LENGTHS = [(3, 1), (3, 9), (3, 2), (5, 7), (2, 5), (2, 12), (1, 3), (4, 6)]
"""Prompt and response of each sample; the longest sample has 14 tokens, all have 68."""
SHARED = {1: 0, 2: 0, 5: 4}
"""Samples with the prompt of another one."""
PADDED, PACKED, OWN = "padded", "packed", "shared prompts"
"""veRL's engine without and with use_remove_padding, and this project's for CPUs."""


@pytest.fixture(scope="module")
def gradient():
    """A function that computes the gradient of one update, with veRL's own micro-batches, engine and loss."""
    from tensordict import TensorDict
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from verl.utils import tensordict_utils
    from verl.utils.torch_functional import entropy_from_logits
    from verl.workers.config import FSDPActorConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.utils.losses import ppo_loss

    from cobalt_verl.cpu import shared_prompts
    from cobalt_verl.losses.loss_agg import micro_batch_loss

    draw = torch.Generator().manual_seed(0)

    def nested(rows):
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def values(scale):
        return [scale * torch.randn(size, generator=draw) for _, size in LENGTHS]

    prompts = [torch.randint(VOCABULARY, (size,), generator=draw) for size, _ in LENGTHS]
    prompts = [prompts[SHARED.get(sample, sample)] for sample in range(len(prompts))]
    responses = [torch.randint(VOCABULARY, (size,), generator=draw) for _, size in LENGTHS]
    whole = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    old = [-4 + value for value in values(0.3)]
    fields = {
        "input_ids": whole,
        "position_ids": [torch.arange(len(row)) for row in whole],
        "prompts": prompts,
        "responses": responses,
        "response_mask": [torch.ones_like(response) for response in responses],
        "old_log_probs": old,
        "ref_log_prob": [a + b for a, b in zip(old, values(0.3), strict=True)],
        "advantages": [value[:1].expand(len(value)).clone() for value in values(1.0)],
    }

    def compute(engine, loss_agg, **batches):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2, head_dim=8, max_position_embeddings=128,
                attn_implementation=shared_prompts.ATTENTION if engine == OWN else "sdpa",
            )
        ).double()  # fmt: skip
        kind = shared_prompts.SharedPromptEngine if engine == OWN else FSDPEngineWithLMHead
        bare = kind.__new__(kind)  # the two methods below need no more of an engine than this
        bare.pad_to_length, bare.use_ulysses_sp = None, False
        bare.compute_entropy_from_logits = entropy_from_logits
        bare.engine_config = SimpleNamespace(entropy_checkpointing=False, entropy_from_logits_with_chunking=False)
        loss_function = ppo_loss if loss_agg == "mini_batch" else micro_batch_loss
        actor = FSDPActorConfig(
            strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, ppo_mini_batch_size=len(LENGTHS),
            use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="mse", entropy_coeff=0.1,
        )  # fmt: skip
        data = TensorDict({name: nested(rows) for name, rows in fields.items()}, batch_size=len(LENGTHS))
        tensordict_utils.assign_non_tensor(
            data, temperature=0.7, calculate_entropy=True, use_remove_padding=engine == PACKED, dp_size=1,
            global_batch_size=len(LENGTHS), batch_num_tokens=sum(size for _, size in LENGTHS), **batches,
        )  # fmt: skip
        parts, _ = prepare_micro_batches(data)
        for part in parts:
            inputs, arguments = bare.prepare_model_inputs(part)
            output = bare.prepare_model_outputs(model(**inputs, use_cache=False), arguments, part, None)
            loss_function(config=actor, model_output=output, data=part)[0].backward()
        return len(parts), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    return compute


def fixed(size):
    return {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": size}


def dynamic(tokens):
    return {"use_dynamic_bsz": True, "max_token_len_per_gpu": tokens}


def differs_by(one, other):
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("batches", [fixed(2), dynamic(14), dynamic(30), dynamic(68)], ids=str)
@pytest.mark.parametrize("engine", [PADDED, PACKED, OWN])
def test_the_gradient_of_a_mean_over_the_mini_batch_is_that_of_one_sample_at_a_time(gradient, engine, batches):
    _, expected = gradient(PADDED, "mini_batch", **fixed(1))
    parts, found = gradient(engine, "mini_batch", **batches)
    assert parts < len(LENGTHS)
    assert differs_by(found, expected) < 1e-5


@pytest.mark.parametrize("engine", [PACKED, OWN])
def test_packing_leaves_means_of_micro_batches_as_they_are_and_dynamic_batches_do_not(gradient, engine):
    _, papers = gradient(PADDED, "micro_batch", **fixed(2))
    _, packed = gradient(engine, "micro_batch", **fixed(2))
    parts, by_length = gradient(engine, "micro_batch", **dynamic(30))
    assert differs_by(packed, papers) < 1e-5
    assert 1 < parts < len(LENGTHS)
    assert differs_by(by_length, papers) > 0.05, "checks.py refuses this combination"
