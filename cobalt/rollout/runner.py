"""Run one piece of work for each problem of a file, many at a time, and keep what is finished.

A problem on which a part of the system fails is written to `<output>.errors.jsonl` and left out of the result, so that
running the same command again retries it; the others go on. The loss of a service ends the run, and so does a defect of
the code: no problem is left out because of a defect. The caller defines the work.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from cobalt.problems.problem import ProblemId
from cobalt.stage.atomic import replacing
from cobalt.stage.errors import InfrastructureError, ServiceDown, UserError
from cobalt.stage.manifest import companion_path, open_manifest
from cobalt.stage.progress import track
from cobalt.stage.records import RecordFile, append_whole, encode_record, sort_records
from cobalt.stage.workers import work_on_all

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


def errors_path(output_file: Path) -> Path:
    """Where the failures of a run are written; the file exists only while there are any."""
    return companion_path(output_file, ".errors.jsonl")


def check_concurrency(concurrency: int) -> None:
    """Raise if concurrency is below 1, before anything else is done.

    Raises:
        UserError: `concurrency` is below 1.
    """
    if concurrency < 1:
        raise UserError(f"concurrency is {concurrency}: it must be 1 or more")


async def run_all(
    items: Iterable[Item],
    identify: Callable[[Item], ProblemId],
    work: Callable[[Item], Awaitable[Mapping[str, Any]]],
    output: RecordFile,
    *,
    arguments: Mapping[str, Any],
    described: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    inputs: Sequence[Path],
    concurrency: int,
    description: str | None,
    only: frozenset[ProblemId] | None = None,
    circumstances: Mapping[str, Any] | None = None,
) -> int:
    """Do `work` for every item that `output` does not hold yet.

    Args:
        items: All items of the run, in the order of the finished file. They are taken one at a time, when a worker is
            free, and not kept.
        identify: The id of an item.
        work: Makes the record of one item; the record's `id` must be the item's.
        output: The result file.
        arguments: What decides the records, for the manifest; see `open_manifest`.
        described: Returns what services add to the arguments. Called only if something is left to do, so that a
            finished result needs no services.
        inputs: The files the records are made from, for the manifest.
        concurrency: How many items are worked on at a time.
        description: Label of the progress bar, which counts problems; None: no bar.
        only: Ids of the items to work on; the result keeps the records of others that it has. None: all items.
        circumstances: See `open_manifest`.

    Returns:
        How many items failed.

    Raises:
        ServiceDown: a service is gone; what is finished is kept.
        UserError: the file was made with other arguments or data, holds ids that are not among the items, or cannot be
            written, or an item cannot be read; what is finished is kept.
    """
    order: list[ProblemId] = []
    failures: list[dict[str, Any]] = []

    def pending() -> Iterator[Item]:
        for item in items:
            order.append(identify(item))
            if order[-1] not in output.done and (only is None or order[-1] in only):
                yield item

    queue = pending()
    first = list(islice(queue, 1))
    if first and described is not None:
        arguments = {**arguments, **await described()}
    open_manifest(output.path, arguments, inputs, complete=not first, circumstances=circumstances)
    queue = chain(first, queue)
    if output.done:
        logger.info("%s holds %d problems; resuming", output.path, len(output.done))
    total = len(only | output.done) if only is not None else len(items) if isinstance(items, Sized) else None
    with track(
        total=total, initial=len(output.done), desc=description, unit="problem", disable=description is None
    ) as progress:

        async def work_and_keep(item: Item) -> None:
            try:
                record = await work(item)
            except ServiceDown:
                raise
            except InfrastructureError as error:
                logger.error("problem %r failed: %s", identify(item), error)
                failures.append({"id": identify(item), "error": f"{type(error).__name__}: {error}"})
            else:
                await append_whole(output, record)
            progress.update(1)

        try:
            await work_on_all(queue, work_and_keep, concurrency)
        finally:
            _write_failures(errors_path(output.path), failures)
    unknown = output.done - set(order)
    if unknown:
        raise UserError(
            f"{output.path} holds id {min(unknown, key=str)!r}, which the input does not have: name another output file"
        )
    if not failures:
        sort_records(output.path, order)
    else:
        logger.error(
            "%d of %d problems failed (%s); run the same command again to retry them",
            len(failures),
            total or len(order),
            errors_path(output.path),
        )
    return len(failures)


def _write_failures(path: Path, failures: Sequence[Mapping[str, Any]]) -> None:
    try:
        if failures:
            with replacing(path) as handle:
                handle.writelines(map(encode_record, failures))
        else:
            path.unlink(missing_ok=True)
    except (UserError, OSError) as error:  # it would hide the error that ended the run
        logger.error("the list of failures is not written: %s", error)
