"""Single-turn rollout: veRL's own loop, with the sampling parameters of this project and one engine for a prompt."""

from types import SimpleNamespace
from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from cobalt_verl.agent_loops.sampling import engine_of, of_sample


class SingleTurnLoop(SingleTurnAgentLoop):  # type: ignore[misc]  # veRL is not typed
    """One response to a prompt.

    With `seeded` it has a seed, which follows from `data.seed`, the step, the prompt and the number of the sample.
    """

    def __init__(self, *arguments: Any, seeded: bool, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        generate = self.server_manager.generate

        def of_one_engine(*, request_id: str, prompt_ids: list[int], **keywords: Any) -> Any:
            return generate(request_id=engine_of(prompt_ids), prompt_ids=prompt_ids, **keywords)

        self.server_manager: Any = SimpleNamespace(generate=of_one_engine)
        self._seeded = seeded

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response."""
        sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        return await super().run(of_sample(sampling_params, sample if self._seeded else None), **fields)
