"""How several servers come by one sequence of decisions, though the one that makes them may die.

The first living server decides, and tells the others. Decisions are numbered; where parts lie on several servers, each
server keeps those that another may lack. When the one that decides has died, the next asks the others for what it
lacks, tells them what they lack, and decides from there on. What the dead one had told nobody was not decided.

Cost: a message to every server per decision, some 300 bytes; where parts lie on several servers these are kept until a
worker has read what came of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quorate.core.contracts import Message
from quorate.servers.decisions import Decision, Taken
from quorate.servers.holders import Holders


@dataclass(frozen=True)
class Told:
    """A decision as all servers carry it out."""

    index: int
    """From 1 on."""
    dead: tuple[int, ...]
    """The servers that had died when it was made: they answer for nothing."""
    stretch: int
    """Between which rests of all."""
    one: Decision


class Succession:
    """As one server knows it; `send(message, server)` sends, and `is_alone` where each server decides for itself."""

    def __init__(self, rank: int, holders: Holders, send: Callable[[Message, int], Any], *, is_alone: bool) -> None:
        self._rank, self._holders, self._send, self._is_alone = rank, holders, send, is_alone
        self.dead = set[int]()
        """Servers and workers."""
        self._newest = 0
        self._log = deque[Told]()
        self._awaited = set[int]()
        self._reached: dict[int, int] = {}
        """How far the others had come, as they said when they were asked."""

    @property
    def decides(self) -> bool:
        """Whether decisions are made here, now."""
        return self._is_alone or (self._holders.first(self.dead) == self._rank and not self._awaited)

    def tell(self, one: Decision, stretch: int) -> Told:
        """This server has made a decision."""
        dead = tuple(sorted(self.dead.intersection(self._holders.servers)))
        told = self._add(Told(self._newest + 1, dead, stretch, one))
        if not self._is_alone and len(self._holders.servers) > 1:
            header = {"kind": "decision", "told": _plain(told)}
            for server in self._others():
                self._send(Message(header=header), server)
        return told

    def died(self, gone: Iterable[int]) -> None:
        """These ranks have."""
        before = self._holders.first(self.dead)
        self.dead.update(gone)
        if self._awaited:
            self._hears_from(self.dead)
        if self._is_alone or self._holders.count == 1 or before == self._rank:
            return
        if self._holders.first(self.dead) == self._rank:
            self._awaited = set(self._others())
            for server in self._others():
                self._send(
                    Message(header={"kind": "succeeds", "index": self._newest, "dead": sorted(self.dead)}), server
                )

    def came(self, source: int, header: Mapping[str, Any]) -> list[Told]:
        """Server `source` has told decisions, or asks for them; those that are new here, in order."""
        if header["kind"] == "decision":
            return self._learn([header["told"]] if source == self._holders.first(self.dead) else [])
        if header["kind"] == "succeeds":
            self.died(header["dead"])
            known = [_plain(told) for told in self._log if told.index > header["index"]]
            self._send(Message(header={"kind": "decided", "index": self._newest, "told": known}), source)
            return []
        new = self._learn(header["told"])
        self._reached[source] = int(header["index"])
        self._hears_from({source})
        return new

    def has_read(self, index: int) -> None:
        """A worker has read what came of that decision: all servers know it."""
        while self._log and self._log[0].index <= index:
            self._log.popleft()

    def _hears_from(self, some: Collection[int]) -> None:
        """These are not awaited any more; behind the last one all are told what they lack."""
        self._awaited -= set(some)
        if not self._awaited:
            for server in self._others():
                for told in self._log:
                    if told.index > self._reached.get(server, self._newest):
                        self._send(Message(header={"kind": "decision", "told": _plain(told)}), server)

    def _others(self) -> list[int]:
        return [server for server in self._holders.living(self.dead) if server != self._rank]

    def _learn(self, some: Iterable[Mapping[str, Any]]) -> list[Told]:
        return [self._add(_of_plain(told)) for told in some if told["index"] == self._newest + 1]

    def _add(self, told: Told) -> Told:
        self._newest = told.index
        if self._holders.count > 1:
            self._log.append(told)
        return told


KINDS = ("decision", "succeeds", "decided")
"""What servers tell each other."""


def _plain(told: Told) -> dict[str, Any]:
    return asdict(told)


def _of_plain(told: Mapping[str, Any]) -> Told:
    one = told["one"]
    return Told(
        int(told["index"]),
        tuple(told["dead"]),
        int(told["stretch"]),
        Decision(
            version=int(one["version"]),
            taken=tuple(Taken(**taken) for taken in one["taken"]),
            rate=float(one["rate"]),
            dropped=_pairs(one["dropped"]),
            readers=_pairs(one["readers"]),
            options_of=(one["options_of"][0], one["options_of"][1]),
            is_last=bool(one["is_last"]),
            there=tuple(one["there"]),
            ended=tuple(one["ended"]),
            repeats=bool(one["repeats"]),
            joined=_pairs(one["joined"]),
        ),
    )


def _pairs(some: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in some)
