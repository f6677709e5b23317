"""vLLM on a CPU: where every request has a seed of its own, no noise is drawn besides its own.

vLLM's sampler for CPUs draws noise for all requests and then, in its place, that of each request with a seed. At the
pocket scale every request has one, and the first noise takes about a tenth of the engine's time. vLLM's sampler for
other devices leaves it out, and chooses the same tokens. Batches without seeds are sampled as vLLM does. vLLM finds
this module as it finds `vllm_weights`.
"""

import os
from typing import Any


def register() -> None:
    """Have batches with seeds sampled without the first noise; vLLM calls this in each of its processes."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    own = TopKTopPSampler.forward_cpu

    def forward_cpu(self: Any, logits: Any, generators: dict[int, Any], k: Any, p: Any) -> Any:
        seeded = len(generators) == logits.shape[0]
        return (TopKTopPSampler.forward_native if seeded else own)(self, logits, generators, k, p)

    TopKTopPSampler.forward_cpu = forward_cpu
