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

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cobalt.conversation import PromptSet, load_prompts
from cobalt.conversation.prompt_set import FILES
from cobalt.datasets.offline.apps import read_recorded_programs
from cobalt.datasets.offline.contrast import Candidate
from cobalt.datasets.offline.judged_record import JudgedRecord
from cobalt.datasets.offline.results import read_multi_turn, read_single_turn
from cobalt.datasets.offline.settings import JudgedSettings
from cobalt.datasets.offline.writers import read_together, writer_names
from cobalt.datasets.offline.writing import (
    EVALUATED,
    READ,
    Counts,
    JudgedProblem,
    Summary,
    close_results,
    open_results,
    split_problems,
    write_groups,
)
from cobalt.errors import UserError
from cobalt.files import check_files
from cobalt.manifest import recorded_arguments
from cobalt.records import iterate_records


def convert_judged(settings: JudgedSettings) -> Summary:
    """Make the groups of files of judged programs, and count what became of problems and programs.

    The files are read twice, one record of each at a time: for the statements, and for the programs.

    Raises:
        UserError: bad input, or results that cannot be written or that other settings made.
    """
    prompts = load_prompts(settings.prompts)
    check_files(settings.input_files, [])
    writers = writer_names(settings.input_files)
    for path in settings.input_files:
        _check_prompts(path, settings, prompts)
    arguments: dict[str, Any] = {name: getattr(settings, name) for name in ("responses", "rewards_from", "source")}
    if len(writers) > 1:
        arguments["writers"] = writers
    counter = open_results(settings, "judged", settings.input_files, prompts, arguments)
    splits = split_problems(settings, _statements(settings.input_files))
    counts = Counts()
    problems = _problems(settings, prompts, writers, splits, counts)
    write_groups(settings, settings.source, problems, splits, counter, counts)
    return close_results(settings, counts)


def _check_prompts(path: Path, settings: JudgedSettings, prompts: PromptSet) -> None:
    """Raise if the responses of a single-turn result answer other prompts than those that the groups would have."""
    if settings.responses == "programs":
        return
    first = next(iterate_records(path), {})
    if "exec_results" not in first or "conversations" in first:
        return  # programs without prompts, or with those that the model saw
    if "hidden_verdicts" in first:
        raise UserError(
            f"{path} is a result of eval_single_turn.py, which does not say which prompts its responses answer: give"
            " the single-turn result that it was made from, or take the programs alone by --responses programs"
        )
    recorded = (recorded_arguments(path) or {}).get("prompts")
    if recorded is None:
        return
    # A record has the instruction as it was sent, but not the system message.
    names = ("system.jinja",) if "instruction" in first else FILES
    if not isinstance(recorded, dict) or any(recorded.get(name) != prompts.digests[name] for name in names):
        raise UserError(
            f"{path}: its responses were made with another prompt set than {settings.prompts!r}: give"
            " that one by --prompts, or take the programs alone by --responses programs"
        )


def _statements(paths: Sequence[Path]) -> dict[str, str]:
    """The statement of each problem by its id, which is a string in groups; the first file's."""
    statements: dict[str, str] = {}
    for record, *_ in read_together(paths):
        identifier, statement = str(record["id"]), _statement(record)
        if not isinstance(statement, str):
            raise UserError(f"{paths[0]}: record {record['id']!r}: field 'question' is missing or not a string")
        if identifier in statements:
            raise UserError(
                f"{paths[0]}: id {identifier} is that of two problems, as a number and as a string: rename one"
            )
        statements[identifier] = statement
    if not statements:
        raise UserError(f"{paths[0]}: the file holds no record")
    return statements


def _statement(record: Mapping[str, Any]) -> Any:
    return record.get("question", record.get("instruction"))


def _problems(
    settings: JudgedSettings, prompts: PromptSet, writers: Sequence[str], splits: Mapping[str, str], counts: Counts
) -> Iterator[JudgedProblem]:
    for records in read_together(settings.input_files):
        reads = []
        for path, record in zip(settings.input_files, records, strict=True):
            try:
                reads.append(_READERS[_kind(record)](record, settings, prompts))
                _check_agreement(reads[0], reads[-1], settings.input_files[0])
            except UserError as error:
                raise UserError(f"{path}: record {record['id']!r}: {error}") from None
        identifier = str(records[0]["id"])
        number = sum(len(read.programs) for read in reads)
        counts.problems[READ] += 1
        counts.programs[READ] += number
        if identifier not in splits:
            counts.problems[EVALUATED] += 1
            counts.programs[EVALUATED] += number
            continue
        candidates = []
        for writer, read in zip(writers, reads, strict=True):
            for program in read.programs:
                if program.dropped is not None:
                    counts.programs[program.dropped] += 1
                    continue
                reward = settings.rewards.of(program.status) if program.reward is None else program.reward
                origin = program.origin if len(writers) == 1 else f"{writer}:{program.origin}"
                candidates.append(
                    Candidate(program.code, program.status, reward, origin, program.text, program.context)
                )
        problem = next((read.problem for read in reads if read.problem is not None), None)
        yield JudgedProblem(identifier, reads[0].messages, candidates, problem)


def _check_agreement(first: JudgedRecord, other: JudgedRecord, path: Path) -> None:
    """Raise if a record says something else of its problem than that of the first file, which is at `path`."""
    if first.statement != other.statement:
        raise UserError(f"its statement (field 'question') is not that in {path}: give results of one input")
    if first.tests is not None and other.tests is not None and first.tests != other.tests:
        raise UserError(f"its tests (field 'test_cases') are not those in {path}: give results of one input")
    if list(first.messages) != list(other.messages):
        raise UserError(
            f"its prompt is not that in {path}: give results that were made with one prompt set, or take the programs"
            " alone by --responses programs"
        )


def _kind(record: Mapping[str, Any]) -> str:
    if "raw_responses" in record or "conversations" in record:
        return "multi_turn"
    return "single_turn" if "exec_results" in record else "apps"


_READERS: Mapping[str, Callable[[Mapping[str, Any], JudgedSettings, PromptSet], JudgedRecord]] = {
    "single_turn": read_single_turn,
    "multi_turn": read_multi_turn,
    "apps": read_recorded_programs,
}
