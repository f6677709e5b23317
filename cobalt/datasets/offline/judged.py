"""Groups from programs that are judged already: results of this project, and APPS-like files.

| file | recognised by | programs |
|---|---|---|
| single-turn result | `exec_results` | the responses |
| evaluated multi-turn result | `raw_responses` or `conversations` | the first responses, or those of all turns |
| APPS-like problems | `human_solutions`, `generated_solutions` | accepted ones, and ones with a `result` |

A program of a result is accepted if it passes every test of its problem. Otherwise its status is that of the first test
that it fails, public tests before hidden ones. The programs of several files about the same problems are one pool.
Nothing is judged here.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cobalt.datasets.offline.apps import read_recorded_programs
from cobalt.datasets.offline.contrast import Candidate
from cobalt.datasets.offline.results import Dropped, JudgedRecord, read_multi_turn, read_single_turn
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.prompt_set import FILES
from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Outcome, stage, whole

logger = logging.getLogger(__name__)

OWN_PROMPTS = "from the conversations"
"""What a manifest has for the prompts where every file brings its own, so that no prompt set is used."""
_RULE = "give results of one input, each finished and in its order"


@stage
def judged_groups(settings: JudgedSettings) -> Outcome:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    The files are read twice, one record of each at a time: for the statements, and for the programs.

    Raises:
        UserError: bad input, settings that it does not read, or results that cannot be written or that other settings
            made.
    """
    prompts = load_prompts(settings.prompts)
    writers = _writer_names(settings.input_files)
    firsts = {path: _first_record(path) for path in settings.input_files}
    if settings.responses != "as_written" and all(
        _reader(first) is read_recorded_programs for first in firsts.values()
    ):
        raise UserError(
            f"{', '.join(map(str, firsts))}: responses is {settings.responses}, which is read only of results of"
            " models: leave --responses out"
        )
    for path, first in firsts.items():
        if settings.responses != "programs" and first.get("exec_results") is not None and not _has_prompt(first):
            _check_prompts(path, first, settings.prompts, prompts)
    own_prompts = settings.responses != "programs" and all(map(_has_prompt, firsts.values()))
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in ("responses", "rewards_from", "source")}
    if settings.rewards_from == "recorded":
        settings = _with_thinking(settings, firsts.values())
        arguments["require_thinking"] = settings.require_thinking
    if len(writers) > 1:
        arguments["writers"] = writers
    writer = GroupWriter(settings, settings.source)
    arguments = writer.arguments("judged", OWN_PROMPTS if own_prompts else prompts.digests) | arguments
    with whole(settings.results, arguments, [*settings.input_files, *settings.evaluation_files]) as result:
        splits = split_problems(settings, _statements(settings.input_files, own_prompts=own_prompts))
        writer.write(result, _problems(settings, prompts, writers, splits, writer), splits)
        result.summary = writer.summary()
    return groups_made(result.summary, "Judged programs", settings.output_dir)


def _first_record(path: Path) -> dict[str, Any]:
    for record in iterate_records(path):
        return record
    raise UserError(f"{path}: the file holds no record")


def _with_thinking(settings: JudgedSettings, firsts: Iterable[Mapping[str, Any]]) -> JudgedSettings:
    """The settings with `require_thinking` decided, which is logged."""
    if settings.require_thinking != "auto":
        return settings
    responses = [str(first.get(name)) for first in firsts for name in ("responses", "raw_responses")]
    thinks = any(tag in text for text in responses for tag in (OPEN, CLOSE))
    logger.info("rewards: --require_thinking %s, from the thinking tags of the first responses", str(thinks).lower())
    return replace(settings, require_thinking="true" if thinks else "false")


def _has_prompt(record: Mapping[str, Any]) -> bool:
    """Whether a record brings the prompt that the model saw."""
    return record.get("conversations") is not None


def _check_prompts(path: Path, first: Mapping[str, Any], asked: str, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than those that the groups would have.

    Where nothing says which prompts they answer, the user is warned.
    """
    if first.get("hidden_verdicts") is not None:
        raise UserError(
            f"{path} is a result of eval_single_turn.py, which does not say which prompts its responses answer: give"
            " the single-turn result that it was made from, or take the programs alone by --responses programs"
        )
    recorded = (recorded_arguments(path) or {}).get("prompts")
    # A record has the instruction as it was sent, but not the system message.
    names = ("system.jinja",) if first.get("instruction") is not None else FILES
    if recorded is None:
        logger.warning("%s: no manifest beside it says whether its prompts were those of the set %r", path, asked)
    elif not isinstance(recorded, dict) or any(recorded.get(name) != prompts.digests[name] for name in names):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {asked!r}: give that one by --prompts, or"
            " take the programs alone by --responses programs"
        )


def _statements(paths: Sequence[Path], *, own_prompts: bool) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups; `own_prompts`: each has its own prompt."""
    statements: dict[str, str] = {}
    for records in _read_together(paths):
        for path, own in zip(paths, records, strict=True):
            if own_prompts and not _has_prompt(own):
                raise UserError(
                    f"{path}: record {own['id']!r} has no 'conversations', which the first one has: give a file for"
                    " each kind of result"
                )
        record = records[0]
        identifier = str(record["id"])
        statement = record.get("instruction") if record.get("question") is None else record["question"]
        if not isinstance(statement, str):
            raise UserError(f"{paths[0]}: record {record['id']!r}: field 'question' is missing or not a string")
        if identifier in statements:
            raise UserError(
                f"{paths[0]}: id {identifier} is that of two problems, as a number and as a string: rename one"
            )
        statements[identifier] = statement
    return statements


def _read_together(paths: Sequence[Path]) -> Iterator[list[dict[str, Any]]]:
    """The records of each problem, one of each file: finished results have the order of their common input."""
    for records in zip_longest(*map(iterate_records, paths)):
        first = next(record for record in records if record is not None)
        for path, record in zip(paths, records, strict=True):
            if record is None:
                raise UserError(f"{path}: it lacks record {first['id']!r}, which another of the files has: {_RULE}")
            if record["id"] != first["id"]:
                raise UserError(f"{path}: record {record['id']!r} stands where {paths[0]} has {first['id']!r}: {_RULE}")
        yield list(records)


def _writer_names(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its own, with as many folders before it as tell the files apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UserError(f"{', '.join(map(str, paths))}: a file is given twice: name each file once")
    length = 1
    while len({own[-length:] for own in parts}) < len(parts):
        length += 1
    return ["/".join(own[-length:]) for own in parts]


def _problems(
    settings: JudgedSettings, prompts: PromptSet, names: Sequence[str], splits: Mapping[str, str], counts: GroupWriter
) -> Iterator[JudgedProblem]:
    for records in _read_together(settings.input_files):
        reads: list[JudgedRecord] = []
        for path, record in zip(settings.input_files, records, strict=True):
            try:
                reads.append(_reader(record)(record, settings, prompts))
                _check_agreement(reads[0], reads[-1], settings.input_files[0])
            except UserError as error:
                raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        identifier = str(records[0]["id"])
        number = sum(len(read.programs) for read in reads)
        counts.problems[READ] += 1
        counts.programs[READ] += number
        if identifier not in splits:
            counts.problems.leave_out(EVALUATED, identifier)
            counts.programs[EVALUATED] += number
            continue
        candidates: list[Candidate] = []
        for name, read in zip(names, reads, strict=True):
            for program in read.programs:
                if isinstance(program, Dropped):
                    counts.programs.leave_out(program.reason, f"{identifier}/{program.origin}")
                elif len(names) == 1:
                    candidates.append(program)
                else:
                    candidates.append(replace(program, origin=f"{name}:{program.origin}"))
        problem = next((read.problem for read in reads if read.problem is not None), None)
        yield JudgedProblem(identifier, reads[0].messages, candidates, problem)


def _check_agreement(first: JudgedRecord, other: JudgedRecord, path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    if first.statement != other.statement:
        raise UserError(f"its statement (field 'question') is not that in {path}: give results of one input")
    if first.tests is not None and other.tests is not None and first.tests != other.tests:
        raise UserError(f"its tests (field 'test_cases') are not those in {path}: give results of one input")
    if list(first.messages) != list(other.messages):
        raise UserError(f"its prompt is not that in {path}: give results of one prompt set, or --responses programs")


def _reader(record: Mapping[str, Any]) -> Callable[[Mapping[str, Any], JudgedSettings, PromptSet], JudgedRecord]:
    """What reads a record of this kind."""
    if record.get("raw_responses") is not None or _has_prompt(record):
        return read_multi_turn
    return read_recorded_programs if record.get("exec_results") is None else read_single_turn
