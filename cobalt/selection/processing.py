"""Turn an evaluated multi-turn file into contextual prompts, one problem after another.

The steps are selection, segmentation, the limit on prompt length, perturbed copies and shuffling. Trajectories are read
as a stream and prompts wait on the disk until they are shuffled, so memory does not grow with the input. An interrupted
run leaves no result and starts over; the same command gives the same bytes.
"""

import asyncio
import os
import random
import shlex
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, Annotated, Any

import pydantic.dataclasses

from cobalt.episode import Message, PromptSet, load_prompts
from cobalt.episode.chat_template import TemplateThinking, template_arguments
from cobalt.episode.token_count import PolicyName, PromptTokenCounter, recorded_policy
from cobalt.episode.trajectory import Trajectory
from cobalt.judge import Judge
from cobalt.judge.opening import using_judge
from cobalt.problems.problem import Problem, TestSuite
from cobalt.selection.augmentation import impossible_feedback, perturbed_tests
from cobalt.selection.scores import ScoredProblem, ScoredTrajectory, read_scored
from cobalt.selection.segmentation import Context, SolvedRule, context, cut
from cobalt.selection.selection import authors_solved_at_first_turn, select, solved_at_first_turn
from cobalt.stage.errors import UserError, naming, tally
from cobalt.stage.progress import track
from cobalt.stage.rows import encode_json, parse_json
from cobalt.stage.run import Flag, Input, OptionalFile, Outcome, Output, check_ranges, quoted, stage, whole
from cobalt.stage.serve_state import Services
from cobalt.stage.service_flags import JudgeFlags
from cobalt.stage.tally import Summary

_PROBLEMS_AT_A_TIME = 32  # so that their prompts are one batch for the tokenizer
_PROGRAMS_AT_A_TIME = 64  # sent to the judge together

_SOLVED = "dropped: every first program is right"
_PROBLEM_TOO_LONG = "dropped: the problem is over the token limit"
_NOTHING_LEFT = "dropped: no state of it is left"
_TOO_LONG = "dropped: over the token limit"
_NOT_IMPOSSIBLE = "dropped: the feedback would show no impossible test"

_DECIDE = ["num_turns", "max_trajectories", "max_prompt_tokens", "solved_rule", "is_test", "perturbed_ratio", "seed"]
"""Settings that decide the prompts, besides those that are recorded only where they are used."""


@pydantic.dataclasses.dataclass(frozen=True)
class ProcessingSettings(JudgeFlags):
    """Select trajectories of an evaluated multi-turn run and cut them into the prompts that the policy is trained on.

    Programs are judged only with --perturbed_ratio.
    """

    input_file: Input
    """Result of eval_multi_turn.py (JSONL)."""
    output_file: Output
    """Prompts (JSONL), with their manifest next to them as .run.json, which also counts what was dropped."""
    model_name: PolicyName = None
    chat_template_thinking: TemplateThinking = "default"
    """The chat template's switch enable_thinking, as in collection: on, off, or default (not passed)."""
    num_turns: int = 3
    """Turns of each trajectory to read; later ones are left out."""
    max_trajectories: int = 4
    """Maximum number of trajectories of one problem."""
    max_prompt_tokens: Annotated[int, Flag(None, "--max_prompt_length")] = 10_000
    """Longest prompt, in tokens."""
    solved_rule: SolvedRule = "paper"
    """paper: the authors' rule, which drops right-wrong-right trajectories (its index is off by one). off: no rule."""
    is_test: bool = False
    """Make a test set: the one trajectory of each problem that changes least."""
    authors_selection: bool = False
    """As the authors' script: scores are over all turns in the file, compared in floating point, and a problem is too
    easy if the single-turn run passed everything (field `exec_results`)."""
    perturbed_ratio: float = 0.0
    """Prompts with impossible feedback to add for each partial trajectory, 0 to 1 (the paper's ratio is not known)."""
    perturbed_file: OptionalFile = None
    """Result of run_perturbation.py on the same problems; needed where the trajectories do not have its fields."""
    prompts: str = "paper"
    """Prompt set that the trajectories were collected with; the impossible feedback is worded by it."""
    seed: int = 42
    """Seed of the order and of the choice of perturbed prompts."""

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        counts = ("num_turns", "max_trajectories", "max_prompt_tokens")
        check_ranges(self, *((name, getattr(self, name) >= 1, "1 or more") for name in counts))
        check_ranges(self, ("perturbed_ratio", 0 <= self.perturbed_ratio <= 1, "0 to 1"))
        if self.perturbed_file and not self.perturbed_ratio:
            raise UserError("perturbed_file is set, but perturbed_ratio is 0: set the share of perturbed prompts, too")

    def services(self) -> Services:
        """The services that the stage needs: perturbed prompts are judged."""
        return "judge" if self.perturbed_ratio > 0 else "none"


@stage
async def select_prompts(settings: ProcessingSettings, judge: Judge | None = None) -> Outcome:
    """Write the prompts of a run, and count what each rule kept and dropped.

    A row is `id` ("<problem>/<sample>/<turn>"), `problem_id`, `sample` (None for the problem alone), `turn`
    (programs in the prompt), `prompt` (messages, ending with the user's), `prev_best_pass_rate` (over all tests, of
    the best program in the prompt), `perturbed`, `test_cases` (JSON string; all tests), `difficulty` and `source`
    where the problem has them.

    The judge is used only with a `perturbed_ratio`; None: that of the settings.

    Raises:
        UserError: bad input or settings, or nothing is left.
        InfrastructureError: the judge failed.
    """
    model = settings.model_name or recorded_policy(settings.input_file)
    async with using_judge(judge, settings) as judging:
        summary = await _select(settings, model, judging)
    made = quoted(settings.output_file)
    first_turns = "no trajectory was kept: every prompt is a problem alone, as in single-turn training"
    train, validation = ("FILE", made) if settings.is_test else (made, "FILE")
    other = "the training problems, without --is_test" if settings.is_test else "other problems, with --is_test"
    return Outcome(
        summary=summary,
        title=f"Contextual prompts: {settings.output_file}",
        tables=() if "kept" in summary["trajectories"] else [first_turns],
        wrote=str(settings.output_file),
        next=f"python preproc/verl_preproc_multi_turn.py --train_file {train} --validation_file {validation} -o ROWS"
        f" --model {shlex.quote(model)}, where FILE has prompts of {other}",
    )


async def _select(settings: ProcessingSettings, model: str, judge: Judge) -> Summary:
    """Write the prompts, measured with the tokenizer of `model`, and return the counts."""
    prompts = load_prompts(settings.prompts)
    counter = PromptTokenCounter(model, template_arguments(settings.chat_template_thinking))
    find_perturbed = perturbed_tests(settings.perturbed_file) if settings.perturbed_ratio else None
    arguments: dict[str, Any] = {"stage": "trajectories", "tokenizer": counter.fingerprint}
    arguments |= {name: getattr(settings, name) for name in _DECIDE}
    if settings.authors_selection:
        arguments["authors_selection"] = True
    if find_perturbed is not None:
        arguments |= {"prompts": dict(prompts.digests), "judge": dict(await judge.describe())}
    inputs = [settings.input_file, *([settings.perturbed_file] if settings.perturbed_file else [])]
    folder = settings.output_file.parent
    with whole(settings.output_file, arguments, inputs) as result, tempfile.TemporaryFile(dir=folder) as file:
        cutter = _Cutter(settings, counter, find_perturbed, _Spool(file))
        groups = iter(track(read_scored(settings.input_file, settings.num_turns), desc="trajectories", unit="problem"))
        while batch := list(islice(groups, _PROBLEMS_AT_A_TIME)):
            cutter.add(batch)
        if find_perturbed is not None:
            await _add_perturbed(settings, counter, cutter, judge, prompts)
        result.summary = {name: dict(counts) for name, counts in cutter.counts.items()}
        if not cutter.rows:
            raise UserError(
                f"{settings.input_file}: no prompt is left ({tally(result.summary)}): see --max_prompt_tokens, and the"
                " rules in docs/method.md"
            )
        result.write_lines(map(cutter.spool.line, _shuffled(cutter.rows, settings.seed)))
    return result.summary


def _shuffled(numbers: Sequence[int], seed: int) -> list[int]:
    shuffled = list(numbers)
    random.Random(seed).shuffle(shuffled)
    return shuffled


class _Spool:
    """Lines of JSON in a temporary file, which are read again by their numbers."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._spans: list[tuple[int, int]] = []  # offset and length

    def append(self, row: dict[str, Any]) -> int:
        """Append a row, and return its number."""
        line = (encode_json(row, ensure_ascii=False) + "\n").encode()
        self._spans.append((self._file.seek(0, os.SEEK_END), self._file.write(line)))
        return len(self._spans) - 1

    def line(self, number: int) -> bytes:
        """The line of a row."""
        offset, length = self._spans[number]
        self._file.seek(offset)
        return self._file.read(length)

    def row(self, number: int) -> dict[str, Any]:
        """A row."""
        row: dict[str, Any] = parse_json(self.line(number).decode())
        return row


@dataclass(slots=True)
class _Cutter:
    """Selects trajectories, cuts them, measures prompts, writes these to a spool, and counts what each rule does.

    `rows` are the numbers of the prompts in the spool, and `candidates` those of what could become perturbed copies.
    """

    settings: ProcessingSettings
    counter: PromptTokenCounter
    find_perturbed: Callable[[Problem], TestSuite | None] | None
    spool: _Spool
    rows: list[int] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    counts: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, groups: Sequence[ScoredProblem]) -> None:
        """Put the prompts of some problems, which are measured as one batch, into the spool."""
        problems, trajectories = self.counts["problems"], self.counts["trajectories"]
        chosen = [cuts for group in groups if (cuts := self._select(group))]
        chains = [[state.messages for state in states] for cuts in chosen for _, states in cuts]
        fitting = iter(self.counter.count_fitting(chains, self.settings.max_prompt_tokens))
        for cuts in chosen:
            counts = list(islice(fitting, len(cuts)))
            selected = [scored for scored, _ in cuts if scored is not None]
            if not any(counts):
                problems[_PROBLEM_TOO_LONG] += 1
                trajectories[_PROBLEM_TOO_LONG] += len(selected)
                continue
            problems["kept"] += 1
            alone = cuts[0][1][0]
            tests = alone.problem.tests.to_json()
            self._emit(alone, None, tests)
            for scored, (_, states), count in zip(selected, cuts, counts, strict=False):  # none where none is selected
                trajectories["kept" if count > 1 else _NOTHING_LEFT] += 1
                self.counts["prompts"][_TOO_LONG] += len(states) - count
                for state in states[1:count]:
                    self._emit(state, scored.trajectory, tests)

    def _select(self, group: ScoredProblem) -> list[tuple[ScoredTrajectory | None, list[Context]]]:
        """The selected trajectories of a problem with the states that the rules leave, the problem alone first.

        The problem alone where no trajectory is selected; nothing where the problem is too easy.
        """
        settings, trajectories = self.settings, self.counts["trajectories"]
        self.counts["problems"]["read"] += 1
        with naming(f"{settings.input_file}: record {group.problem.id!r}, by --authors_selection"):
            solved = authors_solved_at_first_turn if settings.authors_selection else solved_at_first_turn
            if solved(group):
                self.counts["problems"][_SOLVED] += 1
                return []
        selection = select(
            group, settings.max_trajectories, is_test=settings.is_test, authors=settings.authors_selection
        )
        trajectories["read"] += len(group.trajectories)
        trajectories.update(selection.dropped)
        cuts: list[tuple[ScoredTrajectory | None, list[Context]]] = []
        for scored in selection.selected:
            states, rule = cut(group, scored, settings.solved_rule)
            if rule is not None:
                self.counts["prompts"][f"dropped: {rule.replace('_', ' ')}"] += settings.num_turns + 1 - len(states)
            cuts.append((scored, states))
        return cuts or [(None, [context(group, group.trajectories[0], 0)])]

    def _emit(self, state: Context, trajectory: Trajectory | None, tests: str) -> None:
        problem = state.problem
        sample = None if trajectory is None else trajectory.sample
        self.counts["prompts"][_outcome(state.turn)] += 1
        row = {
            "id": f"{problem.id}/{'-' if sample is None else sample}/{state.turn}",
            "problem_id": problem.id,
            "sample": sample,
            "turn": state.turn,
            "prompt": state.messages,
            "prev_best_pass_rate": state.best_pass_rate,
            "perturbed": False,
            "test_cases": tests,
        }
        row |= {name: problem.record[name] for name in ("difficulty", "source") if name in problem.record}
        self.rows.append(self.spool.append(row))
        if trajectory is None or self.find_perturbed is None:
            return
        perturbed = self.find_perturbed(problem)
        if perturbed is not None:
            candidate = {"row": self.rows[-1], "response": trajectory.turns[state.turn - 1].response}
            candidate |= {"true": problem.public_tests.to_record(), "perturbed": perturbed.to_record()}
            self.candidates.append(self.spool.append(candidate))


def _outcome(turn: int) -> str:
    return f"kept: after {turn} programs"


async def _add_perturbed(
    settings: ProcessingSettings, counter: PromptTokenCounter, cutter: _Cutter, judge: Judge, prompts: PromptSet
) -> None:
    """Add perturbed copies until there are `perturbed_ratio` times as many as partial trajectories."""
    partial = len(cutter.rows) - cutter.counts["prompts"][_outcome(0)]
    wanted = round(settings.perturbed_ratio * partial)
    if wanted and not cutter.candidates:
        raise UserError(
            "no partial trajectory belongs to a problem with perturbed tests: give --perturbed_file, the result of"
            " run_perturbation.py on the problems of this run"
        )

    async def feedback_on(item: dict[str, Any]) -> Message | None:
        suites = [TestSuite.parse(item[name]) for name in ("true", "perturbed")]
        return await impossible_feedback(judge, prompts, item["response"], *suites)

    order = iter(_shuffled(cutter.candidates, settings.seed))
    counts = cutter.counts["perturbed prompts"] = Counter(wanted=wanted)
    with track(total=wanted, desc="perturbed", unit="prompt") as progress:
        while batch := list(islice(order, min(wanted - counts["added"], _PROGRAMS_AT_A_TIME))):
            candidates = list(map(cutter.spool.row, batch))
            messages = await asyncio.gather(*map(feedback_on, candidates))
            for item, feedback in zip(candidates, messages, strict=True):
                if feedback is None:
                    counts[_NOT_IMPOSSIBLE] += 1
                    continue
                row = cutter.spool.row(item["row"])
                row |= {"id": row["id"] + "/perturbed", "prompt": [*row["prompt"][:-1], feedback], "perturbed": True}
                if counter.count([row["prompt"]])[0] > settings.max_prompt_tokens:
                    counts[_TOO_LONG] += 1
                    continue
                cutter.rows.append(cutter.spool.append(row))
                counts["added"] += 1
                progress.update(1)
