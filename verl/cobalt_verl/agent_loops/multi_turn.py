"""Online multi-turn rollout: the policy takes an episode of repair for each sample (GRPO-MT, VeRPO-MT; docs/online.md).

The episode is the library's (`cobalt.episode`), with the rules that the row names (`extra_info.episode`). At each turn
the policy sees the chat template's rendering of the episode's messages, as in evaluation. The reward is that of
single-turn training (`cobalt_verl.scoring`), for one program of the trajectory:

- A response that the token limit cut off is a response like any other: its program is the block it was writing.
- A turn whose prompt would be longer than `data.max_prompt_length` cannot be taken. The trajectory ends there, and its
  final response counts as one without a program, as in evaluation.
- A failure of the judge is raised, and stops the run.
"""

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import ray.serve  # noqa: F401  # which takes seconds: now, and not when the first program is judged
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.workers.rollout.replica import TokenOutput

from cobalt.conversation import Message, load_prompts
from cobalt.conversation.thinking import OPEN
from cobalt.conversation.turns import program_of
from cobalt.episode import Episode, judge_response
from cobalt.errors import InfrastructureError, UserError
from cobalt.judge import ExecResult, Judge
from cobalt.problem import TestSuite
from cobalt.reward import RewardSettings
from cobalt.training.episodes import EpisodeSettings, episode_settings
from cobalt_verl.agent_loops.seeded_single_turn import sample_seed
from cobalt_verl.agent_loops.token_rows import TokenRow, add_turn
from cobalt_verl.episodes import FIELD, RowRecord, TurnRecord
from cobalt_verl.scoring import JUDGE_ATTEMPTS, failures_recorded, running_judge, score, suite_of

_prompts = functools.cache(load_prompts)


@dataclass(slots=True)
class _Attempt:
    """A response of an episode and what its program is known to do.

    Attributes:
        response: The response as decoded.
        program: Its program; None without one.
        public: The result on the public tests.
        all_tests: The result on all tests; None while it is not needed.
        seconds: Wall time until the last verdict.
        tests: How many tests its program was judged on in all.
    """

    response: str
    program: str | None
    public: ExecResult
    all_tests: ExecResult | None
    seconds: float
    tests: int = 0


class MultiTurnLoop(AgentLoopBase):  # type: ignore[misc]  # veRL is not typed
    """One trajectory: one or several rows to train on, all with the trajectory's reward."""

    def __init__(self, *arguments: Any, seeded: bool, judge: Judge | None = None, **keywords: Any) -> None:
        """Prepare for a trajectory; veRL makes a loop for each.

        Args:
            arguments: Of veRL.
            seeded: Give each response a seed, which follows from `data.seed`, the step, the prompt, the number of the
                sample and the turn.
            judge: Who judges; None: the running service.
            keywords: Of veRL.

        Raises:
            UserError: the rollout has no `cobalt.multi_turn`.
        """
        from omegaconf import OmegaConf

        super().__init__(*arguments, **keywords)
        settings = episode_settings(self.config)
        if settings is None:
            raise UserError("an agent loop of several turns needs cobalt.multi_turn: choose the rollout multi_turn")
        options: Any = OmegaConf.to_container(self.config.reward.custom_reward_function.reward_kwargs, resolve=True)
        attempts = options.pop("judge_attempts", JUDGE_ATTEMPTS)
        self._settings: EpisodeSettings = settings
        self._reward = RewardSettings(**options)
        self._judge = judge or running_judge(attempts)
        self._seeded = seeded

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> list[AgentLoopOutput]:
        """Take an episode.

        Args:
            sampling_params: Of veRL, for each response.
            fields: The row: `raw_prompt`, `reward_model.ground_truth`, `extra_info` with `episode`; `global_steps`,
                `index` and `session_id`, which name the sample.

        Raises:
            CobaltError: the judge or the engine failed, or the row is broken. The reason is left for the process that
                stops the run.
        """
        with failures_recorded(fields["extra_info"].get("id")):
            return await self._run(sampling_params, fields)

    async def _run(self, sampling_params: dict[str, Any], fields: Mapping[str, Any]) -> list[AgentLoopOutput]:
        tests = suite_of(fields["reward_model"]["ground_truth"])
        rules = fields["extra_info"].get("episode")
        if rules is None:
            raise UserError("the row has no rules of an episode: make it with verl_preproc_single_turn.py --episodes")
        places = [int(place) for place in rules["public_tests"]]
        opening: list[Message] = [dict(message) for message in fields["raw_prompt"]]  # type: ignore[misc]
        episode = Episode(
            opening,
            tests.select(places),
            _prompts(rules["prompts"]),
            turns=self._settings.turns,
            enable_thinking=bool(rules["enable_thinking"]),
            truncated_thinking=rules["truncated_thinking"],
        )
        request, too_long, generating = uuid4().hex, False, 0.0
        rows: list[TokenRow] = []
        outputs: list[TokenOutput] = []
        attempts: list[_Attempt] = []
        while not episode.done:
            prompt_ids = await self._render(episode.messages)
            too_long = len(prompt_ids) > self.rollout_config.prompt_length
            if too_long:
                if not attempts:
                    raise UserError(f"its prompt has {len(prompt_ids)} tokens, more than data.max_prompt_length")
                break
            started = time.perf_counter()
            output = await self._generate(request, prompt_ids, sampling_params, fields, len(attempts))
            generating += time.perf_counter() - started
            outputs.append(output)
            add_turn(rows, prompt_ids, output.token_ids, output.log_probs)
            attempts.append(await self._attempt(output, tests, places, last=len(attempts) + 1 == self._settings.turns))
            episode.observe(self._seen(attempts[-1].response), attempts[-1].public)
            if self._ends(attempts[-1]):
                break
        if not too_long:
            await self._judge_all(attempts[-1], tests)
        parts, solved = self._score(attempts, fields["extra_info"], too_long=too_long)
        parts |= self._counts(rows, attempts, too_long=too_long)
        return self._outputs(rows, outputs, attempts, parts, solved, generating)

    async def _render(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that the chat template makes of a conversation, as tokens."""
        plain = [dict(message) for message in messages]
        tokens: list[int] = await self.loop.run_in_executor(
            None, self.continuous_token_builder.build_initial_tokens, plain
        )
        return tokens

    async def _generate(
        self, request: str, prompt_ids: list[int], sampling: Mapping[str, Any], fields: Mapping[str, Any], turn: int
    ) -> TokenOutput:
        """One response; the turns of a trajectory go to the same server, which remembers their beginning."""
        seed = {}
        if self._seeded:
            sample = (self.data_config.seed, fields["global_steps"], fields["index"], fields["session_id"], turn)
            seed = {"seed": sample_seed(*sample)}
        output = await self.server_manager.generate(
            request_id=request, prompt_ids=prompt_ids, sampling_params={**sampling, **seed}
        )
        if not output.token_ids:
            raise InfrastructureError(f"the engine generated nothing at turn {turn} ({output.stop_reason})")
        return output

    async def _attempt(self, output: TokenOutput, tests: TestSuite, places: list[int], *, last: bool) -> _Attempt:
        """Judge a response: on all tests if the outcomes are needed in any case, else on the public ones."""
        response: str = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        seen = self._seen(response)
        started = time.perf_counter()
        if last or self._settings.all_tests_every_turn:
            every = await judge_response(self._judge, seen, tests)
            public = every.select(places)
        else:
            every, public = None, await judge_response(self._judge, seen, tests.select(places))
        program, seconds = program_of(seen), time.perf_counter() - started
        judged = len(public.passing) if every is None else len(every.passing)
        return _Attempt(response, program, public, every, seconds, 0 if program is None else judged)

    async def _judge_all(self, attempt: _Attempt, tests: TestSuite) -> None:
        """Judge a response on all tests, unless it was."""
        if attempt.all_tests is None:
            started = time.perf_counter()
            attempt.all_tests = await judge_response(self._judge, self._seen(attempt.response), tests)
            attempt.seconds += time.perf_counter() - started
            attempt.tests += 0 if attempt.program is None else len(tests)

    def _seen(self, response: str) -> str:
        """A response as engines show it: the tag that the chat template opened in the prompt is at its head."""
        return OPEN + response if self._reward.prompt_opens_thinking else response

    def _ends(self, attempt: _Attempt) -> bool:
        """Whether a response ends the episode early."""
        if self._settings.stop == "all_passed":
            return attempt.all_tests is not None and attempt.all_tests.all_passed
        return self._settings.stop == "public_passed" and attempt.public.all_passed

    def _score(
        self, attempts: Sequence[_Attempt], extra_info: Mapping[str, Any], *, too_long: bool
    ) -> tuple[dict[str, float], bool]:
        """The parts of the trajectory's reward, and whether it solved the problem.

        Earlier programs of the trajectory do not count as `prev_best_pass_rate`: that is about programs in the prompt.
        """
        if self._settings.reward == "best":
            chosen = [attempt for attempt in attempts if attempt.all_tests is not None]
        else:
            chosen = [] if too_long else [attempts[-1]]
        scores = [
            score(
                attempt.response,
                None if attempt.program is None else attempt.all_tests,
                extra_info,
                attempt.seconds,
                self._reward,
            )
            for attempt in chosen
        ] or [score("", None, extra_info, 0.0, self._reward)]
        return max(scores, key=lambda parts: parts["score"]), any(parts["acc"] == 1.0 for parts in scores)

    def _counts(self, rows: Sequence[TokenRow], attempts: Sequence[_Attempt], *, too_long: bool) -> dict[str, float]:
        """What the trajectory was and cost; a turn that was not taken has the public pass rate of the last one."""
        rates = [attempt.public.pass_rate for attempt in attempts]
        rates += rates[-1:] * (self._settings.turns - len(rates))
        return {
            "turns": float(len(attempts)),
            "rows": float(len(rows)),
            "context_too_long": float(too_long),
            "generated_tokens": float(sum(sum(row.mask) for row in rows)),
            "judged_tests": float(sum(attempt.tests for attempt in attempts)),
            **{f"public_pass_rate_turn_{turn}": rate for turn, rate in enumerate(rates)},
        }

    def _outputs(
        self,
        rows: Sequence[TokenRow],
        outputs: Sequence[TokenOutput],
        attempts: Sequence[_Attempt],
        parts: dict[str, float],
        solved: bool,
        generating: float,
    ) -> list[AgentLoopOutput]:
        """The rows as veRL takes them; the last one has the reward, which veRL gives to the others."""
        result = []
        for row in rows:
            turns = []
            for (start, stop), turn in zip(row.spans, row.turns, strict=True):
                every = attempts[turn].all_tests
                turns.append(TurnRecord(start, stop, None if every is None else tuple(every.passing)))
            engine = [outputs[turn].extra_fields for turn in row.turns]
            steps = {
                "min_global_steps": min(fields["min_global_steps"] for fields in engine),
                "max_global_steps": max(fields["max_global_steps"] for fields in engine),
            }
            last = row is rows[-1]
            result.append(
                AgentLoopOutput(
                    prompt_ids=row.prompt_ids,
                    response_ids=row.response_ids,
                    response_mask=row.mask,
                    response_logprobs=row.log_probs,
                    # Messages that the policy saw and wrote up to the end of the row, but for the system's.
                    num_turns=2 * (row.turns[-1] + 1),
                    metrics={
                        "generate_sequences": generating if last else 0.0,
                        "compute_score": sum(attempt.seconds for attempt in attempts) if last else 0.0,
                    },
                    extra_fields=steps | {FIELD: RowRecord(tuple(turns), solved).to_field()},
                )
            )
        result[-1].reward_score = parts["score"]
        result[-1].extra_fields["reward_extra_info"] = parts
        return result
