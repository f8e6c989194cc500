"""Rows of sparse gradients beside contributions to rounds.

A worker sends the rows of a contribution to every other worker before it contributes, with a number. The number travels
in the payload of the contribution, so that a round says whose rows belong to it, however late they are. Every worker
adds them in order of rank and number. Rows of contributions that no round takes are discarded when they are too old for
the next one.

Cost: per contribution, with P workers, P - 1 times the rows that were touched. Memory holds the rows of all workers
that rounds may still take. Where training continues after deaths, it also holds those of the rounds in the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quorate.buckets.rows import Rows, RowsOfWorker, as_gradient, read, rows_in, scaled_message, sum_of, written
from quorate.core.contracts import Wire
from quorate.core.device_copies import values_of
from quorate.core.errors import ConfigurationError
from quorate.quorums.held_rows import HeldRows
from quorate.replica.replica import Replica
from quorate.rounds.log import Round
from quorate.rounds.terms import Agreed
from quorate.wire.survivors import DeathTolerance

Look = Callable[[Sequence[Tensor]], None]
"""Looks at the numbers of rows that are contributed."""


class RowsInRounds:
    """The rows of one worker's sparse tables in rounds; belongs to the training thread."""

    def __init__(self, replica: Replica, wire: Wire, agreed: Agreed, tolerance: DeathTolerance) -> None:
        if replica.momentum is not None and replica.momentum.kind != "sgd":
            raise ConfigurationError(
                f"the gradient of {replica.all_names[len(replica.trained)]} is sparse, and {replica.plain.__name__} "
                "has moments of dense gradients on each worker; give the table to an optimizer of its own, SparseAdam "
                "or Adagrad"
            )
        self._replica, self._agreed, self._number = replica, agreed, 0
        self.held = HeldRows(wire.channel("rows"), tolerance)
        self._tolerance = tolerance
        self._limit = 0 if agreed.late == "drop" else agreed.max_staleness
        self._sums = list[Rows | None]()

    def contribute(self, version: int, scale: float, look: Look) -> int:
        """Send `scale` times the rows in `.grad` to all workers, and return their number.

        They were computed after round `version`; `look` gets the numbers of the rows.
        """
        tables, names = self._tables, self._replica.all_names[len(self._replica.trained) :]
        every = rows_in(tables, names)
        look([rows.values for rows in every if rows is not None])
        return self._send(written(every, [rows is not None for rows in every], scale, tables).cpu(), version)

    def _send(self, rows: Tensor, version: int) -> int:
        self._number += 1
        self.held.send(self._number, version, rows)
        return self._number

    @property
    def _tables(self) -> Sequence[Tensor]:
        return self._replica.sparse_tables

    def take(self, formed: Round) -> None:
        """Add the rows of a round, each by its staleness. Raises as `Work.wait`."""
        messages = list[RowsOfWorker]()
        for rank, words in sorted(formed.measures.items()):
            stalenesses = [staleness for staleness, count in formed.contributors.get(rank, ()) for _ in range(count)]
            for word, staleness in zip(words, stalenesses, strict=True):
                rows, weight = self.held.take(rank, word["rows"], formed.number), self._agreed.weight_of(staleness)
                if rows is not None:
                    message = read(rows, self._tables)
                    messages.append(message if weight == 1.0 else replace(message, scale=message.scale * weight))
        rounds_kept = 0 if self._tolerance.survivors is None else self._agreed.log_rounds
        self.held.forget(formed.number - self._limit, formed.number - rounds_kept)
        self._sums = [sum_of(messages, place, table) for place, table in enumerate(self._tables)]

    @property
    def norm(self) -> float:
        """The norm of the newest sum. A GPU is waited for, once."""
        norms = [torch.linalg.vector_norm(rows.values) for rows in self._sums if rows is not None]
        return math.hypot(*values_of(norms))

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
        return [scaled_message(self.held.own(word["rows"]), factor) for word in words]

    def restore(self, kept: Sequence[Tensor], factor: float, version: int) -> list[dict[str, Any]]:
        """Send `factor` times these messages again, and return the payloads of their contributions."""
        numbers = [self._send(scaled_message(x, factor), version) for x in kept]
        return [{"signed": [], "measured": None, "rows": number} for number in numbers]
