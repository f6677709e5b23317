"""Run vLLM on a CPU in this process, with whole responses held back and without, and print what it sent, as JSON.

A process of its own for `test_cpu_engine.py`: the folder of a model is its argument.
"""

import collections
import json
import os
import sys
from pathlib import Path

os.environ |= {
    "VERL_PLATFORM": "cpu",
    "VLLM_PLUGINS": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}


def main(model: str) -> None:
    """Take the same requests twice."""
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from cobalt.engine.vllm_executor import BoundExecutor
    from cobalt_verl.cpu import vllm_outputs

    llm = LLM(
        model, dtype="float32", enforce_eager=True, enable_chunked_prefill=False, max_model_len=256, block_size=16,
        distributed_executor_backend=BoundExecutor,
    )  # fmt: skip
    engine = llm.llm_engine

    def parameters(name: str, *, seed: int = 0) -> SamplingParams:
        kind = RequestOutputKind.CUMULATIVE if name == "streamed" else RequestOutputKind.FINAL_ONLY
        return SamplingParams(
            max_tokens=12, min_tokens=12, temperature=1.0, seed=seed, output_kind=kind, detokenize=name == "text",
            logprobs=None if name == "no_logprobs" else 0, prompt_logprobs=1 if name == "prompt_logprobs" else None,
        )  # fmt: skip

    names = ("whole", "other", "no_logprobs", "prompt_logprobs", "streamed", "text")

    def responses() -> dict[str, object]:
        sent: collections.Counter[str] = collections.Counter()
        own = engine.engine_core.get_output

        def counting() -> object:
            outputs = own()
            sent.update(output.request_id.rsplit("-", 1)[0] for output in outputs.outputs)
            return outputs

        engine.engine_core.get_output = counting
        for seed, name in enumerate(names):
            engine.add_request(name, {"prompt_token_ids": list(range(5, 45))}, parameters(name, seed=seed))
        found = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    made = output.outputs[0]
                    log_probs = [next(iter(part.values())).logprob for part in made.logprobs or ()]
                    found[output.request_id] = [made.token_ids, log_probs, made.finish_reason, made.cumulative_logprob]
        engine.engine_core.get_output = own
        return {"sent": sent, "found": found}

    before = responses()
    vllm_outputs.register()
    after = responses()
    scheduler = engine.engine_core.engine_core.scheduler
    engine.add_request("gone", {"prompt_token_ids": [5, 6]}, parameters("whole"))
    engine.step()
    engine.step()
    held = len(scheduler._cobalt_held)
    engine.abort_request(["gone"])
    engine.add_request("next", {"prompt_token_ids": [5, 6]}, parameters("streamed"))
    engine.step()
    threads = collections.Counter((task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir())
    left = len(scheduler._cobalt_held)
    result = {"before": before, "after": after, "held": held, "left": left, "threads": threads}
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1])
