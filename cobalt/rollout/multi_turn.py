"""Multi turn: one episode of repair for each sample of each problem (`cobalt.rollout.repair`).

As in the paper's code (`run_multi_turn_vllm.py`) the first turn is taken from a single-turn file (`responses`) or drawn
here, and each sample then is a conversation of its own. Conversations do not wait for one another.
"""

import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic.dataclasses import dataclass

from cobalt.engine import Engine
from cobalt.engine.replay import ReplayEngine
from cobalt.episode import first_messages, load_prompts
from cobalt.episode.record import PublicTests, decode_first_turns, encode_multi_turn, read_trajectories
from cobalt.judge import Judge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import PERTURBED_TESTS, Problem, ProblemId, TestSuite, load_problems
from cobalt.rollout.first_turn import check_continues, first_turn_arguments, number_of_samples
from cobalt.rollout.progress import CountingEngine
from cobalt.rollout.repair import RepairRules, repair_problem
from cobalt.rollout.shared import (
    CutOff,
    RolloutSettings,
    check_replay,
    decide_samples,
    is_finished,
    percent,
    run_rollout,
    using,
)
from cobalt.stage.errors import UserError, naming
from cobalt.stage.manifest import manifest_path
from cobalt.stage.run import Each, Outcome, quoted, stage
from cobalt.stage.service_flags import same_services

logger = logging.getLogger(__name__)


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
        if self.turns < 0:
            raise UserError(f"turns is {self.turns}: it must be 0 or more")

    def decisive(self) -> dict[str, Any]:
        """See `RolloutSettings.decisive`."""
        of_this_stage = ("turns", "public_tests", "enable_thinking", "truncated_thinking")
        return super().decisive() | {name: getattr(self, name) for name in of_this_stage}


@stage
async def repair(settings: RepairSettings, engine: Engine | None = None, judge: Judge | None = None) -> Outcome:
    """Write the records of a run.

    A record is the input record's fields, `instruction` as it was sent, and the fields of `encode_multi_turn`. Tokens
    and costs of turn 0 are those of its single-turn run. That run must have had the same prompts, sampling and engine
    (`cobalt.rollout.first_turn`), except for a replay, which generates nothing.

    Args:
        settings: What to do.
        engine: Generates; None: the engine of the settings.
        judge: Judges; None: the judge of the settings.

    Raises:
        UserError: bad input, a first turn or a result that other settings made, or a replay that holds none of the
            problems.
        ServiceDown: engine or judge is not running.
    """
    settings = settings.with_input()
    problems = load_problems(settings.input_file)
    chosen = settings.chosen(problems)
    recorded = {problem.id: _recorded_samples(settings, problem) for problem in chosen}
    # A recorded first turn was sent the instruction that its record has; `_check_first_turn` compares the prompts.
    settings.check_wording([problem for problem in chosen if not recorded[problem.id]])
    samples = number_of_samples(settings.input_file, list(recorded.values()), settings.num_completions)
    settings = replace(settings, num_completions=samples)
    settings.check_earlier()
    if engine is None and any(recorded.values()):
        await _check_first_turn(settings, None)  # before an engine is started
    with settings.opened_result() as output:
        if await is_finished(settings, output, problems, chosen):
            return repaired(settings)
        failed = await _repair(settings, output, problems, recorded, (engine, judge))
    return Outcome(failed=failed) if failed else repaired(settings)


async def _repair(
    settings: RepairSettings,
    output: Each,
    problems: Sequence[Problem],
    recorded: Mapping[ProblemId, int],
    services: tuple[Engine | None, Judge | None],
) -> int:
    """Make the records that the result does not hold; returns the number of problems that failed.

    `recorded` has the number of recorded first programs of each problem of the run.
    """
    prompts = load_prompts(settings.prompts)
    chosen = [problem for problem in problems if problem.id in recorded]
    async with using(services[0], settings) as opened, using_judge(services[1], settings) as judging:
        check_replay(opened, chosen, settings.turns + 1)
        first_turn = await _check_first_turn(settings, opened) if any(recorded.values()) else {}
        settings = await decide_samples(settings, opened)
        rules = RepairRules(
            prompts, settings.generation, settings.turns + 1, settings.enable_thinking, settings.truncated_thinking
        )
        planned = {
            identifier: number * settings.turns if number else settings.num_completions * rules.programs
            for identifier, number in recorded.items()
        }
        counting = CountingEngine(opened, planned, turns=rules.programs, max_tokens=settings.max_tokens)

        async def work(problem: Problem) -> dict[str, Any]:
            tests, first = _feedback_tests(settings, problem), decode_first_turns(problem.record)
            trajectories = await repair_problem(problem, counting, judging, rules, tests=tests, first=first)
            return dict(problem.record) | {
                "instruction": first_messages(problem, prompts)[-1]["content"],
                **encode_multi_turn(trajectories, settings.public_tests),
            }

        decided = {"first_turn": first_turn} if first_turn else {}
        return await run_rollout(settings, output, problems, work, (counting, judging), decided)


def repaired(settings: RepairSettings) -> Outcome:
    """The outcome of a run without failures: the share of first and last programs that pass all public tests."""
    result = settings.output_file
    problems = trajectories = first = last = 0
    cut = CutOff(result)
    for group in read_trajectories(result, unfinished=True):
        problems += 1
        for trajectory in group.trajectories:
            cut.count(trajectory.turns)
            rates = trajectory.public_pass_rates
            trajectories += 1
            first += rates[0] == 1
            last += rates[-1] == 1
    return Outcome(
        tables=cut.lines(),
        wrote=f"{result}: {problems} problems, {trajectories} trajectories; all public tests pass in"
        f" {percent(first, trajectories)} of them at turn 0 and in {percent(last, trajectories)} at the last turn",
        next=f"cobalt evaluate -i {quoted(result)} -o {quoted(result.with_name('evaluation.jsonl'))}"
        + "".join(f" {shlex.quote(word)}" for word in same_services(settings, ("judge_url", "judge"))),
    )


async def _check_first_turn(settings: RepairSettings, engine: Engine | None) -> dict[str, Any]:
    """Check that recorded first turns were made under the settings of this run; without an engine, those that show.

    Returns:
        The settings that differ and may, with the values of the first turn.

    Raises:
        UserError: another setting differs.
        ServiceDown: the engine is not running.
    """
    if settings.replay_file is not None or isinstance(engine, ReplayEngine):  # which generates nothing
        return {}
    source = settings.input_file
    made = first_turn_arguments(source)
    if made is None and engine is None:
        return {}
    if made is None:
        logger.warning(
            "nothing says under which settings the first turn in %s was made (there is no %s): give the same ones",
            *(source, manifest_path(source).name),
        )
        return {}
    now: dict[str, Any] = {
        "generation": settings.generation.model_dump(),
        "prompts": load_prompts(settings.prompts).digests,
    }
    if engine is not None:
        now["engine"] = dict(await engine.describe())
    return check_continues(source, made, now, settings.allow)


def _feedback_tests(settings: RepairSettings, problem: Problem) -> TestSuite:
    """The tests that feedback comes from.

    Raises:
        UserError: perturbed tests are asked for, and the problem has none.
    """
    if settings.public_tests == "benign":
        return problem.public_tests
    tests = problem.perturbed_tests()
    if tests is None:
        raise UserError(f"it has no perturbed tests (field {PERTURBED_TESTS!r}): run preproc/run_perturbation.py first")
    return tests


def _recorded_samples(settings: RepairSettings, problem: Problem) -> int:
    """The number of samples of a problem that have a recorded first turn.

    Raises:
        UserError: the problem has no tests that feedback comes from, or the recorded turn is malformed.
    """
    with naming(f"{settings.input_file}: problem {problem.id!r}"):
        if len(problem.public_tests) == 0:
            raise UserError(
                "it has no public tests (field 'public_test_cases'), and feedback comes from them: cobalt split makes"
                " public and hidden tests of a problem's own"
            )
        _feedback_tests(settings, problem)
        return len(decode_first_turns(problem.record) or ())
