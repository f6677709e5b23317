"""Turn an evaluated multi-turn file into contextual prompts, one problem after another.

The steps are selection, segmentation, the limit on prompt length, perturbed copies and shuffling. Trajectories are read
as a stream and prompts wait on the disk until they are shuffled, so memory does not grow with the input. An interrupted
run leaves no result and starts over; the same command gives the same bytes.
"""

import asyncio
import random
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, get_args

import pydantic.dataclasses

from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.chat_template import TemplateThinking, template_arguments
from cobalt.episode.token_count import PromptTokenCounter, recorded_policy
from cobalt.episode.trajectory import Trajectory
from cobalt.judge import Judge, ServeJudge
from cobalt.problems.problem import Problem, TestSuite
from cobalt.selection.augmentation import PerturbedTestsReader, impossible_feedbacks
from cobalt.selection.scores import ScoredProblem, ScoredTrajectory, read_scored
from cobalt.selection.segmentation import Context, SolvedRule, StopRule, context, cut
from cobalt.selection.selection import authors_selection, authors_solved_at_first_turn, select, solved_at_first_turn
from cobalt.stage.errors import UserError, tally
from cobalt.stage.progress import track
from cobalt.stage.rows import encode_json, parse_json
from cobalt.stage.run import Flag, Input, OptionalFile, Outcome, Output, quoted, stage, whole
from cobalt.stage.serve_state import Services
from cobalt.stage.tally import Summary

_PROBLEMS_AT_A_TIME = 32  # so that their prompts are one batch for the tokenizer
_PROGRAMS_AT_A_TIME = 64  # sent to the judge together

_SOLVED = "dropped: every first program is right"
_PROBLEM_TOO_LONG = "dropped: the problem is over the token limit"
_UNCHANGING = "dropped: no turn changes the pass rate"
_NEVER_RIGHT = "dropped: never right"
_DOWN_SAMPLED = "dropped: down-sampling"
_NOTHING_LEFT = "dropped: no state of it is left"
_TOO_LONG = "dropped: over the token limit"
_NOT_IMPOSSIBLE = "dropped: the feedback would show no impossible test"


@pydantic.dataclasses.dataclass(frozen=True)
class ProcessingSettings:
    """Select trajectories of an evaluated multi-turn run and cut them into the prompts that the policy is trained on.

    Needs the Ray Serve app `evaluator` only with --perturbed_ratio.
    """

    input_file: Input
    """Result of eval_multi_turn.py (JSONL)."""
    output_file: Output
    """Prompts (JSONL), with their manifest next to them as .run.json, which also counts what was dropped."""
    model_name: Annotated[str | None, Flag("model", "--model_name")] = None
    """The policy, a Hugging Face id or a folder; its chat template decides how long a prompt is. Default: the model of
    the Hub that wrote the trajectories, or Qwen/Qwen3-8B (paper) where no manifest says which; a message names it."""
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
        for name in ("num_turns", "max_trajectories", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}: it must be 1 or more")
        if not 0 <= self.perturbed_ratio <= 1:
            raise UserError(f"perturbed_ratio is {self.perturbed_ratio}: it must lie between 0 and 1")
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

    Args:
        settings: What to do.
        judge: Used only with a `perturbed_ratio`; None: the service.

    Raises:
        UserError: bad input or settings, or nothing is left.
        InfrastructureError: the judge failed.
    """
    judge = judge or ServeJudge()
    model = settings.model_name or recorded_policy(settings.input_file)
    prompts = load_prompts(settings.prompts)
    next(read_scored(settings.input_file, settings.num_turns))  # report bad input before loading a tokenizer (seconds)
    counter = PromptTokenCounter(model, template_arguments(settings.chat_template_thinking))
    perturbed_tests = PerturbedTestsReader(settings.perturbed_file) if settings.perturbed_ratio else None
    arguments: dict[str, Any] = {
        "stage": "trajectories",
        "tokenizer": counter.fingerprint,
        "num_turns": settings.num_turns,
        "max_trajectories": settings.max_trajectories,
        "max_prompt_tokens": settings.max_prompt_tokens,
        "solved_rule": settings.solved_rule,
        "is_test": settings.is_test,
        "perturbed_ratio": settings.perturbed_ratio,
        "seed": settings.seed,
    }
    if settings.authors_selection:
        arguments["authors_selection"] = True
    if perturbed_tests is not None:
        arguments |= {"prompts": dict(prompts.digests), "judge": dict(await judge.describe())}
    inputs = [settings.input_file, *([settings.perturbed_file] if settings.perturbed_file else [])]
    folder = settings.output_file.parent
    with whole(settings.output_file, arguments, inputs) as result, _Spool(folder) as rows, _Spool(folder) as candidates:
        cutter = _Cutter(settings, counter, perturbed_tests, rows, candidates)
        groups = track(read_scored(settings.input_file, settings.num_turns), desc="trajectories", unit="problem")
        await _cut_all(cutter, _chunks(groups, _PROBLEMS_AT_A_TIME))
        if perturbed_tests is not None:
            await _add_perturbed(settings, counter, cutter, judge, prompts)
        result.summary = cutter.summary()
        if not rows:
            raise UserError(
                f"{settings.input_file}: no prompt is left ({tally(result.summary)}): see --max_prompt_tokens, and the"
                " rules in docs/trajectories.md"
            )
        result.write_lines(rows.shuffled(settings.seed))
    made = quoted(settings.output_file)
    first_turns = "no trajectory was kept: every prompt is a problem alone, as in single-turn training"
    train, validation = ("FILE", made) if settings.is_test else (made, "FILE")
    other = "the training problems, without --is_test" if settings.is_test else "other problems, with --is_test"
    return Outcome(
        summary=result.summary,
        title=f"Contextual prompts: {settings.output_file}",
        tables=() if result.summary["trajectories"]["kept"] else [first_turns],
        wrote=str(settings.output_file),
        next=f"python preproc/verl_preproc_multi_turn.py --train_file {train} --validation_file {validation} -o ROWS"
        f" --model {shlex.quote(model)}, where FILE has prompts of {other}",
    )


class _Spool:
    """JSON rows in an unnamed temporary file, in order of arrival."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (__exit__ closes it)
        except OSError as error:
            raise UserError(f"cannot write into {folder}: {error.strerror}") from None
        self._starts = [0]

    def __enter__(self) -> "_Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def append(self, row: dict[str, Any]) -> int:
        """Append a row, and return its number."""
        line = (encode_json(row, ensure_ascii=False) + "\n").encode()
        try:
            if self._file.tell() != self._starts[-1]:
                self._file.seek(self._starts[-1])
            self._file.write(line)
        except OSError as error:
            raise UserError(f"cannot write into {self._folder}: {error.strerror}") from None
        self._starts.append(self._starts[-1] + len(line))
        return len(self) - 1

    def read(self, number: int) -> dict[str, Any]:
        """Read the row with this number."""
        row: dict[str, Any] = parse_json(self._line(number).decode())
        return row

    def shuffled(self, seed: int) -> Iterator[bytes]:
        """The lines of all rows, in an order that the seed decides."""
        order = list(range(len(self)))
        random.Random(seed).shuffle(order)
        return map(self._line, order)

    def _line(self, number: int) -> bytes:
        self._file.seek(self._starts[number])
        return self._file.read(self._starts[number + 1] - self._starts[number])


@dataclass(frozen=True, slots=True)
class _Chosen:
    """A problem and its selected trajectories, each with the states that the stopping rules leave."""

    group: ScoredProblem
    cuts: list[tuple[ScoredTrajectory, list[Context]]]


class _Cutter:
    """Selects trajectories, cuts them, measures prompts, writes these to a spool, and counts what each rule does."""

    def __init__(
        self,
        settings: ProcessingSettings,
        counter: PromptTokenCounter,
        perturbed_tests: PerturbedTestsReader | None,
        rows: _Spool,
        candidates: _Spool,
    ) -> None:
        self._settings = settings
        self._counter = counter
        self.rows = rows
        self.candidates = candidates
        # Every rule has a count from the start, in order of application, so that one that drops nothing is listed too.
        self.problems = Counter({"read": 0, _SOLVED: 0, _PROBLEM_TOO_LONG: 0, "kept": 0})
        self.trajectories = Counter(
            {"read": 0, _UNCHANGING: 0, _NEVER_RIGHT: 0, _DOWN_SAMPLED: 0, _PROBLEM_TOO_LONG: 0, _NOTHING_LEFT: 0}
            | {"kept": 0}
        )
        self.prompts = Counter(
            {_rule_name(rule): 0 for rule in get_args(StopRule)}
            | {_TOO_LONG: 0}
            | {_kept(turn): 0 for turn in range(settings.num_turns + 1)}
        )
        self.perturbed: Counter[str] = Counter()
        self._perturbed_tests = perturbed_tests

    def choose(self, groups: list[ScoredProblem]) -> list[_Chosen]:
        """The problems that the rules leave, with their selected trajectories."""
        chosen = []
        for group in groups:
            self.problems["read"] += 1
            if self._solved_at_first_turn(group):
                self.problems[_SOLVED] += 1
            else:
                chosen.append(_Chosen(group, self._select(group)))
        return chosen

    def measure(self, chosen: list[_Chosen]) -> list[list[int]]:
        """For each problem and each of its trajectories, how many of its states fit into a prompt.

        The problem alone counts as the first state. A problem without a selected trajectory has one figure, for the
        problem alone.
        """
        chains = []
        for item in chosen:
            for states in [states for _, states in item.cuts] or [[context(item.group, item.group.trajectories[0], 0)]]:
                chains.append([state.messages for state in states])
        fitting = iter(self._counter.count_fitting(chains, self._settings.max_prompt_tokens))
        return [[next(fitting) for _ in range(max(1, len(item.cuts)))] for item in chosen]

    def put(self, chosen: list[_Chosen], fitting: list[list[int]]) -> None:
        """Put the prompts that fit into the spool."""
        for item, counts in zip(chosen, fitting, strict=True):
            if not any(counts):
                self.problems[_PROBLEM_TOO_LONG] += 1
                self.trajectories[_PROBLEM_TOO_LONG] += len(item.cuts)
                continue
            self.problems["kept"] += 1
            tests = item.group.problem.tests.to_json()
            self._emit(item.group, None, context(item.group, item.group.trajectories[0], 0), tests)
            # A problem without a selected trajectory has a figure but no cut to pair it with, hence not strict.
            for (scored, states), count in zip(item.cuts, counts, strict=False):
                self.trajectories["kept" if count > 1 else _NOTHING_LEFT] += 1
                self.prompts[_TOO_LONG] += len(states) - count
                for state in states[1:count]:
                    self._emit(item.group, scored.trajectory, state, tests)

    def _solved_at_first_turn(self, group: ScoredProblem) -> bool:
        if not self._settings.authors_selection:
            return solved_at_first_turn(group)
        try:
            return authors_solved_at_first_turn(group)
        except UserError as error:
            raise UserError(
                f"{self._settings.input_file}: record {group.problem.id!r}: {error} (needed by --authors_selection)"
            ) from None

    def _select(self, group: ScoredProblem) -> list[tuple[ScoredTrajectory, list[Context]]]:
        """The selected trajectories of a problem, each with the states that the rules leave."""
        choose = authors_selection if self._settings.authors_selection else select
        selection = choose(group, self._settings.max_trajectories, is_test=self._settings.is_test)
        self.trajectories["read"] += len(group.trajectories)
        self.trajectories[_UNCHANGING] += selection.unchanging
        self.trajectories[_NEVER_RIGHT] += selection.never_solved
        self.trajectories[_DOWN_SAMPLED] += selection.not_needed
        cuts = []
        for scored in selection.selected:
            states, rule = cut(group, scored, self._settings.solved_rule)
            if rule is not None:
                self.prompts[_rule_name(rule)] += self._settings.num_turns + 1 - len(states)
            cuts.append((scored, states))
        return cuts

    def _emit(self, group: ScoredProblem, trajectory: Trajectory | None, state: Context, tests: str) -> None:
        problem = group.problem
        sample = None if trajectory is None else trajectory.sample
        self.prompts[_kept(state.turn)] += 1
        number = self.rows.append(
            {
                "id": f"{problem.id}/{'-' if sample is None else sample}/{state.turn}",
                "problem_id": problem.id,
                "sample": sample,
                "turn": state.turn,
                "prompt": state.messages,
                "prev_best_pass_rate": state.best_pass_rate,
                "perturbed": False,
                "test_cases": tests,
            }
            | {name: problem.record[name] for name in ("difficulty", "source") if name in problem.record}
        )
        if trajectory is not None and self._perturbed_tests is not None:
            self._offer(number, problem, trajectory.turns[state.turn - 1].response)

    def _offer(self, number: int, problem: Problem, response: str) -> None:
        """Remember a prompt that could get a perturbed copy."""
        assert self._perturbed_tests is not None
        perturbed = self._perturbed_tests.of(problem)
        if perturbed is not None:
            self.candidates.append(
                {
                    "row": number,
                    "response": response,
                    "true": problem.public_tests.to_record(),
                    "perturbed": perturbed.to_record(),
                }
            )

    def summary(self) -> Summary:
        """Every count so far."""
        return {
            "problems": dict(self.problems),
            "trajectories": dict(self.trajectories),
            "prompts": dict(self.prompts),
        } | ({"perturbed prompts": dict(self.perturbed)} if self.perturbed else {})


def _rule_name(rule: StopRule) -> str:
    return f"dropped: {rule.replace('_', ' ')}"


def _kept(turn: int) -> str:
    return f"kept: after {turn} programs"


async def _cut_all(cutter: _Cutter, chunks: Iterable[list[ScoredProblem]]) -> None:
    """Cut every problem; while one chunk is measured in a thread, the next one is read."""
    before: tuple[list[_Chosen], asyncio.Future[list[list[int]]]] | None = None
    for chunk in chunks:
        chosen = cutter.choose(chunk)
        if before is not None:
            cutter.put(before[0], await before[1])
        before = chosen, asyncio.get_running_loop().run_in_executor(None, cutter.measure, chosen)
    if before is not None:
        cutter.put(before[0], await before[1])


async def _add_perturbed(
    settings: ProcessingSettings, counter: PromptTokenCounter, cutter: _Cutter, judge: Judge, prompts: PromptSet
) -> None:
    """Add perturbed copies until there are `perturbed_ratio` times as many as partial trajectories."""
    partial = len(cutter.rows) - cutter.prompts[_kept(0)]
    wanted = round(settings.perturbed_ratio * partial)
    if wanted and not cutter.candidates:
        raise UserError(
            "no partial trajectory belongs to a problem with perturbed tests: give --perturbed_file, the result of"
            " run_perturbation.py on the problems of this run"
        )
    order = list(range(len(cutter.candidates)))
    random.Random(settings.seed).shuffle(order)
    counts = cutter.perturbed
    counts.update({"wanted": wanted, _NOT_IMPOSSIBLE: 0, _TOO_LONG: 0, "added": 0})
    with track(total=wanted, desc="perturbed", unit="prompt") as progress:
        while order and counts["added"] < wanted:
            missing = wanted - counts["added"]
            batch = [cutter.candidates.read(number) for number in order[: min(missing, _PROGRAMS_AT_A_TIME)]]
            del order[: len(batch)]
            messages = await impossible_feedbacks(
                judge,
                prompts,
                (
                    (item["response"], TestSuite.parse(item["true"]), TestSuite.parse(item["perturbed"]))
                    for item in batch
                ),
            )
            for item, feedback in zip(batch, messages, strict=True):
                if feedback is None:
                    counts[_NOT_IMPOSSIBLE] += 1
                    continue
                row = cutter.rows.read(item["row"])
                row |= {"id": row["id"] + "/perturbed", "prompt": [*row["prompt"][:-1], feedback], "perturbed": True}
                if counter.count([row["prompt"]])[0] > settings.max_prompt_tokens:
                    counts[_TOO_LONG] += 1
                    continue
                cutter.rows.append(row)
                counts["added"] += 1
                progress.update(1)


def _chunks(groups: Iterable[ScoredProblem], size: int) -> Iterator[list[ScoredProblem]]:
    chunk: list[ScoredProblem] = []
    for group in groups:
        chunk.append(group)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
