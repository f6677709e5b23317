"""The sampling parameters of one response of a rollout, and which of several engines generates it.

veRL's `rollout.full_determinism` gives every request one seed: the samples of a prompt would all be the same.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from vllm.sampling_params import RequestOutputKind


def of_sample(shared: Mapping[str, Any], sample: Sequence[int] | None) -> dict[str, Any]:
    """VeRL's parameters for all responses (`shared`) with those of one.

    The server reads the tokens of a response's last output alone. Without these settings vLLM decodes the text, and
    makes an output of all tokens so far, after each token. The numbers in `sample` name the response and decide its
    seed (31 bits); None: it has no seed.
    """
    parameters = {**shared, "output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False}
    if sample is not None:
        digest = hashlib.sha256(",".join(map(str, map(int, sample))).encode()).digest()
        parameters["seed"] = int.from_bytes(digest[:4], "big") >> 1
    return parameters


def engine_of(prompt_ids: Sequence[int]) -> str:
    """The request id by which veRL sends the samples of a prompt to one engine, which computes the prompt once.

    veRL's own ids are random, and each of several engines computes every prompt.
    """
    return hashlib.sha256(str(list(prompt_ids)).encode()).hexdigest()
