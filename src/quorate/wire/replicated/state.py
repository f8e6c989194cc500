"""What the writes on a replicated board come to, in order; the same on every worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from quorate.wire.failure import GONE, gone_in, joined_in

LEFT = "left the board"
"""What a worker does last."""
Write = Mapping[str, Any]
"""`by` whom, its `number` there, below which all are done (`done`), what it does (`do`), and with what; plain JSON."""


class BoardState:
    """Values, counters, and who votes on further writes."""

    def __init__(self, size: int, values: Mapping[str, bytes]) -> None:
        self.values, self.counters = dict(values), dict[str, int]()
        self._size = size
        self._left: set[int] = set()
        self._done: dict[int, set[int]] = {}
        self.voters, self.gone = self._voters()
        """Who decides together, and who was taken for dead."""

    def apply(self, write: Write) -> Any:
        """What the write comes to; None, and nothing changes, where it was applied before."""
        by = int(write["by"])
        done = self._done.setdefault(by, set())
        if write["number"] in done or write["number"] < write["done"]:
            return None
        done.add(write["number"])
        self._done[by] = {number for number in done if number >= write["done"]}
        found = self._change(write)
        if write["do"] in (LEFT, "delete") or write.get("key") == GONE:
            self.voters, self.gone = self._voters()
        return found

    def has_applied(self, write: Write) -> bool:
        """Whether it was applied before."""
        return write["number"] in self._done.get(int(write["by"]), ())

    def has_left(self, rank: int) -> bool:
        """Whether it has said so."""
        return rank in self._left

    def voters_after(self, writes: Iterable[Write]) -> list[frozenset[int]]:
        """Who votes now, and after each of the writes that changes that, were they applied."""
        written, left = self.values.get(GONE), set(self._left)
        found = [self.voters]
        for write in writes:
            if write["do"] == LEFT:
                left.add(int(write["by"]))
            elif write["do"] in ("set", "swap") and write["key"] == GONE:
                written = write["value"].encode("latin-1")
            else:
                continue
            found.append(_voters(self._size, written, left)[0])
        return found

    def _change(self, write: Write) -> Any:
        do, key = write["do"], write.get("key", "")
        if do == "set":
            self.values[key] = write["value"].encode("latin-1")
        elif do == "add":
            self.counters[key] = self.counters.get(key, 0) + int(write["amount"])
            return self.counters[key]
        elif do == "swap":
            expected = write["expected"]
            if self.values.get(key) != (None if expected is None else expected.encode("latin-1")):
                return False
            self.values[key] = write["value"].encode("latin-1")
            return True
        elif do == "delete":
            for written in (self.values, self.counters):
                for one in [one for one in written if one.startswith(key)]:
                    del written[one]
        elif do == LEFT:
            self._left.add(int(write["by"]))
        return None

    def _voters(self) -> tuple[frozenset[int], frozenset[int]]:
        return _voters(self._size, self.values.get(GONE), self._left)

    # -- for one that comes later

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "size": self._size,
            "values": {key: value.decode("latin-1") for key, value in self.values.items()},
            "counters": self.counters,
            "left": sorted(self._left),
            "done": [[rank, sorted(done)] for rank, done in self._done.items()],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> BoardState:
        """The same."""
        found = cls(int(told["size"]), {key: value.encode("latin-1") for key, value in told["values"].items()})
        found.counters, found._left = dict(told["counters"]), set(told["left"])
        found._done = {int(rank): set(done) for rank, done in told["done"]}
        found.voters, found.gone = found._voters()
        return found


def _voters(size: int, written: bytes | None, left: set[int]) -> tuple[frozenset[int], frozenset[int]]:
    gone = frozenset(one.rank for one in gone_in(written))
    return frozenset({*range(size), *joined_in(written)} - gone - left), gone


def is_majority(some: Iterable[int], voters: frozenset[int]) -> bool:
    """Whether these are more than half of the voters; of two halves it is the one with the lowest rank."""
    count = 2 * len(voters.intersection(some))
    if not voters:
        return True
    return count > len(voters) or (count == len(voters) and min(voters) in set(some))
