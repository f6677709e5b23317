"""Multi turn: one episode of repair for each sample of each problem (`cobalt.rollout.repair`).

As in the paper's code (`run_multi_turn_vllm.py`) the first turn is taken from a single-turn file (`responses`) or drawn
here, and each sample then is a conversation of its own. Conversations do not wait for one another.
"""

import logging
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.engine import Engine, GenerationSettings
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import first_messages, load_prompts
from cobalt.episode.record import PublicTests, decode_first_turns, encode_multi_turn, read_trajectories
from cobalt.judge import Judge
from cobalt.problems.problem import PERTURBED_TESTS, Problem, ProblemId, TestSuite, load_problems
from cobalt.rollout.repair import RepairRules, repair_problem
from cobalt.rollout.shared import RolloutSettings, cut_off, percent, run_rollout
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import changed_settings, is_named, made_by, manifest_path
from cobalt.stage.run import Outcome, check_ranges, quoted, stage
from cobalt.stage.service_flags import same_services

logger = logging.getLogger(__name__)

_WITHOUT_EFFECT = (
    "generation.n",
    "generation.seed",
    "prompts.feedback.jinja",
    "engine.seed",
    "engine.private",
    "engine.device",
)
"""Settings that decide no response of a first turn; the number of samples has a check of its own."""


@dataclass(frozen=True)
class RepairSettings(RolloutSettings):
    """Let the model repair its programs with feedback from the public tests, turn after turn.

    The input is a single-turn result, whose responses are then the first turn, or a problem file. The engine is vLLM in
    this process (--model) or behind a URL (--engine_url), and so is the judge. A running `cobalt serve` is used where
    nothing else is named. Running the same command again resumes.
    """

    stage = "multi_turn"

    turns: int = 8
    """Turns after the first one; the paper has 2 to collect trajectories and 8 to evaluate."""
    public_tests: PublicTests = "benign"
    """The tests that feedback comes from; perturbed: those that preproc/run_perturbation.py made impossible."""
    allow: tuple[str, ...] = ()
    """Settings in which a first turn in the input may differ from this run, such as temperature or engine.model; the
    manifest names them. Without it a first turn that was made under other settings is refused."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        super().__post_init__()
        check_ranges(self, ("turns", self.turns >= 0, "0 or more"))

    @property
    def programs(self) -> int:
        """Programs of each trajectory, the first one included."""
        return self.turns + 1

    def decisive(self) -> dict[str, Any]:
        """See `RolloutSettings.decisive`."""
        of_this_stage = ("turns", "public_tests", "enable_thinking", "truncated_thinking")
        return super().decisive() | {name: getattr(self, name) for name in of_this_stage}

    def feedback_tests(self, problem: Problem) -> TestSuite:
        """The tests of a problem that feedback comes from; raises UserError: it does not have them."""
        if not problem.public_tests:
            raise UserError(
                "it has no public tests (field 'public_test_cases'), and feedback comes from them: cobalt split makes"
                " public and hidden tests of a problem's own"
            )
        tests = problem.public_tests if self.public_tests == "benign" else problem.perturbed_tests()
        if tests is None:
            raise UserError(f"it has no perturbed tests (field {PERTURBED_TESTS!r}): run cobalt perturb first")
        return tests


@stage
async def repair(settings: RepairSettings, engine: Engine | None = None, judge: Judge | None = None) -> Outcome:
    """Write the records of a run.

    A record is the input record's fields, `instruction` as it was sent, and the fields of `encode_multi_turn`. Tokens
    and costs of turn 0 are those of its single-turn run. That run must have had the same prompts, sampling and engine,
    or the settings that differ are named (`allow`).

    Args:
        settings: Settings of the run.
        engine: Generates; None: the engine of the settings.
        judge: Judges; None: the judge of the settings.

    Raises:
        UserError: bad input, a first turn or a result that other settings made, or a replay without some response.
        ServiceDown: engine or judge is not running.
    """
    problems = load_problems(settings.input_file)
    chosen = settings.chosen(problems)
    recorded: dict[ProblemId, int] = {}
    for problem in chosen:
        with naming(f"{settings.input_file}: problem {problem.id!r}"):
            settings.feedback_tests(problem)
            recorded[problem.id] = len(decode_first_turns(problem.record) or ())
    # A recorded first turn was sent the instruction that its record has; `_check_first_turn` compares the prompts.
    settings.check_wording([problem for problem in chosen if not recorded[problem.id]])
    samples = number_of_samples(settings.input_file, list(recorded.values()), settings.num_completions)
    settings = replace(settings, num_completions=samples)
    prompts = load_prompts(settings.prompts)

    async def work(problem: Problem, engine: Engine, judge: Judge, generation: GenerationSettings) -> dict[str, Any]:
        rules = RepairRules(
            prompts, generation, settings.programs, settings.enable_thinking, settings.truncated_thinking
        )
        tests, first = settings.feedback_tests(problem), decode_first_turns(problem.record)
        trajectories = await repair_problem(problem, engine, judge, rules, tests=tests, first=first)
        return dict(problem.record) | {
            "instruction": first_messages(problem, prompts)[-1]["content"],
            **encode_multi_turn(trajectories, settings.public_tests),
        }

    async def continued(engine: Engine) -> dict[str, Any]:
        differences = await _check_first_turn(settings, engine) if any(recorded.values()) else {}
        return {"first_turn": differences} if differences else {}

    planned = {
        identifier: number * settings.turns if number else samples * settings.programs
        for identifier, number in recorded.items()
    }
    failed = await run_rollout(settings, problems, planned, (engine, judge), work, continued)
    return Outcome(failed=failed) if failed else repaired(settings)


def repaired(settings: RepairSettings) -> Outcome:
    """The outcome of a run without failures: the share of first and last programs that pass all public tests."""
    result = settings.output_file
    problems = trajectories = first = last = 0
    ends: Counter[str | None] = Counter()
    for group in read_trajectories(result, unfinished=True):
        problems += 1
        for trajectory in group.trajectories:
            ends.update(turn.finish_reason for turn in trajectory.turns)
            rates = trajectory.public_pass_rates
            trajectories += 1
            first += rates[0] == 1
            last += rates[-1] == 1
    return Outcome(
        tables=cut_off(ends),
        wrote=f"{result}: {problems} problems, {trajectories} trajectories; all public tests pass in"
        f" {percent(first, trajectories)} of them at turn 0 and in {percent(last, trajectories)} at the last turn",
        next=f"cobalt evaluate -i {quoted(result)} -o {quoted(result.with_name('evaluation.jsonl'))}"
        + "".join(f" {shlex.quote(word)}" for word in same_services(settings, ("judge_url", "judge"))),
    )


def number_of_samples(input_file: Path, recorded: Sequence[int], wanted: int) -> int:
    """Number of samples that a run has for each problem: as many as its input has, and `wanted` where that has none.

    `recorded` is the number of recorded responses of each problem; 0: it has none. The default of `GenerationSettings`
    stands for "as many as are recorded"; raises UserError: another number is asked for. Different numbers hold for each
    problem, and `wanted` for the others.
    """
    numbers = sorted(set(recorded) - {0})
    if wanted != GenerationSettings().n and set(numbers) - {wanted}:
        raise UserError(
            f"the first turn in {input_file} has {' or '.join(map(str, numbers))} samples of a problem, and -n {wanted}"
            " asks for another number: leave -n out, or give a file of problems without responses"
        )
    return numbers[0] if len(numbers) == 1 else wanted


async def _check_first_turn(settings: RepairSettings, engine: Engine) -> dict[str, Any]:
    """The settings of recorded first turns that differ from this run's, and may, by the manifests of the input.

    Raises UserError: another setting differs.
    """
    if isinstance(engine, ReplayEngine):  # which generates nothing
        return {}
    source = settings.input_file
    made = next((arguments for arguments in made_by(source) if arguments.get("stage") == "single_turn"), None)
    if made is None:
        words = "the settings that made the first turn in %s are not known: %s is missing"
        logger.warning(words, source, manifest_path(source).name)
        return {}
    now = {"generation": settings.generation.model_dump(), "prompts": load_prompts(settings.prompts).digests}
    differences = _allowed_differences(settings, made, now)  # before an engine is started
    return differences | _allowed_differences(settings, made, {"engine": dict(await engine.describe())})


def _allowed_differences(settings: RepairSettings, made: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of some groups that differ and may, with the values of the first turn; others are refused."""
    changed = changed_settings({group: made.get(group, {}) for group in now}, now)
    changed = {name: values for name, values in changed.items() if name not in _WITHOUT_EFFECT}
    refused = [
        f"{name} has another content" if name.startswith("prompts.") else f"{name} was {old!r}, now {new!r}"
        for name, (old, new) in changed.items()
        if not is_named(name, settings.allow)
    ]
    if refused:
        raise UserError(
            f"the first turn in {settings.input_file} was made with other settings ({'; '.join(refused)}): give the"
            " same settings, or name those that may differ with --allow"
        )
    return {name: old for name, (old, _) in changed.items()}
