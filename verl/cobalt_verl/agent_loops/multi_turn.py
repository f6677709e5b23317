"""Online multi-turn rollout: the policy takes an episode of repair for each sample (GRPO-MT and VeRPO-MT).

At each turn the policy sees the chat template's rendering of the episode's messages, as in evaluation. A turn whose
prompt would be longer than `data.max_prompt_length` cannot be taken, and ends the trajectory. `token_rows` makes the
turns into rows to train on, `judged_episode` has the episode and the reward.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from cobalt.episode import Message
from cobalt.episode.chat_template import end_of_turn
from cobalt.judge import Judge
from cobalt.reward import RewardSettings
from cobalt.stage.errors import InfrastructureError, UserError
from cobalt.training.episodes import EpisodeSettings, episode_settings
from cobalt.training.templates import opened_by_template
from cobalt_verl.agent_loops.judged_episode import JudgedEpisode, TrajectoryReward
from cobalt_verl.agent_loops.sampling import engine_of, of_sample
from cobalt_verl.agent_loops.token_rows import TokenRow, add_turn
from cobalt_verl.episodes import FIELD, RowRecord, TurnRecord
from cobalt_verl.judging import JUDGE_ATTEMPTS
from cobalt_verl.scoring import failures_recorded, running_judge


class MultiTurnLoop(AgentLoopBase):  # type: ignore[misc]  # veRL is not typed
    """One trajectory: one row to train on or several, all with the trajectory's reward."""

    def __init__(self, *arguments: Any, seeded: bool, judge: Judge | None = None, **keywords: Any) -> None:
        """Prepare for a trajectory.

        Args:
            arguments: Of veRL.
            seeded: Give each response a seed, which follows from `data.seed`, the step, the prompt, the number of the
                sample and the turn.
            judge: Runs the programs; None: the judge of this process.
            keywords: Of veRL.

        Raises:
            UserError: the reward does not know how responses begin.
        """
        from omegaconf import OmegaConf

        super().__init__(*arguments, **keywords)
        settings = episode_settings(self.config)
        assert settings is not None, "the rollout multi_turn has them"
        options: Any = OmegaConf.to_container(self.config.reward.custom_reward_function.reward_kwargs, resolve=True)
        attempts = options.pop("judge_attempts", JUDGE_ATTEMPTS)
        self._settings: EpisodeSettings = settings
        self._reward = RewardSettings(**options)
        self._judge = judge or running_judge(attempts)
        self._seeded = seeded
        self._opened = opened_by_template(self.tokenizer, self.config)
        self._end = end_of_turn(self.tokenizer, dict(self.apply_chat_template_kwargs))

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> list[AgentLoopOutput]:
        """Take an episode; `fields` are the row, and `global_steps`, `index` and `session_id`, which name the sample.

        Raises:
            CobaltError: the judge or the engine failed, or the row is broken. The reason is left for the process that
                stops the run.
        """
        with failures_recorded(fields["extra_info"].get("id")):
            return await self._run(sampling_params, fields)

    async def _run(self, sampling_params: Mapping[str, Any], fields: Mapping[str, Any]) -> list[AgentLoopOutput]:
        episode = JudgedEpisode(fields, self._settings, self._reward, self._judge, opened=self._opened)
        sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"])
        rows: list[TokenRow] = []
        outputs: list[TokenOutput] = []
        server, too_long, generating = "", False, 0.0
        while not episode.done:
            prompt_ids = await self._render(episode.messages)
            too_long = len(prompt_ids) > self.rollout_config.prompt_length
            if too_long and not outputs:
                raise UserError(f"its prompt has {len(prompt_ids)} tokens, more than data.max_prompt_length")
            if too_long:
                break
            started = time.perf_counter()
            server = server or engine_of(prompt_ids)  # all turns go to one engine, which remembers what they share
            sampling = of_sample(sampling_params, (*sample, len(outputs)) if self._seeded else None)
            output = await self.server_manager.generate(
                request_id=server, prompt_ids=prompt_ids, sampling_params=sampling
            )
            generating += time.perf_counter() - started
            if not output.token_ids:
                raise InfrastructureError(f"the engine generated nothing ({output.stop_reason})")
            outputs.append(output)
            add_turn(rows, prompt_ids, output.token_ids, output.log_probs)
            await episode.respond(self._text(output.token_ids))
        return self._rows(rows, outputs, await episode.reward(too_long=too_long), generating)

    async def _render(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that the chat template makes of a conversation, as tokens."""
        plain = [dict(message) for message in messages]
        render = self.continuous_token_builder.build_initial_tokens
        tokens: list[int] = await self.loop.run_in_executor(None, render, plain)
        return tokens

    def _text(self, token_ids: Sequence[int]) -> str:
        """A response as text, without the token that ends its turn, as in collection."""
        ended = bool(token_ids) and token_ids[-1] == self._end
        text: str = self.tokenizer.decode(token_ids[:-1] if ended else token_ids, skip_special_tokens=True)
        return text

    def _rows(
        self, rows: Sequence[TokenRow], outputs: Sequence[TokenOutput], earned: TrajectoryReward, generating: float
    ) -> list[AgentLoopOutput]:
        """The rows as veRL takes them; the last one has the reward, which veRL gives to the others."""
        result = []
        for row in rows:
            turns = [
                TurnRecord(start=start, stop=stop, passed=earned.outcomes[turn])
                for turn, (start, stop) in row.spans.items()
            ]
            first, last = min(row.spans), max(row.spans)
            result.append(
                AgentLoopOutput(
                    prompt_ids=row.prompt_ids,
                    response_ids=row.response_ids,
                    response_mask=row.mask,
                    response_logprobs=row.log_probs,
                    num_turns=2 * (last + 1),  # messages of user and policy up to the end of the row
                    metrics={},
                    extra_fields={
                        "min_global_steps": outputs[first].extra_fields["min_global_steps"],
                        "max_global_steps": outputs[last].extra_fields["max_global_steps"],
                        FIELD: RowRecord(turns=turns, solved=earned.solved),
                    },
                )
            )
        rewarded = result[-1]
        counts = {"rows": float(len(rows)), "generated_tokens": float(sum(sum(row.mask) for row in rows))}
        rewarded.reward_score = earned.parts["score"]
        rewarded.extra_fields["reward_extra_info"] = earned.parts | counts
        rewarded.metrics.generate_sequences, rewarded.metrics.compute_score = generating, earned.seconds
        return result
