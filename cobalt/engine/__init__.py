"""Engines: conversations in, completions out, with one Protocol for all of them.

`vllm_engine` runs vLLM in this process. `url_engine` asks engines behind URLs: apps of this project, and any
OpenAI-compatible server (`foreign`). `litellm_engine` uses the providers of proprietary models. `replay` answers from
recorded responses. Importing this package imports none of them.
"""

from cobalt.engine.base import Call, Completion, Engine, GenerationSettings, derive_seed

__all__ = ["Call", "Completion", "Engine", "GenerationSettings", "derive_seed"]
