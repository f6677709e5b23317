"""Multi turn: one episode of repair for each sample of each problem (`cobalt.rollout.repair`).

As in the paper's code (`run_multi_turn_vllm.py`) the first turn is taken from a single-turn file (`responses`) or drawn
here, and each sample then is a conversation of its own. Conversations do not wait for one another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cobalt.engine import Engine, GenerationSettings
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import TruncatedThinking, first_messages, load_prompts
from cobalt.episode.record import PublicTests, decode_first_turns, encode_multi_turn
from cobalt.episode.trajectory import Turn
from cobalt.judge import Judge
from cobalt.problems.problem import PERTURBED_TESTS, Problem, TestSuite, load_problems
from cobalt.rollout.first_turn import check_continues, first_turn_arguments, recorded_samples, say_unknown
from cobalt.rollout.progress import CountingEngine
from cobalt.rollout.repair import RepairSettings, repair
from cobalt.rollout.shared import RolloutSettings, check_replay, decide_samples, run_rollout
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments


@dataclass(frozen=True, slots=True)
class MultiTurnSettings(RolloutSettings):
    """Settings of one multi-turn run.

    Its input are problems, or the records of a single-turn run, whose `responses` are then the first turn. That run
    must have had the same prompts, sampling and engine (`cobalt.rollout.first_turn`), except for a replay, which
    generates nothing. An `n` other than the default must be the number of recorded responses.

    Attributes:
        turns: Turns after the first one (paper: 2 to collect trajectories, 8 to evaluate).
        public_tests: The tests that feedback comes from; "perturbed": those of preproc/run_perturbation.py.
        enable_thinking: Whether later turns see only what follows the thinking (`cobalt.episode.history_text`).
        truncated_thinking: What later turns see of a response cut off inside its thinking; see there.
        allow: Settings in which a recorded first turn may differ from this run, such as "temperature" or
            "engine.model"; the manifest then has those of the first turn as `first_turn`.
    """

    turns: int = 8
    public_tests: PublicTests = "benign"
    enable_thinking: bool = False
    truncated_thinking: TruncatedThinking = "keep"
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        RolloutSettings.__post_init__(self)  # super() does not work in a dataclass with slots
        if self.turns < 0:
            raise UserError(f"turns is {self.turns}: it must be 0 or more")

    def decisive(self) -> dict[str, Any]:
        """See `RolloutSettings.decisive`."""
        of_this_stage = ("turns", "public_tests", "enable_thinking", "truncated_thinking")
        return RolloutSettings.decisive(self) | {name: getattr(self, name) for name in of_this_stage}

    def check_earlier(self, services: Mapping[str, Any] | None = None) -> None:
        """See `RolloutSettings.check_earlier`."""
        settings = self
        if self.generation.n == GenerationSettings().n:  # as many as the first turn has, which the run compares
            generation = (recorded_arguments(self.output_file) or {}).get("generation", {})
            number = generation.get("n", self.generation.n)
            settings = replace(self, generation=self.generation.model_copy(update={"n": number}))
        RolloutSettings.check_earlier(settings, services)


async def run_multi_turn(settings: MultiTurnSettings, engine: Engine, judge: Judge) -> int:
    """Write the records of a run.

    A record is the input record's fields, `instruction` as it was sent, and the fields of `encode_multi_turn`. Tokens
    and costs of turn 0 are those of its single-turn run.

    Returns:
        How many problems failed.

    Raises:
        UserError: bad input, a first turn or a result that other settings made, or a replay that holds none of the
            problems.
        ServiceDown: engine or judge is not running.
    """
    settings.check()
    prompts = load_prompts(settings.prompts)
    problems = load_problems(settings.input_file)
    recorded: list[int] = []
    chosen = settings.chosen(problems)
    for problem in chosen:
        if len(problem.public_tests) == 0:
            raise UserError(
                f"{settings.input_file}: problem {problem.id!r} has no public tests (field 'public_test_cases'), and"
                " feedback comes from them: cobalt split makes public and hidden tests of a problem's own"
            )
        _feedback_tests(settings, problem)
        recorded.append(len(_recorded_first_turns(settings, problem) or ()))
    # A recorded first turn was sent the instruction that its record has; `_check_first_turn` compares the prompts.
    settings.check_wording([problem for problem, first in zip(chosen, recorded, strict=True) if not first])
    check_replay(engine, chosen, settings.turns + 1)
    if all(recorded):
        samples = recorded_samples(settings.input_file, recorded, settings.generation.n)
        settings = replace(settings, generation=settings.generation.model_copy(update={"n": samples}))
    first_turn = await _check_first_turn(settings, engine, [number for number in recorded if number])
    settings = await decide_samples(settings, engine)
    counting = CountingEngine(engine, turns=settings.turns + 1, max_tokens=settings.generation.max_tokens)
    first_turns = dict(zip((problem.id for problem in chosen), recorded, strict=True))
    rules = RepairSettings(
        prompts, settings.generation, settings.turns + 1, settings.enable_thinking, settings.truncated_thinking
    )

    async def work(problem: Problem) -> dict[str, Any]:
        tests, first = _feedback_tests(settings, problem), _recorded_first_turns(settings, problem)
        trajectories = await repair(problem, counting, judge, rules, tests=tests, first=first)
        return dict(problem.record) | {
            "instruction": first_messages(problem, prompts)[-1]["content"],
            **encode_multi_turn(trajectories, settings.public_tests),
        }

    def responses(problem: Problem) -> int:
        samples = first_turns[problem.id]
        return samples * settings.turns if samples else settings.generation.n * (settings.turns + 1)

    return await run_rollout(
        settings,
        problems,
        work,
        counting,
        judge,
        stage="multi_turn",
        responses=responses,
        decided={"first_turn": first_turn} if first_turn else {},
    )


async def _check_first_turn(settings: MultiTurnSettings, engine: Engine, recorded: Sequence[int]) -> dict[str, Any]:
    """Check that recorded first turns were made under the settings of this run.

    Returns:
        The settings that differ and may, with the values of the first turn.

    Raises:
        UserError: another setting differs.
        ServiceDown: the engine is not running.
    """
    if not recorded or isinstance(engine, ReplayEngine):  # a replay generates nothing
        return {}
    made = first_turn_arguments(settings.input_file)
    if made is None:
        say_unknown(settings.input_file)
        return {}
    now: dict[str, Any] = {
        "generation": settings.generation.model_dump(),
        "prompts": load_prompts(settings.prompts).digests,
    }
    # First what can be checked without the engine.
    check_continues(settings.input_file, made, now, settings.allow)
    about = dict(await engine.describe())
    about.pop("device", None)
    return check_continues(settings.input_file, made, now | {"engine": about}, settings.allow)


def _feedback_tests(settings: MultiTurnSettings, problem: Problem) -> TestSuite:
    """The tests that feedback comes from.

    Raises:
        UserError: perturbed tests are asked for, and the problem has none.
    """
    if settings.public_tests == "benign":
        return problem.public_tests
    try:
        tests = problem.perturbed_tests()
    except UserError as error:
        raise UserError(f"{settings.input_file}: problem {problem.id!r}: {error}") from None
    if tests is None:
        raise UserError(
            f"{settings.input_file}: problem {problem.id!r} has no perturbed tests (field {PERTURBED_TESTS!r}):"
            " run preproc/run_perturbation.py first"
        )
    return tests


def _recorded_first_turns(settings: MultiTurnSettings, problem: Problem) -> tuple[Turn, ...] | None:
    """The cached first turn of a single-turn record, by sample, or None.

    Raises:
        UserError: the recorded turn is malformed.
    """
    try:
        return decode_first_turns(problem.record)
    except UserError as error:
        raise UserError(f"{settings.input_file}: problem {problem.id!r}: {error}") from None
