"""Run vLLM on a CPU in this process, and print the names of its threads, as JSON.

A process of its own for `test_cpu_engine.py`: the folder of a model is its argument.
"""

import collections
import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VLLM_PLUGINS": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}


def main(model: str) -> None:
    """Generate one response."""
    from vllm import LLM, SamplingParams

    from cobalt.engine.vllm_executor import BoundExecutor

    llm = LLM(
        model, dtype="float32", enforce_eager=True, enable_chunked_prefill=False, max_model_len=256,
        distributed_executor_backend=BoundExecutor,
    )  # fmt: skip
    llm.generate({"prompt_token_ids": [5, 6]}, SamplingParams(max_tokens=2), use_tqdm=False)
    threads = collections.Counter((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    print(json.dumps(threads))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
