"""Engines: conversations in, completions out, behind one Protocol.

`vllm_service` is a vLLM engine on Ray Serve, `vllm_client` reaches it, `replay` answers from recorded responses.
Importing this package imports none of them.
"""

from cobalt.engine.base import Call, Completion, Engine, GenerationSettings, derive_seed

__all__ = ["Call", "Completion", "Engine", "GenerationSettings", "derive_seed"]
