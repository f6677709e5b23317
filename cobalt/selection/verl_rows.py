"""Parquet files that veRL 0.9.1 trains on, from problems (single turn) or from contextual prompts (multi turn).

A row has the five columns that veRL's `RLHFDataset` and reward managers read and nothing else: `data_source`,
`prompt` (messages), `ability`, `reward_model` (`style`, `ground_truth`: all tests as a JSON string) and `extra_info`
(`index`, `split`, `id`, `problem_id`, `sample`, `turn`, `prev_best_pass_rate`, `perturbed`, `difficulty`; if asked for,
`episode`, by which a rollout of several turns goes on from the prompt). Prompts are
measured as veRL measures them; over-long ones are left out and counted, because veRL would stop at them or cut
them. Contextual prompts of the authors are read, too. Nothing here selects trajectories or judges programs.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cobalt.episode import Message, TruncatedThinking, check_wording, first_messages, load_prompts
from cobalt.episode.chat_template import TemplateThinking, template_arguments
from cobalt.episode.prompt_set import BUILT_IN, DEFAULT
from cobalt.episode.token_count import PromptTokenCounter
from cobalt.problems.problem import Problem, TestSuite
from cobalt.stage.atomic import locked_folder
from cobalt.stage.errors import UserError
from cobalt.stage.files import check_files
from cobalt.stage.manifest import open_manifest, write_summary
from cobalt.stage.records import iterate_records
from cobalt.stage.rows import read_rows
from cobalt.stage.tally import FIRST, Summary, Tally, with_first

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")

# A row group is read as a whole: small enough to stream, large enough to be worth a read.
_ROWS_IN_A_GROUP = 1000
_CHARACTERS_IN_A_GROUP = 32 << 20


@dataclass(frozen=True, slots=True)
class VerlRowsSettings:
    """Settings of one conversion.

    Attributes:
        train_file, validation_file: Both are needed, because veRL wants both. Problems that are in both are counted,
            because what the policy scores on them says little about others.
        local_dir: Folder for train.parquet and validation.parquet.
        model_name: The policy, by whose chat template prompts are measured: Hugging Face id or folder.
        chat_template_thinking: The template's thinking switch, the same as in veRL's
            `data.apply_chat_template_kwargs`.
        max_prompt_length: veRL's `data.max_prompt_length`, in tokens.
        data_source: veRL's name for where the rows are from.
    """

    train_file: Path
    validation_file: Path
    local_dir: Path
    model_name: str
    max_prompt_length: int
    data_source: str = "taco_cobalt"
    chat_template_thinking: TemplateThinking = "default"

    def __post_init__(self) -> None:
        if self.max_prompt_length < 1:
            raise UserError(f"max_prompt_length is {self.max_prompt_length}: it must be 1 or more")

    @property
    def results(self) -> dict[str, Path]:
        """The file of each split."""
        return {split: self.local_dir / f"{split}.parquet" for split in SPLITS}


@dataclass(frozen=True, slots=True)
class EpisodeRules:
    """How the history of an episode shows a response, for rollouts of several turns (`cobalt.episode.episode`).

    Attributes:
        enable_thinking: Whether later turns see the answers alone (`cobalt.episode.history_text`).
        truncated_thinking: What later turns see of a response cut off inside its thinking; see there.
    """

    enable_thinking: bool = False
    truncated_thinking: TruncatedThinking = "keep"


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


def convert_single_turn(
    settings: VerlRowsSettings, prompts: str | None = None, episodes: EpisodeRules | None = None
) -> Summary:
    """One row for each problem, its first message worded by `prompts` unless it has an `instruction`.

    With `episodes` a row also has `extra_info.episode`, from which an agent loop of several turns makes the problem's
    episode: `public_tests`, the places of the public tests among all tests; `prompts`, the prompt set of the feedback;
    and the rules' `enable_thinking` and `truncated_thinking`.

    Args:
        settings: Files, policy and limits.
        prompts: Prompt set, by name or folder. None: `paper`, and problems may have an `instruction` in other words.
        episodes: Rules of the episodes that begin with the rows; None for rows of one turn.

    Raises:
        UserError: bad input, an `instruction` in other words than those of `prompts`, or a file without a usable
            prompt. With `episodes` also a problem that has no public tests, or one that is not among all its tests.
    """
    prompt_set = load_prompts(prompts)

    def episode(problem: Problem) -> dict[str, Any] | None:
        if episodes is None:
            return None
        if not problem.public_tests:
            raise UserError("it has no public tests (field 'public_test_cases'), and feedback comes from them")
        try:
            places = problem.tests.places_of(problem.public_tests)
        except UserError as error:
            raise UserError(f"field 'public_test_cases': {error}") from None
        # veRL's processes run elsewhere, so a folder needs its whole path.
        name = prompts or DEFAULT
        words = name if (BUILT_IN / name).is_dir() else str(Path(name).resolve())
        return {"public_tests": places, "prompts": words} | asdict(episodes)

    def read(path: Path) -> Iterator[_Prompt]:
        for record in iterate_records(path):
            try:
                problem = Problem.parse(record)
                begins = episode(problem)
                if prompts is not None:
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
    if episodes is not None:
        decided["episodes"] = asdict(episodes)
    return _convert(settings, decided, read, episodes=episodes is not None)


def convert_multi_turn(settings: VerlRowsSettings) -> Summary:
    """One row for each contextual prompt of process_multi_turn_taco.py, this project's or the authors'.

    Raises:
        UserError: bad input, or a file without a usable prompt.
    """
    return _convert(settings, {"stage": "verl_multi_turn"}, _read_contextual)


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
    *,
    episodes: bool = False,
) -> Summary:
    sources = dict(zip(SPLITS, (settings.train_file, settings.validation_file), strict=True))
    check_files(sources.values(), settings.results.values())
    if settings.train_file.samefile(settings.validation_file):
        raise UserError(
            f"{settings.train_file} and {settings.validation_file} are the same file: give validation one of its own"
        )
    for path in sources.values():
        next(read(path), None)  # report a file of another kind before loading a tokenizer, which takes seconds
    counter = PromptTokenCounter(settings.model_name, template_arguments(settings.chat_template_thinking))
    with locked_folder(settings.local_dir):
        return _write(settings, arguments, read, counter, sources, _schema(episodes))


def _write(
    settings: VerlRowsSettings,
    arguments: dict[str, Any],
    read: Callable[[Path], Iterator[_Prompt]],
    counter: PromptTokenCounter,
    sources: dict[str, Path],
    schema: Any,
) -> Summary:
    """Write both splits with their manifests."""
    results = settings.results
    for split in SPLITS:
        options = {
            "split": split,
            "tokenizer": counter.fingerprint,
            "max_prompt_length": settings.max_prompt_length,
            "data_source": settings.data_source,
        }
        open_manifest(results[split], arguments | options, [sources[split]])
    try:
        summary = _write_parts(settings, counter, read, sources, results, schema)
        for split in SPLITS:
            _part(results[split]).replace(results[split])
            write_summary(results[split], {name: summary[name] for name in (split, FIRST) if name in summary})
    finally:
        for result in results.values():
            _part(result).unlink(missing_ok=True)
    return summary


def _write_parts(
    settings: VerlRowsSettings,
    counter: PromptTokenCounter,
    read: Callable[[Path], Iterator[_Prompt]],
    sources: dict[str, Path],
    results: dict[str, Path],
    schema: Any,
) -> Summary:
    """Write every split to a temporary file next to its result; results appear only when both are complete."""
    summary: Summary = {}
    trained: set[str] = set()
    tallies = []
    for split in SPLITS:
        with _Writer(settings, counter, split, results[split], schema) as writer:
            for prompt in read(sources[split]):
                writer.add(prompt)
            writer.flush()
        if not writer.rows:
            raise UserError(
                f"{sources[split]}: no prompt is left: {writer.too_long} of {writer.read} are longer than"
                f" --max_prompt_length {settings.max_prompt_length}"
            )
        summary[split] = writer.summary()
        tallies.append(writer.tally)
        if split == "train":
            trained = writer.problems
    shared = len(trained & writer.problems)
    if shared:
        logger.warning(
            "%d problems are in %s and in %s: validation measures them after training on them",
            *(shared, settings.train_file, settings.validation_file),
        )
        summary["validation"]["problems also in train"] = shared
    return with_first(summary, *tallies)


def _part(result: Path) -> Path:
    return result.with_name(result.name + ".part")


@dataclass(slots=True)
class _Writer:
    """Writes the rows of one split, a row group at a time; a context manager, which closes the file."""

    settings: VerlRowsSettings
    counter: PromptTokenCounter
    split: str
    result: Path
    schema: Any
    read: int = 0
    rows: int = 0
    too_long: int = 0
    tally: Tally = field(default_factory=Tally)
    longest: int = 0
    problems: set[str] = field(default_factory=set)
    _waiting: list[_Prompt] = field(default_factory=list)
    _characters: int = 0
    _parquet: Any = None

    def __enter__(self) -> "_Writer":
        from pyarrow import parquet

        try:
            self._parquet = parquet.ParquetWriter(_part(self.result), self.schema, compression="zstd")
        except OSError as error:
            raise UserError(f"cannot write {self.result}: {error.strerror}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._parquet.close()

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
            try:
                self._parquet.write_table(pyarrow.Table.from_pylist(rows, schema=self.schema))
            except OSError as error:
                raise UserError(f"cannot write {self.result}: {error.strerror or error}") from None

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
