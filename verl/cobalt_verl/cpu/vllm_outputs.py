"""vLLM on a CPU: a response that is wanted whole leaves the engine's process when it has ended.

VLLM sends the tokens of every request after every step of the engine, and the process that serves requests puts them
together, on cores that the judge needs. Here the process that samples them puts tokens and their log-probs together,
for requests that ask for their last output alone and for no text. All others are sent as by vLLM. A request that is
aborted leaves nothing of what was held back; the synchronous trainer, the only one at this scale, aborts none. vLLM
finds this module as it finds `vllm_weights`.
"""

import os
from collections import defaultdict
from typing import Any


def register() -> None:
    """Have the scheduler hold responses back; vLLM calls this in each of its processes."""
    if os.environ.get("VERL_PLATFORM") != "cpu":
        return
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.core.sched.scheduler import Scheduler

    own = Scheduler.update_from_output

    def wanted_whole(request: Any) -> bool:
        sampling = request.sampling_params
        return sampling is not None and sampling.output_kind == RequestOutputKind.FINAL_ONLY and not sampling.detokenize

    def update_from_output(self: Any, scheduled: Any, result: Any) -> Any:
        found = own(self, scheduled, result)
        held: dict[str, list[Any]] = vars(self).setdefault("_cobalt_held", defaultdict(list))
        for client, batch in list(found.items()):
            ready = []
            for output in batch.outputs:
                name = output.request_id
                if output.finish_reason is None and is_plain(output) and wanted_whole(self.requests[name]):
                    held[name].append(output)
                else:
                    ready.append(joined([*held.pop(name, ()), output]))
            batch.outputs = ready
            if not ready and batch.scheduler_stats is None and not batch.finished_requests:
                del found[client]
        for name in held.keys() - self.requests.keys():  # aborted
            del held[name]
        return found

    Scheduler.update_from_output = update_from_output


def is_plain(output: Any) -> bool:
    """Whether an output (`EngineCoreOutput`) has nothing of its step of the engine but tokens and their log-probs."""
    parts = (output.new_prompt_logprobs_tensors, output.routed_experts, output.new_sampling_mask)
    return all(part is None for part in parts)


def joined(outputs: list[Any]) -> Any:
    """The last of a request's outputs, with the tokens, log-probs and events of all."""
    if len(outputs) == 1:
        return outputs[0]
    import numpy as np

    last = outputs[-1]
    last.new_token_ids = [token for output in outputs for token in output.new_token_ids]
    last.prefill_stats = next((output.prefill_stats for output in outputs if output.prefill_stats is not None), None)
    last.events = [event for output in outputs for event in output.events or ()] or None
    if last.new_logprobs is not None:
        parts = [output.new_logprobs for output in outputs]
        last.new_logprobs = type(last.new_logprobs)(*(np.concatenate([part[k] for part in parts]) for k in range(3)))
    return last
