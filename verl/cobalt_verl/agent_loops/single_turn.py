"""Single-turn rollout: veRL's own loop, with the sampling parameters of this project, and each prompt rendered once."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from cobalt_verl.agent_loops.sampling import engine_of, of_sample

_PROMPTS = 256
"""How many prompts' tokens a loop keeps: those of samples that begin at the same time."""


class _SameEngine:
    """The client of the engines, which sends the samples of a prompt to one of them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def generate(self, *, request_id: str, prompt_ids: list[int], **keywords: Any) -> Any:
        """As veRL's, with another request id."""
        return await self._client.generate(request_id=engine_of(prompt_ids), prompt_ids=prompt_ids, **keywords)


class SingleTurnLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # veRL is not typed
    """One response to a prompt."""

    def __init__(self, *arguments: Any, seeded: bool, **keywords: Any) -> None:
        """Prepare for responses; one loop serves all samples of its process.

        Args:
            arguments: Of veRL.
            seeded: Give each response a seed, which follows from `data.seed`, the step, the prompt and the number of
                the sample.
            keywords: Of veRL.
        """
        super().__init__(*arguments, **keywords)
        self.server_manager: Any = _SameEngine(self.server_manager)
        self._seeded = seeded
        self._rendered: dict[str, asyncio.Future[list[int]]] = {}

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response."""
        sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        return await super().run(of_sample(sampling_params, sample if self._seeded else None), **fields)

    async def ct_build_initial_tokens(self, messages: Sequence[Mapping[str, Any]], **seen: Any) -> list[int]:
        """The tokens of a prompt, as veRL; samples of one prompt share them if it is text alone."""
        if any(seen.values()):
            tokens: list[int] = await super().ct_build_initial_tokens(messages, **seen)
            return tokens
        key = repr(messages)
        if key not in self._rendered:
            while len(self._rendered) >= _PROMPTS:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[key] = asyncio.ensure_future(super().ct_build_initial_tokens(messages))
        return list(await asyncio.shield(self._rendered[key]))
