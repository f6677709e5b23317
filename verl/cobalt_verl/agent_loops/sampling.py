"""The sampling parameters of one response of a rollout, for veRL's vLLM server, and which of several servers it has.

veRL's `rollout.full_determinism` gives every request one seed: the samples of a prompt would all be the same.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.sampling_params import RequestOutputKind


def of_sample(shared: Mapping[str, Any], sample: Sequence[int] | None) -> dict[str, Any]:
    """The parameters of a response.

    The server waits for the last output of a response, and reads its tokens alone. Without these settings vLLM decodes
    the text, and makes an output of all tokens so far, after each token: work for the process that serves all requests.

    Args:
        shared: VeRL's, for all responses.
        sample: Numbers that name the response, and decide its seed; None: it has no seed.
    """
    seed = {} if sample is None else {"seed": sample_seed(*sample)}
    return {**shared, "output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, **seed}


def sample_seed(*parts: int) -> int:
    """A seed for vLLM (31 bits), determined by the numbers."""
    digest = hashlib.sha256(",".join(map(str, map(int, parts))).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def engine_of(prompt_ids: Sequence[int]) -> str:
    """The request id by which veRL sends samples to an engine: requests with the same id go to the same one.

    Samples of a prompt have the same id, so that one engine computes the prompt, and holds it, for all of them. veRL's
    own ids are random, and each of several engines computes every prompt.
    """
    return hashlib.sha256(str(list(prompt_ids)).encode()).hexdigest()
