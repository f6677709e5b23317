"""Rows on their way into veRL's queue: those that come within a short time go together.

A row by itself costs three messages to two other processes, whatever its size.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import transfer_queue as tq
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

LONGEST_WAIT_SECONDS = 0.5
"""How long a row waits for others; the progress of a step is seen that much later."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a sample, as veRL's trainer takes it.

    Attributes:
        key: Names the prompt, the sample and the row.
        fields: Tensors and other values; the same names in all rows of a partition.
        tag: What the replay buffer knows of the row.
    """

    key: str
    fields: Mapping[str, Any]
    tag: Mapping[str, Any]


@dataclass(slots=True)
class _Batch:
    """Rows of one partition that go together."""

    rows: list[Row] = field(default_factory=list)
    sent: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Outbox:
    """The rows of one process; for one event loop. `begin` and `put` come in pairs, one for each sample."""

    def __init__(self) -> None:
        self._samples = 0
        self._batches: dict[str, _Batch] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Count a sample as under way: its rows are worth waiting for."""
        self._samples += 1

    async def put(self, partition: str, rows: Sequence[Row]) -> None:
        """Send a sample's rows; returns when they are in the queue.

        Args:
            partition: "train" or "val".
            rows: Empty if the sample failed.

        Raises:
            Exception: what the queue raises.
        """
        self._samples -= 1
        batch = self._batches.setdefault(partition, _Batch()) if rows else None
        if batch is not None:
            batch.rows += rows
        if self._samples == 0:
            self._send()
        elif self._timer is None and self._batches:
            self._timer = asyncio.get_running_loop().call_later(LONGEST_WAIT_SECONDS, self._send)
        if batch is not None:
            await asyncio.shield(batch.sent)  # a sample that is cancelled leaves the others'

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batches, self._batches = self._batches, {}
        for partition, batch in batches.items():
            task = asyncio.create_task(self._sent(partition, batch))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    @staticmethod
    async def _sent(partition: str, batch: _Batch) -> None:
        try:
            names = {frozenset(row.fields) for row in batch.rows}
            if len(names) > 1:  # a name that the first row lacks would be left out without a word
                raise ValueError(f"the rows of a batch have different fields: {sorted(map(sorted, names))}")
            await tq.async_kv_batch_put(
                keys=[row.key for row in batch.rows],
                partition_id=partition,
                fields=list_of_dict_to_tensordict([dict(row.fields) for row in batch.rows]),
                tags=[dict(row.tag) for row in batch.rows],
            )
        except Exception as error:  # noqa: BLE001 - each sample that waits gets it
            batch.sent.set_exception(error)
        else:
            batch.sent.set_result(None)
