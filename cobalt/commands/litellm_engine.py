"""Check a proprietary model: the flags and the work of `litellm_engine.py`."""

import asyncio
from dataclasses import dataclass

from rich.console import Console

from cobalt.engine import Call, GenerationSettings
from cobalt.engine.api import open_engine
from cobalt.engine.api_flags import ApiFlags


@dataclass(frozen=True)
class Arguments(ApiFlags):
    """Ask a model for one word, to check key, model name, limits and price before a run."""


async def _run(arguments: Arguments) -> int:
    settings = GenerationSettings(temperature=1, top_p=1, max_tokens=2000, n=1, seed=0)
    async with open_engine(arguments, None) as engine:
        about = await engine.describe()
        [answer] = await engine.generate([{"role": "user", "content": "Answer with one word."}], settings, Call(0, 0))
    price = "no known price" if answer.cost is None else f"${answer.cost:.6f}"
    console = Console(highlight=False, markup=False)
    console.print(f"{about['model_name']} ({about['provider']}): {answer.text!r}, {answer.finish_reason}")
    console.print(f"{answer.prompt_tokens} prompt tokens, {answer.completion_tokens} completion tokens, {price}")
    if answer.message:
        console.print(answer.message)
    return 0 if answer.text else 1


def main(arguments: Arguments) -> int:
    """Ask, and return the exit code."""
    return asyncio.run(_run(arguments))
