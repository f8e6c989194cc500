"""Rows of sparse gradients beside contributions to rounds.

A worker sends the rows of a contribution to every other worker before it contributes, with a number. The number travels
in the payload of the contribution, so that a round says whose rows belong to it, however late they are. Every worker
adds them in order of rank and number. Rows of contributions that no round takes are discarded with the next ones.

Cost: per contribution, with P workers, P - 1 times the rows that were touched. Memory holds the rows of contributions
that rounds have not taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, read, rows_of, scaled_message, sum_of, written
from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError
from quorate.replica.replica import Replica
from quorate.rounds.log import Round
from quorate.rounds.terms import Agreed

_TAG = "rows"


class RowsInRounds:
    """The rows of one worker's sparse tables in rounds; belongs to the training thread."""

    def __init__(self, replica: Replica, wire: Wire, agreed: Agreed) -> None:
        if replica.momentum is not None and replica.momentum.kind != "sgd":
            raise ConfigurationError(
                f"the gradient of {replica.all_names[len(replica.trained)]} is sparse, and {replica.plain.__name__} "
                "has moments of dense gradients on each worker; give the table to an optimizer of its own, SparseAdam "
                "or Adagrad"
            )
        self._replica, self._wire, self._agreed = replica, wire.channel("rows"), agreed
        self._number = 0
        self._own: dict[int, Tensor] = {}
        """The messages of this worker's contributions, by number, until a round has taken them."""
        self._newest: dict[int, tuple[int, Tensor]] = {}
        """By rank, the newest message that was received, and its number."""
        self._sums = list[Rows | None]()

    def contribute(self, scale: float, look: Callable[[Sequence[Tensor]], None]) -> int:
        """Send `scale` times the rows in `.grad` to all workers, and return their number; `look` gets their numbers."""
        tables, names = self._tables, self._replica.all_names[len(self._replica.trained) :]
        rows = [None if p.grad is None else rows_of(p.grad, name) for p, name in zip(tables, names, strict=True)]
        look([own.values for own in rows if own is not None])
        return self._send(written(rows, [own is not None for own in rows], scale, tables).cpu())

    def _send(self, message: Tensor) -> int:
        self._number += 1
        self._own[self._number] = message
        for rank in range(self._wire.size):
            if rank != self._wire.rank:
                self._wire.send(Message((message,), {"number": self._number}, shared=True), rank, _TAG)
        return self._number

    @property
    def _tables(self) -> Sequence[Tensor]:
        return self._replica.sparse_tables

    def take(self, formed: Round) -> float:
        """Add the rows of a round, each by its staleness, and return the norm of the sum. Raises as `Work.wait`."""
        messages = list[RowsOfWorker]()
        for rank, words in sorted(formed.measures.items()):
            stalenesses = [staleness for staleness, count in formed.contributors.get(rank, ()) for _ in range(count)]
            for word, staleness in zip(words, stalenesses, strict=True):
                message = read(self._message(rank, word["rows"]), self._tables)
                weight = self._agreed.weight_of(staleness)
                messages.append(message if weight == 1.0 else replace(message, scale=message.scale * weight))
        self._sums = [sum_of(messages, place, table) for place, table in enumerate(self._tables)]
        norms = [float(torch.linalg.vector_norm(rows.values)) for rows in self._sums if rows is not None]
        return math.hypot(*norms)

    def _message(self, rank: int, number: int) -> Tensor:
        if rank == self._wire.rank:
            message = self._own[number]
            self._own = {other: x for other, x in self._own.items() if other > number}
            return message
        newest, message = self._newest.get(rank, (0, torch.empty(0)))
        while newest < number:  # rows that no round has taken come before
            _, received = self._wire.receive(rank, _TAG).wait()
            newest, message = received.header["number"], received.tensors[0]
        self._newest[rank] = newest, message
        return message

    def write(self, factor: float) -> None:
        """Make `factor` times the newest sum the gradients of tables in the next update by a round."""
        for rows in self._sums:
            if rows is not None:
                rows.values.mul_(factor)
        self._replica.row_gradients = [
            None if rows is None else as_gradient(rows, table)
            for rows, table in zip(self._sums, self._tables, strict=True)
        ]

    # -- checkpoints

    def kept(self, words: Sequence[Mapping[str, Any]], factor: float) -> list[Tensor]:
        """Return `factor` times the messages of contributions with these payloads, which no round has taken."""
        return [scaled_message(self._own[word["rows"]], factor) for word in words]

    def restore(self, kept: Sequence[Tensor], factor: float) -> list[dict[str, Any]]:
        """Send `factor` times these messages again, and return the payloads of their contributions."""
        return [{"signed": [], "measured": None, "rows": self._send(scaled_message(x, factor))} for x in kept]
