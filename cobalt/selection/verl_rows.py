"""Parquet files that veRL 0.9.1 trains on, from problems (single turn) or from contextual prompts (multi turn).

A row has the five columns that veRL's `RLHFDataset` and reward managers read and nothing else: `data_source`,
`prompt` (messages), `ability`, `reward_model` (`style`, `ground_truth`: all tests as a JSON string) and `extra_info`
(`rows_schema`). Over-long prompts, by veRL's measure, are left out and counted, because veRL would stop at them or cut
them. Contextual prompts of the authors are read, too.
"""

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import pydantic.dataclasses
from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from cobalt.episode import Message, TruncatedThinking, check_wording, first_messages, load_prompts
from cobalt.episode.chat_template import TemplateThinking, template_arguments
from cobalt.episode.prompt_set import BUILT_IN, DEFAULT
from cobalt.episode.token_count import PolicyName, PromptTokenCounter, recorded_policy
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.errors import UserError, naming
from cobalt.stage.records import checked, iterate_records
from cobalt.stage.rows import read_rows
from cobalt.stage.run import READ, Flag, Outcome, check_ranges, quoted, stage, whole
from cobalt.stage.tally import FIRST, Summary, Tally, with_first

logger = logging.getLogger(__name__)

LongestPrompt = Annotated[
    int,
    Flag(
        None,
        text="Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted.",
    ),
]

RESULTS = {"train": "train.parquet", "validation": "validation.parquet"}
"""The file of each split, which veRL wants both."""

# A row group is in memory, with the tests of its rows, when it is written and when it is read; pyarrow reads none whose
# texts have more than 2 GiB.
ROWS_IN_A_GROUP = 128
CHARACTERS_IN_A_GROUP = 32 << 20


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class VerlRowsSettings:
    """Settings that the two conversions share; the default inputs are where the authors' scripts look."""

    train_file: Annotated[Path, Flag(None, "--train_data_file"), READ] = Path("data/taco_verified_filtered_train.jsonl")
    """File that the training rows are made from (JSONL)."""
    validation_file: Annotated[Path, Flag(None, "--val_data_file"), READ] = Path(
        "data/taco_verified_filtered_dev.jsonl"
    )
    """File that the validation rows are made from (JSONL)."""
    local_dir: Annotated[Path, Flag("output_dir", "-o", "--local_dir")]
    """Folder for the two parquet files."""
    model_name: PolicyName = None
    chat_template_thinking: TemplateThinking = "default"
    """Setting of thinking that the template is given, as in collection: on, off, or default (nothing)."""
    max_prompt_length: LongestPrompt
    data_source: str = "taco_cobalt"
    """veRL's name for where the rows are from."""

    @property
    def results(self) -> list[Path]:
        """The files that the stage writes."""
        return [self.local_dir / name for name in RESULTS.values()]

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        check_ranges(self, ("max_prompt_length", self.max_prompt_length >= 1, "1 or more"))


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class SingleTurnRowsSettings(VerlRowsSettings):
    """Write one training row for each problem, for single-turn GRPO (the paper's FT models).

    The inputs are problems. Writes train.parquet and validation.parquet, with the columns data_source, prompt, ability,
    reward_model and extra_info. No problem may be in both files.
    """

    max_prompt_length: LongestPrompt = 2_048
    prompts: str | None = None
    """Prompt set that words the problems: paper (the default), pocket, program, or a folder. Refused if problems have
    the field instruction in other words."""
    episodes: bool = False
    """Make rows from which online multi-turn training goes on (docs/training.md): feedback comes from the public tests,
    in the words of the prompt set."""
    enable_thinking: bool = False
    """With episodes: show later turns only the answer of each response, its first 6,000 characters, as the flag of
    run_multi_turn_vllm.py does."""
    truncated_thinking: TruncatedThinking = "keep"
    """With episodes and enable_thinking, what later turns see of a response that was cut off inside its thinking."""


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class MultiTurnRowsSettings(VerlRowsSettings):
    """Write one training row for each contextual prompt, for Cobalt's single-step GRPO.

    The inputs are results of process_multi_turn_taco.py, the validation file's with --is_test. Writes train.parquet and
    validation.parquet, with the columns data_source, prompt, ability, reward_model and extra_info. No problem may be in
    both files.
    """

    max_prompt_length: LongestPrompt = 10_240


class _Contextual(TypedDict):
    """The fields of a contextual prompt that a row is made of; others are passed over."""

    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]

    problem_id: str | int
    prompt: Annotated[list[Message], Field(min_length=1)]
    test_cases: Any
    sample: int | None
    turn: Annotated[int, Field(ge=0)]
    prev_best_pass_rate: Annotated[float, Field(ge=0, le=1)]
    perturbed: bool


@stage
def convert_single_turn(settings: SingleTurnRowsSettings) -> Outcome:
    """One row for each problem, its first message worded by the prompt set unless it has an `instruction`.

    With `episodes` a row also has `extra_info.episode`, from which an agent loop of several turns makes the problem's
    episode: `public_tests`, the indices of the public tests among all tests; `prompts`, the prompt set of the feedback;
    and `enable_thinking` and `truncated_thinking`.

    Raises:
        UserError: bad input, an `instruction` in other words than those of `prompts`, or a file without a usable
            prompt. With `episodes` also a problem that has no public tests, or one that is not among all its tests.
    """
    prompt_set = load_prompts(settings.prompts)
    decided: dict[str, Any] = {"stage": "verl_single_turn", "prompts": dict(prompt_set.digests)}
    rules = {"enable_thinking": settings.enable_thinking, "truncated_thinking": settings.truncated_thinking}
    if settings.episodes:
        decided["episodes"] = rules
    name = settings.prompts or DEFAULT
    # veRL's processes run elsewhere, so a folder needs its whole path.
    words = name if (BUILT_IN / name).is_dir() else str(Path(name).resolve())

    def row(problem: Problem) -> dict[str, Any]:
        if settings.prompts is not None:
            check_wording(problem, prompt_set)
        about: dict[str, Any] = {"turn": 0, "prev_best_pass_rate": 0.0, "perturbed": False}
        if settings.episodes:
            if not problem.public_tests:
                raise UserError("it has no public tests (field 'public_test_cases'), and feedback comes from them")
            with naming("field 'public_test_cases'"):
                indices = problem.tests.positions_of(problem.public_tests)
            about["episode"] = {"public_tests": indices, "prompts": words} | rules
        return _row(problem.record, first_messages(problem, prompt_set), problem.tests, problem_id=problem.id, **about)

    def read(path: Path) -> Iterator[dict[str, Any]]:
        for record in iterate_records(path):
            with naming(f"{path}: record {record['id']!r}"):
                made = row(Problem.parse(record))
            yield made

    data = "episodes --rollout multi_turn" if settings.episodes else "problems"
    return _convert(settings, decided, read, data, rows_schema(episodes=settings.episodes))


@stage
def convert_multi_turn(settings: MultiTurnRowsSettings) -> Outcome:
    """One row for each contextual prompt of process_multi_turn_taco.py, this project's or the authors'.

    Raises:
        UserError: bad input, or a file without a usable prompt.
    """
    return _convert(
        settings, {"stage": "verl_multi_turn"}, _read_contextual, "partial_trajectories", rows_schema(episodes=False)
    )


def _read_contextual(path: Path) -> Iterator[dict[str, Any]]:
    for record in _contextual_records(path):
        with naming(f"{path}: record {record['id']!r} is not a result of process_multi_turn_taco.py"):
            fields: dict[str, Any] = dict(checked(_Contextual, {"sample": None} | record))
            messages, tests = fields.pop("prompt"), TestSuite.parse(fields.pop("test_cases"))
            if not tests or messages[-1]["role"] != "user":
                raise UserError(
                    "field 'test_cases' has no test, or field 'prompt' does not end with the user's message"
                )
        yield _row(record, messages, tests, **fields)


def _contextual_records(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of contextual prompts, with this project's fields.

    The authors' prompts have `example_id`, which is the problem's and repeats, and `conversation`. Their sample is not
    recorded.
    """
    first = next(read_rows(path), None)
    if first is None or "example_id" not in first[1]:
        yield from iterate_records(path)
        return
    for number, (_, record) in enumerate(read_rows(path)):
        problem, conversation = record.get("example_id"), record.get("conversation")
        messages = conversation if isinstance(conversation, list) else []
        programs = [item for item in messages if isinstance(item, dict) and item.get("role") == "assistant"]
        yield {
            "perturbed": False,
            **record,
            "id": f"{problem}/{number}",
            "problem_id": problem,
            "sample": None,
            "turn": len(programs),
            "prompt": conversation,
        }


def _row(record: Mapping[str, Any], messages: list[Message], tests: TestSuite, **about: Any) -> dict[str, Any]:
    """A row without what the whole file decides; `about` has further fields of `extra_info`."""
    difficulty = record.get("difficulty")
    about |= {"id": str(record["id"]), "problem_id": str(about["problem_id"])}
    about |= {"difficulty": None if difficulty is None else str(difficulty)}
    return {
        "prompt": messages,
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": tests.to_json()},
        "extra_info": about,
    }


def _convert(
    settings: VerlRowsSettings,
    arguments: dict[str, Any],
    read: Callable[[Path], Iterator[dict[str, Any]]],
    data: str,
    schema: Any,
) -> Outcome:
    """Write both splits; `data` is what `cobalt train --data` calls the rows."""
    sources = {"train": settings.train_file, "validation": settings.validation_file}
    model = settings.model_name or recorded_policy(settings.train_file)
    counter = PromptTokenCounter(model, template_arguments(settings.chat_template_thinking))
    limit, source = settings.max_prompt_length, settings.data_source
    arguments |= {"tokenizer": counter.fingerprint, "max_prompt_length": limit, "data_source": source}
    splits: dict[str, Split] = {}
    with ExitStack() as stack:
        made = {
            name: stack.enter_context(whole(settings.local_dir / file, arguments | {"split": name}, [sources[name]]))
            for name, file in RESULTS.items()
        }
        for name, result in made.items():
            split = splits[name] = Split(name, source, counter, limit)
            split.write(read(sources[name]), result.file, schema)
            if not split.rows:
                raise UserError(
                    f"{sources[name]}: no prompt is left: {split.tally.total()} of {split.read} are longer than"
                    f" --max_prompt_length {limit}"
                )
        summary: Summary = {name: split.summary() for name, split in splits.items()}
        if shared := len(splits["train"].problems & splits["validation"].problems):
            words = "%d problems are in %s and in %s: validation measures them after training on them"
            logger.warning(words, shared, settings.train_file, settings.validation_file)
            summary["validation"]["problems also in train"] = shared
        summary = with_first(summary, *(split.tally for split in splits.values()))
        for name, result in made.items():
            result.summary = {part: summary[part] for part in (name, FIRST) if part in summary}
    return Outcome(
        summary=summary,
        title=f"veRL rows: {settings.local_dir}",
        wrote=f"{settings.local_dir}/train.parquet and validation.parquet",
        next=f"cobalt train --data {data} --data_dir {quoted(settings.local_dir)} --model {shlex.quote(model)} -o RUN",
    )


def rows_schema(*, episodes: bool) -> Any:
    """The Arrow schema of the rows; with `episodes`, `extra_info` has what begins an episode of several turns."""
    import pyarrow as pa

    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    extra = {"index": number, "split": text, "id": text, "problem_id": text, "sample": number, "turn": number}
    extra |= {"prev_best_pass_rate": pa.float64(), "perturbed": flag, "difficulty": text}
    if episodes:
        rules = {"enable_thinking": flag, "truncated_thinking": text}
        extra["episode"] = pa.struct({"public_tests": pa.list_(number), "prompts": text} | rules)
    return pa.schema(
        {
            "data_source": text,
            "prompt": pa.list_(pa.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pa.struct({"style": text, "ground_truth": text}),
            "extra_info": pa.struct(extra),
        }
    )


@dataclass(slots=True)
class Split:
    """Writes the rows of one split, of prompts up to a `limit` in tokens, and counts."""

    name: str
    data_source: str
    counter: PromptTokenCounter
    limit: int
    read: int = 0
    rows: int = 0
    longest: int = 0
    problems: set[str] = field(default_factory=set)
    tally: Tally = field(default_factory=Tally)

    def write(self, rows: Iterable[dict[str, Any]], file: IO[bytes], schema: Any) -> None:
        """Measure the prompts of rows, and write those that fit, numbered from 0."""
        import pyarrow
        from pyarrow.parquet import ParquetWriter

        with ParquetWriter(file, schema, compression="zstd") as parquet:
            for group in _groups(rows):
                fitting = list(self._fitting(group))
                if fitting:
                    parquet.write_table(pyarrow.Table.from_pylist(fitting, schema=schema))

    def _fitting(self, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        self.read += len(rows)
        for row, length in zip(rows, self.counter.count([row["prompt"] for row in rows]), strict=True):
            about = row["extra_info"]
            if length > self.limit:
                self.tally.leave_out(f"over max_prompt_length ({self.name})", about["id"])
                continue
            self.longest = max(self.longest, length)
            self.problems.add(about["problem_id"])
            yield row | {
                "data_source": self.data_source,
                "extra_info": about | {"index": self.rows, "split": self.name},
            }
            self.rows += 1

    def summary(self) -> dict[str, int]:
        """The counts of this split."""
        return {
            "prompts read": self.read,
            "dropped: over max_prompt_length": self.tally.total(),
            "rows": self.rows,
            "problems": len(self.problems),
            "longest prompt, tokens": self.longest,
        }


def _groups(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Rows in groups, each for one row group."""
    group: list[dict[str, Any]] = []
    characters = 0
    for row in rows:
        group.append(row)
        characters += len(row["reward_model"]["ground_truth"])
        if len(group) >= ROWS_IN_A_GROUP or characters >= CHARACTERS_IN_A_GROUP:
            yield group
            group, characters = [], 0
    if group:
        yield group
