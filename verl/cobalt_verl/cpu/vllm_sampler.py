"""vLLM on a CPU: where every request has a seed of its own, a token takes one random number.

vLLM draws one for each token of the vocabulary, request after request. At the pocket scale only its matrix products and
its attention take longer. Here the one number is looked up in the cumulative probabilities (inverse transform
sampling), so that a seed gives other tokens than with vLLM's own sampler, by the same probabilities up to rounding
(2^-24). A request's tokens still follow from its seed alone. Batches in which a request has no seed are sampled as vLLM
does. vLLM finds this module as it finds `vllm_weights`.
"""

import os
from typing import Any


def register() -> None:
    """Have batches with seeds sampled by `draw`; vLLM calls this in each of its processes."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import torch
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p

    own = TopKTopPSampler.forward_cpu

    def forward_cpu(self: Any, logits: Any, generators: dict[int, Any], k: Any, p: Any) -> Any:
        if len(generators) != len(logits):
            return own(self, logits, generators, k, p)
        kept = apply_top_k_top_p(logits, k, p)
        log_probs = kept.log_softmax(dim=-1, dtype=torch.float32)
        returned = {"processed_logits": kept, "processed_logprobs": log_probs}
        return draw(log_probs.exp(), generators), returned.get(self.logprobs_mode)

    TopKTopPSampler.forward_cpu = forward_cpu


def draw(probabilities: Any, generators: dict[int, Any]) -> Any:
    """One token for each request.

    Args:
        probabilities: Of the tokens: (requests, vocabulary), float32; a request's add up to about 1.
        generators: A `torch.Generator` for the place of each request.

    Returns:
        The tokens (requests), int64, none of probability 0.
    """
    import torch

    numbers = torch.empty(len(probabilities), 1)
    for place, number in enumerate(numbers.unbind()):
        number.uniform_(generator=generators[place])
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # A product that is rounded up to the total would lie behind the last token.
    wanted = torch.minimum(numbers * total, torch.nextafter(total, torch.zeros(())))
    return torch.searchsorted(cumulative, wanted, right=True)[:, 0]
