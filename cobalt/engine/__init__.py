"""Engines: conversations in, completions out, with one Protocol for all of them.

`vllm_service` is a vLLM engine on Ray Serve and `vllm_client` is its client. `litellm_engine` uses the providers of
proprietary models and any OpenAI-compatible server. `replay` answers from recorded responses. Importing this package
imports none of them.
"""

from cobalt.engine.base import Call, Completion, Engine, GenerationSettings, derive_seed

__all__ = ["Call", "Completion", "Engine", "GenerationSettings", "derive_seed"]
