"""vLLM on a CPU, with weights that change: linear layers read the weight they have, not a packed copy of the first one.

vLLM's CPU build packs each weight once and drops the original, so that later weights would find nothing to load into
(veRL then waits for ever) or change nothing; no setting of vLLM 0.28 keeps them. Every vLLM in this environment finds
this module through the entry-point group `vllm.general_plugins` (pyproject.toml); only the vLLM of a training run on a
CPU is changed.
"""

import os
from typing import Any


def register() -> None:
    """Have linear layers keep their weights; vLLM calls this in each of its processes."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    import torch
    from vllm.model_executor.layers import utils

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep_weight
