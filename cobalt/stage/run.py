"""Run a stage. A stage is a function of its settings, a pydantic dataclass, that returns an `Outcome`.

The fields of the settings are the command's flags and the Python API at once. There are two kinds of result:

- `Each` makes one record for each item, many at a time, and keeps what is finished: a run that was stopped goes on.
- `whole` makes one file, or several that appear together: a run that was stopped leaves none and starts over.

Both write the manifest (`cobalt.stage.manifest`) and refuse a result that other settings made.
"""

import contextlib
import dataclasses
import functools
import logging
import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any, ParamSpec, TypeVar, get_type_hints

import tyro

from cobalt.stage.atomic import replacing
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.files import check_files, check_result_path
from cobalt.stage.manifest import companion_path, open_manifest, read_summary, recorded_arguments, write_summary
from cobalt.stage.progress import track
from cobalt.stage.records import RecordFile, RecordId, append_whole, encode_record
from cobalt.stage.tally import Summary
from cobalt.stage.workers import work_on_all

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

READ, WRITTEN = "read", "written"
"""Marks in the annotation of a field that names a file: the stage reads it, or writes it."""

Input = Annotated[Path, tyro.conf.arg(aliases=["-i"]), READ]
Output = Annotated[Path, tyro.conf.arg(aliases=["-o"]), WRITTEN]


def Flag(name: str | None, *aliases: str, text: str | None = None) -> Any:  # noqa: N802 - stands in annotations
    """The annotation of a field whose flag has another name, or several; `text` stands for the field's docstring."""
    return tyro.conf.arg(name=name, aliases=list(aliases), help=text)


Concurrency = Annotated[int, Flag(None, text="Problems worked on at a time.")]
OptionalInput = Annotated[Path | None, tyro.conf.arg(aliases=["-i"]), READ]
OptionalFile = Annotated[Path | None, READ]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Report of what a stage did. The command prints it in this order."""

    summary: Summary = field(default_factory=dict)
    """Counts by group and name; also in the manifest of the result. Printed as a table."""
    title: str = ""
    """The title of that table."""
    tables: Sequence[Any] = ()
    """Further tables and lines."""
    wrote: str = ""
    """The files that the stage wrote, and a score where there is one."""
    next: str | None = None
    """The command that comes next."""
    failed: int = 0
    """Number of items that failed. Above 0 the command prints no more than the tables, and exits with 1."""


def made(summary: Summary, what: str, result: Path, following: str | None = None, failed: int = 0) -> Outcome:
    """The outcome of a stage with one result, a file or a folder: its counts, what they are of, and what comes next."""
    return Outcome(summary=summary, title=f"{what}: {result}", wrote=str(result), next=following, failed=failed)


def problems_made(summary: Summary, data_set: str, problems: Path, prompts: str = "paper") -> Outcome:
    """The outcome of a stage that made a file of problems, with the words of a prompt set."""
    words = "" if prompts == "paper" else f" --prompts {shlex.quote(prompts)}"
    return made(summary, data_set, problems, f"cobalt sample -i {quoted(problems)} -o single_turn.jsonl{words}")


def quoted(path: Path) -> str:
    """A path as a shell takes it."""
    return shlex.quote(str(path))


def marked(settings: Any, mark: str) -> list[Path]:
    """The files in fields of settings that carry a mark, `READ` or `WRITTEN`."""
    hints = get_type_hints(type(settings), include_extras=True)
    paths: list[Path] = []
    for one in dataclasses.fields(settings):
        value = getattr(settings, one.name)
        if mark in getattr(hints[one.name], "__metadata__", ()):
            paths += value if isinstance(value, tuple) else [value] if value is not None else []
    return paths


def stage(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Make a function of settings a stage: the files that these name are checked before it begins.

    The settings are its first argument. Those with a folder for results name the files in it by a property `results`.
    """

    @functools.wraps(function)
    def checked(*arguments: Parameters.args, **more: Parameters.kwargs) -> Result:
        settings = arguments[0]
        check_files(marked(settings, READ), [*marked(settings, WRITTEN), *getattr(settings, "results", ())])
        return function(*arguments, **more)

    return checked


class Whole:
    """Results that appear together when the block of `whole` ends; the block fills `summary` for their manifests."""

    def __init__(self, files: Mapping[Path, IO[bytes]]) -> None:
        self.summary: dict[str, Any] = {}
        self._files = files

    @property
    def file(self) -> IO[bytes]:
        """The only result, open for writing."""
        [file] = self._files.values()
        return file

    def write(self, records: Iterable[Mapping[str, Any]], path: Path | None = None) -> None:
        """Append records to a result; None: to the only one."""
        self.write_lines(map(encode_record, records), path)

    def write_lines(self, lines: Iterable[bytes], path: Path | None = None) -> None:
        """Append encoded records to a result; None: to the only one."""
        (self.file if path is None else self._files[path]).writelines(lines)


@contextlib.contextmanager
def whole(
    results: Path | Sequence[Path],
    arguments: Mapping[str, Any],
    inputs: Sequence[Path] = (),
    *,
    replaces: bool = False,
) -> Iterator[Whole]:
    """Write results in one piece. If the block raises or the process is stopped, they stay as they were, or missing.

    Results of the same arguments and inputs are written again, those of others refused.

    Args:
        results: The files.
        arguments: As for `open_manifest`, with the name of the stage as `stage`.
        inputs: The files that the records are made from.
        replaces: Replace results of the same stage, whatever their arguments and inputs.

    Raises:
        UserError: a result may not be replaced, cannot be written, or is being written by another process.
    """
    paths = [results] if isinstance(results, Path) else list(results)
    for path in paths:
        check_result_path(path)
        is_filled = path.exists() and path.stat().st_size > 0
        if replaces and is_filled and (recorded_arguments(path) or {}).get("stage") != arguments["stage"]:
            raise UserError(f"{path} exists and is not a result of this command: name another output file")
    with ExitStack() as stack:
        files = {path: stack.enter_context(replacing(path)) for path in paths}
        for path in () if replaces else paths:  # after the lock: a refused writer leaves another's manifest as it is
            open_manifest(path, arguments, inputs)
        content = Whole(files)
        yield content
        for file in files.values():
            file.flush()  # what a full disk refuses shows while the earlier results are still there
        for path in paths:
            if replaces:  # a manifest is compared with that of a result, and this one replaces it
                path.unlink(missing_ok=True)
                open_manifest(path, arguments, inputs)
            if content.summary:
                write_summary(path, content.summary)


def errors_path(output_file: Path) -> Path:
    """File that the failures of a run are written to; it exists only while there are any."""
    return companion_path(output_file, ".errors.jsonl")


def check_ranges(settings: object, *ranges: tuple[str, bool, str]) -> None:
    """Raise UserError for the first setting out of its range; a range has its name, whether it holds, and its words."""
    for name, holds, rule in ranges:
        if not holds:
            raise UserError(f"{name} is {getattr(settings, name)}: it must be {rule}")


class Each(RecordFile):
    """A result with one record for each item; what is finished is kept. Use it as a context manager.

    More `arguments` may be added before `make`.
    """

    def __init__(
        self,
        path: Path,
        arguments: Mapping[str, Any],
        inputs: Sequence[Path] = (),
        *,
        services: Mapping[str, Callable[[], Awaitable[Mapping[str, Any]]]] | None = None,
    ) -> None:
        """Open or create a result; raises as `RecordFile`.

        Args:
            path: The result.
            arguments: As for `whole`.
            inputs: As for `whole`.
            services: By name, what asks an engine or a judge to describe itself, which is added to the arguments. They
                are asked only if something is left to do, so that a finished result needs no services.
        """
        super().__init__(path)
        self.arguments = dict(arguments)
        self._inputs, self._services = inputs, services or {}

    def summary(self) -> Summary | None:
        """The summary of a result that is finished, so that it need not be made again; None: it is not.

        Raises:
            UserError: the result was made with other arguments or data.
        """
        summary = read_summary(self.path)
        if summary is not None and self.done:
            open_manifest(self.path, self.arguments, self._inputs, complete=True)
            return summary
        return None

    async def make(
        self,
        items: Iterable[Item],
        identify: Callable[[Item], RecordId],
        work: Callable[[Item], Awaitable[Mapping[str, Any]]],
        *,
        concurrency: int,
        description: str | None = None,
        only: frozenset[RecordId] | None = None,
    ) -> int:
        """Do `work` for every item that the result does not hold yet, `concurrency` at a time.

        An item on which a part of the system fails is written to `<result>.errors.jsonl` and left out of the result, so
        that running the same command again retries it; the others go on. The loss of a service ends the run, and so
        does a defect of the code: nothing is left out because of a defect.

        Args:
            items: All items, in the order of the finished file, taken when a worker is free.
            identify: The id of an item.
            work: Makes the record of one item, with the item's id as `id`.
            concurrency: Number of items that are worked on at a time.
            description: Label of the progress bar; None: no bar.
            only: Ids of the items to work on; the result keeps the records of others that it has. None: all items.

        Returns:
            Number of items that failed.

        Raises:
            ServiceDown: a service is gone.
            UserError: the file was made with other arguments or data, holds ids that are not among the items, or cannot
                be written, or an item cannot be read.
        """
        order: list[RecordId] = []
        failures: list[dict[str, Any]] = []

        def not_done() -> Iterator[Item]:
            for item in items:
                order.append(identify(item))
                if order[-1] not in self.done and (only is None or order[-1] in only):
                    yield item

        pending = not_done()
        first = list(islice(pending, 1))
        services = self._services if first else {}
        described = {name: dict(await describe()) for name, describe in services.items()}
        arguments = self.arguments | described
        open_manifest(self.path, arguments, self._inputs, complete=not first)
        if self.done:
            logger.info("%s holds %d problems; resuming", self.path, len(self.done))
        total = len(only | self.done) if only is not None else len(items) if isinstance(items, Sized) else None
        options = {"total": total, "initial": len(self.done), "desc": description, "unit": "problem"}
        with track(**options, disable=description is None) as progress:

            async def work_and_keep(item: Item) -> None:
                try:
                    await append_whole(self, await work(item))
                except ServiceDown:
                    raise
                except InfrastructureError as error:
                    logger.error("problem %r failed: %s", identify(item), error)
                    failures.append({"id": identify(item), "error": f"{type(error).__name__}: {error}"})
                progress.update(1)

            try:
                await work_on_all(chain(first, pending), work_and_keep, concurrency)
            finally:
                _write_failures(errors_path(self.path), failures)
        self._end(order, len(failures), total or len(order))
        return len(failures)

    def _end(self, order: Sequence[RecordId], failed: int, total: int) -> None:
        if unknown := self.done - set(order):
            example = min(unknown, key=str)
            raise UserError(f"{self.path} holds id {example!r}, which is not in the input: name another output file")
        if failed:
            words = "%d of %d problems failed (%s); run the same command again to retry them"
            logger.error(words, failed, total, errors_path(self.path))
        else:
            self.sort(order)


def _write_failures(path: Path, failures: Sequence[Mapping[str, Any]]) -> None:
    try:
        if failures:
            with replacing(path) as handle:
                handle.writelines(map(encode_record, failures))
        else:
            path.unlink(missing_ok=True)
    except (UserError, OSError) as error:  # it would hide the error that ended the run
        logger.error("the list of failures is not written: %s", error)
