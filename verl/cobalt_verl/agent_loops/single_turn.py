"""Single-turn rollout: veRL's own loop, with the sampling parameters of this project and one engine for a prompt."""

from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from cobalt_verl.agent_loops.sampling import engine_of, of_sample


class _SameEngine:
    """The client of the engines, which sends the samples of a prompt to one of them."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def generate(self, *, request_id: str, prompt_ids: list[int], **keywords: Any) -> Any:
        """As veRL's, with another request id."""
        return await self._client.generate(request_id=engine_of(prompt_ids), prompt_ids=prompt_ids, **keywords)


class SingleTurnLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # veRL is not typed
    """One response to a prompt.

    With `seeded` it has a seed, which follows from `data.seed`, the step, the prompt and the number of the sample.
    """

    def __init__(self, *arguments: Any, seeded: bool, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.server_manager: Any = _SameEngine(self.server_manager)
        self._seeded = seeded

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response."""
        sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        return await super().run(of_sample(sampling_params, sample if self._seeded else None), **fields)
