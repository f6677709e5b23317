"""Single-turn rollout: veRL's own loop, with the sampling parameters of this project."""

from typing import Any

from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

from cobalt_verl.agent_loops.sampling import of_sample


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
        self._seeded = seeded

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Generate one response."""
        sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        return await super().run(of_sample(sampling_params, sample if self._seeded else None), **fields)
