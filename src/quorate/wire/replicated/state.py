"""The state of a replicated board after its writes, in order; the same on every worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quorate.core.fields import Fields
from quorate.core.members import Members
from quorate.wire.members import GONE, members_in

LEFT, NOTHING = "left the board", "nothing"
"""The last write of a worker, and the first entry of a leader."""
_WRITER = ("by", "number", "done", "do")
_KEYS = {
    "set": (*_WRITER, "key", "value"),
    "add": (*_WRITER, "key", "amount"),
    "swap": (*_WRITER, "key", "expected", "value"),
    "delete": (*_WRITER, "key"),
    LEFT: _WRITER,
    NOTHING: ("do", "by", "number", "done"),
}


@dataclass(frozen=True, slots=True)
class Write(Fields):
    """A write on the board: the key and the values that it has depend on what to `do`. Values are in latin-1."""

    by: int
    number: int
    done: int  # all writes of its worker below this number are applied
    do: str
    key: str = ""
    value: str = ""
    expected: str | None = None
    amount: int = 0

    def header(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _KEYS[self.do]}


Entry = tuple[int, Write]
"""The term in which a write was ordered, and the write."""


class BoardState:
    """Values, counters, and the voters on further writes."""

    def __init__(self, size: int, values: Mapping[str, bytes]) -> None:
        self.values, self.counters = dict(values), dict[str, int]()
        self._size = size
        self._left: set[int] = set()
        self._done: dict[int, set[int]] = {}
        self.members, self.voters = self._voters()
        """The workers, and those that vote: the living that have not left the board."""

    def apply(self, write: Write) -> Any:
        """Apply a write and return its result; None, without any change, where it was applied before."""
        done = self._done.setdefault(write.by, set())
        if write.number in done or write.number < write.done:
            return None
        done.add(write.number)
        self._done[write.by] = {number for number in done if number >= write.done}
        result = self._change(write)
        if write.do in (LEFT, "delete") or write.key == GONE:
            self.members, self.voters = self._voters()
        return result

    def has_applied(self, write: Write) -> bool:
        """Whether `write` was applied before."""
        return write.number in self._done.get(write.by, ())

    def has_left(self, rank: int) -> bool:
        """Whether `rank` has left the board."""
        return rank in self._left

    def voters_after(self, writes: Iterable[Write]) -> list[frozenset[int]]:
        """Return the voters now, and after each of `writes` that would change them."""
        written, left = self.values.get(GONE), set(self._left)
        voters = [self.voters]
        for write in writes:
            if write.do == LEFT:
                left.add(write.by)
            elif write.do in ("set", "swap") and write.key == GONE:
                written = write.value.encode("latin-1")
            else:
                continue
            voters.append(_voters(self._size, written, left)[1])
        return voters

    def _change(self, write: Write) -> Any:
        key = write.key
        if write.do == "set":
            self.values[key] = write.value.encode("latin-1")
        elif write.do == "add":
            self.counters[key] = self.counters.get(key, 0) + write.amount
            return self.counters[key]
        elif write.do == "swap":
            expected = write.expected
            if self.values.get(key) != (None if expected is None else expected.encode("latin-1")):
                return False
            self.values[key] = write.value.encode("latin-1")
            return True
        elif write.do == "delete":
            for written in (self.values, self.counters):
                for deleted in [each for each in written if each.startswith(key)]:
                    del written[deleted]
        elif write.do == LEFT:
            self._left.add(write.by)
        return None

    def _voters(self) -> tuple[Members, frozenset[int]]:
        return _voters(self._size, self.values.get(GONE), self._left)

    # -- for newcomers

    def as_json(self) -> dict[str, Any]:
        """Return the full state as JSON."""
        return {
            "size": self._size,
            "values": {key: value.decode("latin-1") for key, value in self.values.items()},
            "counters": self.counters,
            "left": sorted(self._left),
            "done": [[rank, sorted(done)] for rank, done in self._done.items()],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> BoardState:
        """Return the state in `content`, made by `as_json`."""
        state = cls(int(content["size"]), {key: value.encode("latin-1") for key, value in content["values"].items()})
        state.counters, state._left = dict(content["counters"]), set(content["left"])
        state._done = {int(rank): set(done) for rank, done in content["done"]}
        state.members, state.voters = state._voters()
        return state


def _voters(size: int, written: bytes | None, left: set[int]) -> tuple[Members, frozenset[int]]:
    members = members_in(written, size)
    return members, frozenset(members.alive) - left


def is_majority(ranks: Iterable[int], voters: frozenset[int]) -> bool:
    """Whether `ranks` are more than half of the voters; of two halves it is the one with the lowest rank."""
    count = 2 * len(voters.intersection(ranks))
    if not voters:
        return True
    return count > len(voters) or (count == len(voters) and min(voters) in set(ranks))
