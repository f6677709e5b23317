"""Engines: conversations in, completions out, behind one Protocol.

`vllm_service` is a vLLM engine on Ray Serve, `vllm_client` reaches it, `litellm_engine` reaches the providers of
proprietary models and any OpenAI-compatible server, `replay` answers from recorded responses.
Importing this package imports none of them.
"""

from cobalt.engine.base import Call, Completion, Engine, GenerationSettings, derive_seed

__all__ = ["Call", "Completion", "Engine", "GenerationSettings", "derive_seed"]
