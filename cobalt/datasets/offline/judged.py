"""Groups from programs that are judged already: results of this project, and APPS-like files.

| file | recognised by | programs |
|---|---|---|
| single-turn result | `exec_results` | the responses |
| evaluated multi-turn result | `raw_responses` or `conversations` | the first responses, or those of all turns |
| APPS-like problems | `human_solutions`, `generated_solutions` | accepted ones, and ones with a `result` |

A program of a result is accepted if it passes every test of its problem. Otherwise its status is that of the first test
that it fails, public tests before hidden ones. The programs of several files about the same problems are one pool.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cobalt.datasets.offline.contrast import Candidate
from cobalt.datasets.offline.results import Dropped, JudgedRecord, has_prompt, read_judged
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writing import EVALUATED, READ, GroupWriter, JudgedProblem, groups_made, split_problems
from cobalt.episode import PromptSet, load_prompts
from cobalt.episode.prompt_set import FILES
from cobalt.episode.thinking import CLOSE, OPEN
from cobalt.problems.problem import Problem
from cobalt.stage.errors import UserError
from cobalt.stage.manifest import recorded_arguments
from cobalt.stage.records import iterate_records
from cobalt.stage.run import Outcome, stage, whole

logger = logging.getLogger(__name__)

OWN_PROMPTS = "from the conversations"
"""What a manifest has for the prompts where every file brings its own, so that no prompt set is used."""

_PROBLEM_FIELDS = (
    "id", "difficulty", "question", "instruction", "test_cases", "public_test_cases", "hidden_test_cases", "source",
)  # fmt: skip


@stage
def judged_groups(settings: JudgedSettings) -> Outcome:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    files = dict(zip(settings.input_files, _writer_names(settings.input_files), strict=True))
    firsts = {path: next(iterate_records(path), {}) for path in files}
    if settings.responses != "programs":
        for path, first in firsts.items():
            if first.get("exec_results") is not None and not has_prompt(first):
                _check_prompts(path, first, settings.prompts, prompts)
    own_prompts = settings.responses != "programs" and all(map(has_prompt, firsts.values()))
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in ("responses", "rewards_from", "source")}
    if settings.rewards_from == "recorded":
        if settings.require_thinking == "auto":
            settings = replace(settings, require_thinking="true" if _thinks(firsts.values()) else "false")
        arguments["require_thinking"] = settings.require_thinking
    if len(files) > 1:
        arguments["writers"] = list(files.values())
    writer = GroupWriter(settings, settings.source)
    arguments = writer.arguments("judged", OWN_PROMPTS if own_prompts else prompts.digests) | arguments
    with whole(settings.results, arguments, [*files, *settings.evaluation_files]) as result:
        splits = split_problems(settings, _statements(settings.input_files[0]))
        writer.write(result, _problems(settings, prompts, files, splits, writer), splits)
        result.summary = writer.summary()
    return groups_made(result.summary, "Judged programs", settings.output_dir)


def _thinks(firsts: Iterable[Mapping[str, Any]]) -> bool:
    responses = [str(first.get(name)) for first in firsts for name in ("responses", "raw_responses")]
    return any(tag in text for text in responses for tag in (OPEN, CLOSE))


def _check_prompts(path: Path, first: Mapping[str, Any], asked: str, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than the groups have; warn if none is known.

    Of records that have the instruction as it was sent, only the system message is compared.
    """
    recorded = (recorded_arguments(path) or {}).get("prompts")
    names = ("system.jinja",) if first.get("instruction") is not None else FILES
    if recorded is None:
        logger.warning("%s: no manifest beside it says whether its prompts were those of the set %r", path, asked)
    elif not isinstance(recorded, dict) or any(recorded.get(name) != prompts.digests[name] for name in names):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {asked!r}: give that one by --prompts, or"
            " take the programs alone by --responses programs"
        )


def _statements(path: Path) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups."""
    statements: dict[str, str] = {}
    for record in iterate_records(path):
        identifier = str(record["id"])
        statement = record.get("instruction") if record.get("question") is None else record["question"]
        if not isinstance(statement, str):
            raise UserError(f"{path}: record {record['id']!r}: field 'question' is missing or not a string")
        if identifier in statements:
            raise UserError(f"{path}: id {identifier} is that of two problems, as a number and as a string: rename one")
        statements[identifier] = statement
    if not statements:
        raise UserError(f"{path}: the file holds no record")
    return statements


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
    settings: JudgedSettings, prompts: PromptSet, files: Mapping[Path, str], splits: Mapping[str, str], to: GroupWriter
) -> Iterator[JudgedProblem]:
    """The problems with the programs of all files, which are read side by side, one record of each at a time."""
    for records in zip_longest(*map(iterate_records, files)):
        ids = ["no record" if record is None else f"record {record['id']!r}" for record in records]
        if len(set(ids)) > 1:
            raise UserError(
                f"{', '.join(map(str, files))} have {', '.join(ids)} side by side: give results of one input"
            )
        reads: list[JudgedRecord] = []
        for path, record in zip(files, records, strict=True):
            try:
                reads.append(read_judged(record, settings, prompts))
                _check_agreement(reads[0], reads[-1], settings.input_files[0])
            except UserError as error:
                raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        identifier = str(records[0]["id"])
        number = sum(len(read.programs) for read in reads)
        to.problems[READ] += 1
        to.programs[READ] += number
        if identifier not in splits:
            to.problems.leave_out(EVALUATED, identifier)
            to.programs[EVALUATED] += number
            continue
        candidates: list[Candidate] = []
        for name, read in zip(files.values(), reads, strict=True):
            for program in read.programs:
                if isinstance(program, Dropped):
                    to.programs.leave_out(program.reason, f"{identifier}/{program.origin}")
                else:
                    origin = program.origin if len(files) == 1 else f"{name}:{program.origin}"
                    candidates.append(replace(program, origin=origin))
        problem = next((read.problem for read in reads if read.problem is not None), None)
        yield JudgedProblem(identifier, reads[0].messages, candidates, problem and _without_results(problem))


def _check_agreement(first: JudgedRecord, other: JudgedRecord, path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    if first.statement != other.statement:
        raise UserError(f"its statement (field 'question') is not that in {path}: give results of one input")
    if first.problem is not None and other.problem is not None and first.problem.tests != other.problem.tests:
        raise UserError(f"its tests (field 'test_cases') are not those in {path}: give results of one input")
    if list(first.messages) != list(other.messages):
        raise UserError(f"its prompt is not that in {path}: give results of one prompt set, or --responses programs")


def _without_results(problem: Problem) -> dict[str, Any]:
    return {name: problem.record[name] for name in _PROBLEM_FIELDS if name in problem.record}
