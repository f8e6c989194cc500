"""What one server has done: how stale gradients were and what they counted, how long it was busy, bytes in and out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from quorate.core.contracts import Message
from quorate.records.served_rows import Served
from quorate.servers.decisions import Taken

EVERY_SECONDS = 5.0
"""At most so long until it is told; all is told when all rest."""


@dataclass
class _Total:
    """Since the beginning."""

    busy: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    steps: int = 0
    taken: Counter[int] = field(default_factory=Counter)
    """Gradients, by staleness."""
    counted: Counter[int] = field(default_factory=Counter)
    """Millionths of an equal share, by staleness."""
    dropped: Counter[int] = field(default_factory=Counter)
    by_rank: Counter[int] = field(default_factory=Counter)
    """Gradients in steps."""
    dropped_by_rank: Counter[int] = field(default_factory=Counter)

    def copy(self) -> _Total:
        """As it is now: each counter by itself, since the server goes on meanwhile."""
        return replace(
            self,
            taken=self.taken.copy(),
            counted=self.counted.copy(),
            dropped=self.dropped.copy(),
            by_rank=self.by_rank.copy(),
            dropped_by_rank=self.dropped_by_rank.copy(),
        )


_MILLION = 1_000_000


class ServerBook:
    """Written in the server's task, read in the training thread: what is read may lack the end of a step, which then
    comes with the next row, and nothing is lost.

    Cost: some 5 µs a gradient; a row, some 100 µs, every `EVERY_SECONDS` and at every rest.
    """

    def __init__(self, rank: int, optimizer: str, *, decides: Callable[[], bool]) -> None:
        """`decides` says whether this server does, now."""
        self._rank, self._optimizer, self._decides = rank, optimizer, decides
        self._now, self._told, self._since = _Total(), _Total(), 0.0

    # -- in the server's task

    def handled(self, source: int, message: Message, seconds: float) -> None:
        """A message has come, and was handled in so many seconds."""
        self._now.busy += seconds
        if source != self._rank:
            self._now.bytes_in += _bytes_of(message)

    def answered(self, reader: int, message: Message) -> None:
        """Parameters went out."""
        if reader != self._rank:
            self._now.bytes_out += _bytes_of(message)

    def stepped(self, taken: Sequence[Taken], rate: float, everyone: int) -> None:
        """A step of these gradients was made, at the learning rate times `rate`, where `everyone` counts."""
        total = self._now
        total.steps += 1
        if self._decides():
            for one in taken:
                total.taken[one.staleness] += 1
                total.counted[one.staleness] += round(one.factor * rate * everyone * _MILLION)
                total.by_rank[one.source] += 1

    def dropped(self, gradients: Iterable[tuple[int, int]]) -> None:
        """Gradients count for nothing: rank and staleness of each."""
        if self._decides():
            for rank, staleness in gradients:
                self._now.dropped[staleness] += 1
                self._now.dropped_by_rank[rank] += 1

    # -- in the training thread

    def set_out(self, now: float) -> None:
        """All set out, at that time of the clock."""
        self._since = now

    def is_due(self, now: float) -> bool:
        """Whether it is time to tell."""
        return now - self._since >= EVERY_SECONDS

    def row(self, now: float) -> Served | None:
        """What was done since the row before; None where that is nothing."""
        new, old, since = self._now.copy(), self._told, self._since
        self._told, self._since = new, now
        if new == old:
            return None
        return Served(
            time=now,
            optimizer=self._optimizer,
            seconds=now - since,
            busy=round(new.busy - old.busy, 6),
            bytes_in=new.bytes_in - old.bytes_in,
            bytes_out=new.bytes_out - old.bytes_out,
            steps=new.steps - old.steps,
            **self._decided(new, old) if self._decides() else {},
        )

    def _decided(self, new: _Total, old: _Total) -> dict[str, Any]:
        taken, counted, dropped = new.taken - old.taken, new.counted - old.counted, new.dropped - old.dropped
        ours, theirs = new.by_rank - old.by_rank, new.dropped_by_rank - old.dropped_by_rank
        ages = sorted(taken.keys() | counted.keys())
        return {
            "taken": [(age, taken[age]) for age in ages],
            "counted": [counted[age] / _MILLION for age in ages],
            "dropped": [(age, dropped[age]) for age in sorted(dropped)],
            "given": [(rank, ours[rank], theirs[rank]) for rank in sorted(ours.keys() | theirs.keys())],
        }


def _bytes_of(message: Message) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in message.tensors)
