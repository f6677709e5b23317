"""Parquet files that veRL 0.9.1 trains on, from problems (single turn) or from contextual prompts (multi turn).

A row has the five columns that veRL's `RLHFDataset` and reward managers read and nothing else: `data_source`,
`prompt` (messages), `ability`, `reward_model` (`style`, `ground_truth`: all tests as a JSON string) and `extra_info`
(`index`, `split`, `id`, `problem_id`, `sample`, `turn`, `prev_best_pass_rate`, `perturbed`, `difficulty`; if asked for,
`episode`, by which a rollout of several turns goes on from the prompt). Prompts are
measured as veRL measures them; over-long ones are left out and counted, because veRL would stop at them or cut
them. Contextual prompts of the authors are read, too. Nothing here selects trajectories or judges programs.
"""

import logging
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pydantic.dataclasses
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cobalt.episode import Message, TruncatedThinking, check_wording, first_messages, load_prompts
from cobalt.episode.chat_template import TemplateThinking, template_arguments
from cobalt.episode.prompt_set import BUILT_IN, DEFAULT
from cobalt.episode.token_count import PromptTokenCounter, recorded_policy
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.atomic import locked_folder
from cobalt.stage.errors import UserError
from cobalt.stage.records import iterate_records
from cobalt.stage.rows import read_rows
from cobalt.stage.run import READ, Flag, Outcome, quoted, stage, whole
from cobalt.stage.tally import FIRST, Summary, Tally, with_first

logger = logging.getLogger(__name__)

RESULTS = {"train": "train.parquet", "validation": "validation.parquet"}
"""The file of each split, which veRL wants both."""

# A row group is read as a whole: small enough to stream, large enough to be worth a read.
_ROWS_IN_A_GROUP = 1000
_CHARACTERS_IN_A_GROUP = 32 << 20


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class VerlRowsSettings:
    """What the two conversions share; the default inputs are where the authors' scripts look."""

    train_file: Annotated[Path, Flag(None, "--train_data_file"), READ] = Path("data/taco_verified_filtered_train.jsonl")
    """What the training rows are made from (JSONL)."""
    validation_file: Annotated[Path, Flag(None, "--val_data_file"), READ] = Path(
        "data/taco_verified_filtered_dev.jsonl"
    )
    """What the validation rows are made from (JSONL)."""
    local_dir: Annotated[Path, Flag("output_dir", "-o", "--local_dir")]
    """Folder for the two parquet files."""
    model_name: Annotated[str | None, Flag("model", "--model_name")] = None
    """The policy, a Hugging Face id or a folder; its chat template decides how long a prompt is. Default: the model of
    the Hub that wrote the trajectories, or Qwen/Qwen3-8B (paper) where no manifest says which; a message names it."""
    chat_template_thinking: TemplateThinking = "default"
    """What that template is told about thinking, as in collection: on, off, or default (nothing)."""
    max_prompt_length: int
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    data_source: str = "taco_cobalt"
    """veRL's name for where the rows are from."""

    @property
    def results(self) -> list[Path]:
        """The files that the stage writes."""
        return [self.local_dir / name for name in RESULTS.values()]

    def __post_init__(self) -> None:
        """Raise UserError if a setting is out of its range."""
        if self.max_prompt_length < 1:
            raise UserError(f"max_prompt_length is {self.max_prompt_length}: it must be 1 or more")


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class SingleTurnRowsSettings(VerlRowsSettings):
    """Write one training row for each problem, for single-turn GRPO (the paper's FT models).

    The inputs are problems. Writes train.parquet and validation.parquet, with the columns data_source, prompt, ability,
    reward_model and extra_info. No problem may be in both files.
    """

    max_prompt_length: int = 2_048
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""
    prompts: str | None = None
    """Prompt set that words the problems: paper (the default), pocket, program, or a folder. Refused if problems have
    the field instruction in other words."""
    episodes: bool = False
    """Make rows from which online multi-turn training goes on (docs/online.md): feedback comes from the public tests,
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

    max_prompt_length: int = 10_240
    """Longest prompt in tokens, as in veRL's data.max_prompt_length; longer ones are left out and counted."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What a row is made of."""

    id: str
    problem_id: str
    messages: list[Message]
    tests: str
    difficulty: str | None
    sample: int | None = None
    turn: int = 0
    prev_best_pass_rate: float = 0.0
    perturbed: bool = False
    episode: dict[str, Any] | None = None


class _ContextualFields(BaseModel):
    """The fields of a contextual prompt that a row is made of; others are passed over."""

    model_config = ConfigDict(strict=True)

    problem_id: str | int
    prompt: Any
    test_cases: Any
    sample: int | None = None
    turn: int = Field(ge=0)
    prev_best_pass_rate: float = Field(ge=0, le=1)
    perturbed: bool


@stage
def convert_single_turn(settings: SingleTurnRowsSettings) -> Outcome:
    """One row for each problem, its first message worded by the prompt set unless it has an `instruction`.

    With `episodes` a row also has `extra_info.episode`, from which an agent loop of several turns makes the problem's
    episode: `public_tests`, the places of the public tests among all tests; `prompts`, the prompt set of the feedback;
    and `enable_thinking` and `truncated_thinking`.

    Raises:
        UserError: bad input, an `instruction` in other words than those of `prompts`, or a file without a usable
            prompt. With `episodes` also a problem that has no public tests, or one that is not among all its tests.
    """
    prompt_set = load_prompts(settings.prompts)
    rules = {"enable_thinking": settings.enable_thinking, "truncated_thinking": settings.truncated_thinking}

    def episode(problem: Problem) -> dict[str, Any] | None:
        if not settings.episodes:
            return None
        if not problem.public_tests:
            raise UserError("it has no public tests (field 'public_test_cases'), and feedback comes from them")
        try:
            places = problem.tests.places_of(problem.public_tests)
        except UserError as error:
            raise UserError(f"field 'public_test_cases': {error}") from None
        # veRL's processes run elsewhere, so a folder needs its whole path.
        name = settings.prompts or DEFAULT
        words = name if (BUILT_IN / name).is_dir() else str(Path(name).resolve())
        return {"public_tests": places, "prompts": words} | rules

    def read(path: Path) -> Iterator[_Prompt]:
        for record in iterate_records(path):
            try:
                problem = Problem.parse(record)
                begins = episode(problem)
                if settings.prompts is not None:
                    check_wording(problem, prompt_set)
            except UserError as error:
                raise UserError(f"{path}: record {record['id']!r}: {error}") from None
            yield _Prompt(
                id=str(problem.id),
                problem_id=str(problem.id),
                messages=first_messages(problem, prompt_set),
                tests=problem.tests.to_json(),
                difficulty=_difficulty(record),
                episode=begins,
            )

    decided: dict[str, Any] = {"stage": "verl_single_turn", "prompts": dict(prompt_set.digests)}
    if settings.episodes:
        decided["episodes"] = rules
    data = "episodes --rollout multi_turn" if settings.episodes else "problems"
    return _convert(settings, decided, read, data, episodes=settings.episodes)


@stage
def convert_multi_turn(settings: MultiTurnRowsSettings) -> Outcome:
    """One row for each contextual prompt of process_multi_turn_taco.py, this project's or the authors'.

    Raises:
        UserError: bad input, or a file without a usable prompt.
    """
    return _convert(settings, {"stage": "verl_multi_turn"}, _read_contextual, "partial_trajectories")


def _read_contextual(path: Path) -> Iterator[_Prompt]:
    for record in _contextual_records(path):
        try:
            fields = _ContextualFields.model_validate(record)
            tests = TestSuite.parse(fields.test_cases)
            if not tests:
                raise UserError("field 'test_cases': the test suite is empty")
            messages = _messages(fields.prompt)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(
                f"{path}: record {record['id']!r}: field {first['loc'][0]!r}: {first['msg']}: give the result of"
                " process_multi_turn_taco.py"
            ) from None
        except UserError as error:
            raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        yield _Prompt(
            id=str(record["id"]),
            problem_id=str(fields.problem_id),
            messages=messages,
            tests=tests.to_json(),
            difficulty=_difficulty(record),
            sample=fields.sample,
            turn=fields.turn,
            prev_best_pass_rate=fields.prev_best_pass_rate,
            perturbed=fields.perturbed,
        )


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


def _messages(value: object) -> list[Message]:
    good = isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)
        for item in value
    )
    if not good or not value or value[-1]["role"] != "user":  # type: ignore[index]
        raise UserError("field 'prompt' must be a list of messages that ends with the user's")
    return value  # type: ignore[return-value]


def _difficulty(record: dict[str, Any]) -> str | None:
    value = record.get("difficulty")
    return None if value is None else str(value)


def _convert(
    settings: VerlRowsSettings,
    arguments: dict[str, Any],
    read: Callable[[Path], Iterator[_Prompt]],
    data: str,
    *,
    episodes: bool = False,
) -> Outcome:
    """Write both splits; `data` is what `cobalt train --data` calls the rows."""
    from pyarrow.parquet import ParquetWriter

    sources = {"train": settings.train_file, "validation": settings.validation_file}
    if settings.train_file.samefile(settings.validation_file):
        raise UserError(
            f"{settings.train_file} and {settings.validation_file} are the same file: give validation one of its own"
        )
    for path in sources.values():
        next(read(path), None)  # report a file of another kind before loading a tokenizer, which takes seconds
    model = settings.model_name or recorded_policy(settings.train_file)
    counter = PromptTokenCounter(model, template_arguments(settings.chat_template_thinking))
    arguments |= {
        "tokenizer": counter.fingerprint,
        "max_prompt_length": settings.max_prompt_length,
        "data_source": settings.data_source,
    }
    writers: dict[str, _Writer] = {}
    with ExitStack() as stack:
        stack.enter_context(locked_folder(settings.local_dir))
        made = {
            split: stack.enter_context(
                whole(settings.local_dir / name, arguments | {"split": split}, [sources[split]], lines=False)
            )
            for split, name in RESULTS.items()
        }
        for split, result in made.items():
            with ParquetWriter(result.file, _schema(episodes), compression="zstd") as parquet:
                writers[split] = writer = _Writer(settings, counter, split, parquet)
                for prompt in read(sources[split]):
                    writer.add(prompt)
                writer.flush()
            if not writer.rows:
                raise UserError(
                    f"{sources[split]}: no prompt is left: {writer.too_long} of {writer.read} are longer than"
                    f" --max_prompt_length {settings.max_prompt_length}"
                )
        summary = _summary(settings, writers)
        for split, result in made.items():
            result.summary = {name: summary[name] for name in (split, FIRST) if name in summary}
    return Outcome(
        summary=summary,
        title=f"veRL rows: {settings.local_dir}",
        wrote=f"{settings.local_dir}/train.parquet and validation.parquet",
        next=f"cobalt train --data {data} --data_dir {quoted(settings.local_dir)} --model {shlex.quote(model)} -o RUN",
    )


def _summary(settings: VerlRowsSettings, writers: dict[str, "_Writer"]) -> Summary:
    summary: Summary = {split: writer.summary() for split, writer in writers.items()}
    shared = len(writers["train"].problems & writers["validation"].problems)
    if shared:
        logger.warning(
            "%d problems are in %s and in %s: validation measures them after training on them",
            *(shared, settings.train_file, settings.validation_file),
        )
        summary["validation"]["problems also in train"] = shared
    return with_first(summary, *(writer.tally for writer in writers.values()))


@dataclass(slots=True)
class _Writer:
    """Writes the rows of one split, a row group at a time."""

    settings: VerlRowsSettings
    counter: PromptTokenCounter
    split: str
    parquet: Any
    read: int = 0
    rows: int = 0
    too_long: int = 0
    tally: Tally = field(default_factory=Tally)
    longest: int = 0
    problems: set[str] = field(default_factory=set)
    _waiting: list[_Prompt] = field(default_factory=list)
    _characters: int = 0

    def add(self, prompt: _Prompt) -> None:
        """Add one prompt."""
        self.read += 1
        self._waiting.append(prompt)
        self._characters += len(prompt.tests) + sum(len(message["content"]) for message in prompt.messages)
        if len(self._waiting) >= _ROWS_IN_A_GROUP or self._characters >= _CHARACTERS_IN_A_GROUP:
            self.flush()

    def flush(self) -> None:
        """Measure the waiting prompts, and write those that fit as one row group."""
        import pyarrow

        lengths = self.counter.count([prompt.messages for prompt in self._waiting])
        rows = []
        for prompt, length in zip(self._waiting, lengths, strict=True):
            if length > self.settings.max_prompt_length:
                self.tally.leave_out(f"over max_prompt_length ({self.split})", prompt.id)
                self.too_long += 1
                continue
            self.longest = max(self.longest, length)
            self.problems.add(prompt.problem_id)
            rows.append(_row(prompt, self.split, self.rows, self.settings.data_source))
            self.rows += 1
        self._waiting.clear()
        self._characters = 0
        if rows:
            self.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=self.parquet.schema))

    def summary(self) -> dict[str, int]:
        """The counts of this split."""
        return {
            "prompts read": self.read,
            "dropped: over max_prompt_length": self.too_long,
            "rows": self.rows,
            "problems": len(self.problems),
            "longest prompt, tokens": self.longest,
        }


def _row(prompt: _Prompt, split: str, index: int, data_source: str) -> dict[str, Any]:
    return {
        "data_source": data_source,
        "prompt": list(prompt.messages),
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": prompt.tests},
        "extra_info": {
            "index": index,
            "split": split,
            "id": prompt.id,
            "problem_id": prompt.problem_id,
            "sample": prompt.sample,
            "turn": prompt.turn,
            "prev_best_pass_rate": prompt.prev_best_pass_rate,
            "perturbed": prompt.perturbed,
            "difficulty": prompt.difficulty,
        }
        | ({} if prompt.episode is None else {"episode": prompt.episode}),
    }


def _schema(episodes: bool) -> Any:
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    fields = [
        ("index", pa.int64()),
        ("split", pa.string()),
        ("id", pa.string()),
        ("problem_id", pa.string()),
        ("sample", pa.int64()),
        ("turn", pa.int64()),
        ("prev_best_pass_rate", pa.float64()),
        ("perturbed", pa.bool_()),
        ("difficulty", pa.string()),
    ]
    if episodes:
        rules = [("enable_thinking", pa.bool_()), ("truncated_thinking", pa.string())]
        fields.append(
            ("episode", pa.struct([("public_tests", pa.list_(pa.int64())), ("prompts", pa.string()), *rules]))
        )
    extra = pa.struct(fields)
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", extra),
        ]
    )
