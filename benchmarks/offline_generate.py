"""The baseline of `collection.py`: vLLM's offline `LLM.generate` on given conversations and completion lengths.

    python benchmarks/offline_generate.py SETTINGS REQUESTS.json

SETTINGS are `VllmSettings` as JSON. What they leave open is as in this project's engine for CPUs.

Prints the number of generated tokens and the seconds that they took, as a JSON list. It is a process of its own, so
that it has the machine to itself.
"""

import argparse
import json
import time
from pathlib import Path

from vllm import LLM, SamplingParams, TokensPrompt

from cobalt.engine.vllm_settings import VllmSettings

WARM_UP = 32


def main(settings: str, requests: Path) -> None:
    """Generate once as a warm-up and once for the measurement."""
    conversations, lengths = json.loads(requests.read_text())
    same = VllmSettings.model_validate_json(settings)
    engine = LLM(
        model=same.model,
        dtype=same.dtype,
        max_num_seqs=same.max_num_seqs,
        block_size=32,
        enable_chunked_prefill=False,
        enforce_eager=True,
        seed=same.seed,
    )
    tokenizer = engine.get_tokenizer()
    prompts = []
    for conversation in conversations:
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        prompts.append(TokensPrompt(prompt_token_ids=tokenizer.encode(text, add_special_tokens=False)))
    parameters = [
        SamplingParams(temperature=0.6, top_p=0.95, max_tokens=length, min_tokens=length, ignore_eos=True)
        for length in lengths
    ]
    engine.generate(prompts[:WARM_UP], parameters[:WARM_UP], use_tqdm=False)
    engine.reset_prefix_cache()
    started = time.perf_counter()
    outputs = engine.generate(prompts, parameters, use_tqdm=False)
    seconds = time.perf_counter() - started
    print(json.dumps([sum(len(output.outputs[0].token_ids) for output in outputs), seconds]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings")
    parser.add_argument("requests", type=Path)
    main(**vars(parser.parse_args()))
