"""One sequence of decisions for several servers, which goes on when the server that decides has died.

The first living server decides, and sends its decisions to the others. Decisions are numbered; where parts lie on
several servers, each server keeps those that another may lack. When the server that decides has died, the next asks the
others for the decisions that it lacks, sends them those that they lack, and decides from there on. A decision that the
dead server had sent to nobody does not count.

Cost: a message to every server per decision, some 300 bytes. Where parts lie on several servers, decisions are kept
until a worker has read their result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from quorate.core.contracts import Message
from quorate.core.fields import Fields, Header
from quorate.servers.order import Decision, Taken


@dataclass(frozen=True, slots=True)
class NumberedDecision(Fields):
    """A decision with its place in the sequence."""

    index: int
    """From 1 on."""
    dead: tuple[int, ...]
    """The servers that were dead when it was made, and so answer for no part."""
    era: int
    decision: Decision

    def header(self) -> dict[str, Any]:
        return {"index": self.index, "dead": self.dead, "stretch": self.era, "one": asdict(self.decision)}

    @classmethod
    def read(cls, header: Header, **others: Any) -> NumberedDecision:
        return cls(header["index"], tuple(header["dead"]), header["stretch"], _decision_of(header["one"]))


@dataclass(frozen=True, slots=True)
class Announcement(Fields):
    """The message with a new decision, from the server that decides."""

    numbered: NumberedDecision

    def header(self) -> dict[str, Any]:
        return {"kind": "decision", "told": self.numbered.header()}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Announcement:
        return cls(NumberedDecision.read(header["told"]))


@dataclass(frozen=True, slots=True)
class Succeeds(Fields):
    """The question of the next server to decide: the decisions after `index`."""

    kind: Literal["succeeds"] = field(init=False, default="succeeds")
    index: int  # its newest decision
    dead: Sequence[int]


@dataclass(frozen=True, slots=True)
class Decided(Fields):
    """The answer to `Succeeds`."""

    index: int  # the newest decision of the answering server
    newer: Sequence[NumberedDecision]

    def header(self) -> dict[str, Any]:
        return {"kind": "decided", "index": self.index, "told": [numbered.header() for numbered in self.newer]}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Decided:
        return cls(header["index"], [NumberedDecision.read(entry) for entry in header["told"]])


class Succession:
    """The sequence of decisions as one server knows it; with `is_alone` each server decides for itself."""

    def __init__(self, rank: int, holders: Holders, send: Callable[[Message, int], Any], *, is_alone: bool) -> None:
        self._rank, self._holders, self._send, self._is_alone = rank, holders, send, is_alone
        self.dead = set[int]()
        """Workers whose death a message has told, perhaps of another server: each decision has those known by then."""
        self._newest = 0
        self._log = deque[NumberedDecision]()
        self._awaited = set[int]()
        """Servers whose newest decisions this one has asked for, before it decides."""
        self._newest_of: dict[int, int] = {}
        """By server, the newest decision that it had when it was asked."""

    @property
    def decides(self) -> bool:
        """Whether decisions are made here, now."""
        return self._is_alone or (self._holders.first(self.dead) == self._rank and not self._awaited)

    def announce(self, decision: Decision, era: int) -> NumberedDecision:
        """Number a decision of this server, and send it to the others."""
        dead = tuple(sorted(self.dead.intersection(self._holders.servers)))
        numbered = self._add(NumberedDecision(self._newest + 1, dead, era, decision))
        if not self._is_alone and len(self._holders.servers) > 1:
            header = Announcement(numbered).header()
            for server in self._others():
                self._send(Message(header=header), server)
        return numbered

    def died(self, ranks: Iterable[int]) -> None:
        """Note that these ranks have died; where this server is the next to decide, it asks the others."""
        before = self._holders.first(self.dead)
        self.dead.update(ranks)
        if self._awaited:
            self._hears_from(self.dead)
        if self._is_alone or self._holders.count == 1 or before == self._rank:
            return
        if self._holders.first(self.dead) == self._rank:
            self._awaited = set(self._others())
            for server in self._others():
                self._send(Message(header=Succeeds(self._newest, sorted(self.dead)).header()), server)

    def receive(self, source: int, header: Header) -> list[NumberedDecision]:
        """Handle a message of server `source`: decisions, or a request for them. Return the new decisions, in order."""
        if header["kind"] == "decision":
            is_first = source == self._holders.first(self.dead)
            return self._learn([Announcement.read(header).numbered] if is_first else [])
        if header["kind"] == "succeeds":
            question = Succeeds.read(header)
            self.died(question.dead)
            newer = [numbered for numbered in self._log if numbered.index > question.index]
            self._send(Message(header=Decided(self._newest, newer).header()), source)
            return []
        answer = Decided.read(header)
        new = self._learn(answer.newer)
        self._newest_of[source] = answer.index
        self._hears_from({source})
        return new

    def has_read(self, index: int) -> None:
        """Forget decisions up to `index`: a worker has read their result, so all servers know them."""
        while self._log and self._log[0].index <= index:
            self._log.popleft()

    def _hears_from(self, servers: Collection[int]) -> None:
        """Await these servers no more; after the last one, send every server the decisions that it lacks."""
        self._awaited -= set(servers)
        if not self._awaited:
            for server in self._others():
                for numbered in self._log:
                    if numbered.index > self._newest_of.get(server, self._newest):
                        self._send(Message(header=Announcement(numbered).header()), server)

    def _others(self) -> list[int]:
        return [server for server in self._holders.living(self.dead) if server != self._rank]

    def _learn(self, decisions: Iterable[NumberedDecision]) -> list[NumberedDecision]:
        return [self._add(numbered) for numbered in decisions if numbered.index == self._newest + 1]

    def _add(self, numbered: NumberedDecision) -> NumberedDecision:
        self._newest = numbered.index
        if self._holders.count > 1:
            self._log.append(numbered)
        return numbered


KINDS = ("decision", "succeeds", "decided")
"""The kinds of messages between servers."""


def _decision_of(entry: Mapping[str, Any]) -> Decision:
    tuples = {name: tuple(entry[name]) for name in ("options_of", "there", "ended")}
    pairs = {name: tuple(map(tuple, entry[name])) for name in ("dropped", "readers", "joined")}
    taken = tuple(Taken(**gradient) for gradient in entry["taken"])
    return Decision(**{**entry, **tuples, **pairs, "taken": taken})


@dataclass(frozen=True)
class Holders:
    """The holders of as many parts as there are `servers`: part i lies on server i and the next ones, `count` in all.

    The first living holder of a part answers for it, and the first living server decides.
    """

    servers: tuple[int, ...]
    count: int = 1

    def of(self, part: int) -> tuple[int, ...]:
        """Return the servers that hold a part, the first in line first."""
        return tuple(self.servers[(part + further) % len(self.servers)] for further in range(self.count))

    def parts_of(self, server: int) -> tuple[int, ...]:
        """Return the parts that a server holds."""
        return tuple(part for part in range(len(self.servers)) if server in self.of(part))

    def speaks_for(self, server: int, dead: Collection[int]) -> tuple[int, ...]:
        """Return the parts of which `server` is the first living holder."""
        return tuple(part for part in self.parts_of(server) if self._first(self.of(part), dead) == server)

    def lost(self, dead: Collection[int]) -> tuple[int, ...]:
        """Return the parts of which all holders are dead."""
        return tuple(part for part in range(len(self.servers)) if self._first(self.of(part), dead) is None)

    def living(self, dead: Collection[int]) -> tuple[int, ...]:
        """Return the servers that are not dead."""
        return tuple(server for server in self.servers if server not in dead)

    def first(self, dead: Collection[int]) -> int | None:
        """Return the server that decides: the first living one."""
        return self._first(self.servers, dead)

    @staticmethod
    def _first(servers: Collection[int], dead: Collection[int]) -> int | None:
        return next((server for server in servers if server not in dead), None)
