"""vLLM on a CPU: where every request has a seed of its own, no noise is drawn besides its own.

vLLM's sampler for CPUs draws noise for all requests and then, in its place, that of each request with a seed. At the
pocket scale every request has one, and the first noise took about a tenth of the engine's time. vLLM's sampler for
other devices leaves it out, and chooses the same tokens. vLLM finds this module as it finds `vllm_weights`.
"""

import os


def register() -> None:
    """Sample as on devices without a sampler of their own; vLLM calls this in each of its processes."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

    TopKTopPSampler.forward_cpu = TopKTopPSampler.forward_native
