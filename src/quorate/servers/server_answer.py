"""What a worker waits for that has asked servers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed
from quorate.servers.holders import Holders
from quorate.servers.server_task import READ


@dataclass(frozen=True)
class Asked:
    """What answers are about, for sentences, and what to do where one does not come."""

    holders: Holders
    whole: str
    some: str
    """What was on servers: all of it, or a part."""
    check: Callable[[], None]
    """Raises what this worker's own server has ended with."""

    def lost_with(self, dead: Collection[int]) -> str | None:
        """What nobody has any more; None: nothing."""
        if not self.holders.lost(dead):
            return None
        return f"{self.whole if len(self.holders.servers) == 1 else self.some} on it alone"


class ServerAnswer:
    """What `server` answers next."""

    def __init__(self, wire: Wire, server: int, asked: Asked, tag: str = READ) -> None:
        self._wire, self._server, self._asked = wire, server, asked
        self._work = wire.receive(server, tag)

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> Message | None:
        """None where it has died, and others have what it had. Raises `PeerFailed` where nobody has."""
        try:
            message = self._work.wait(timeout)[1]
        except PeerFailed as error:
            if self._server not in self._wire.dead:
                raise
            lost = self._asked.lost_with(self._wire.dead)
            if lost is None:
                return None
            why = f"{error}; it was a server, and {lost}"
            raise PeerFailed(why, error.ranks or [self._server]) from None
        if "failed" in message.header:
            self._asked.check()
            raise PeerFailed(f"the server on rank {self._server} raised {message.header['failed']}", [self._server])
        return message


@dataclass(frozen=True)
class PartRead:
    """What a server has answered for one part."""

    numbers: Sequence[Tensor]
    states: Sequence[Any]
    kept: Sequence[Tensor]
    """What an optimizer keeps, as `states_to_plain` gives it."""
    options: Sequence[dict[str, Any]]
    """What the optimizer's own steps have written into its groups."""
    beside: Mapping[str, Any]
    """What the optimizer keeps beside parameters and options."""


@dataclass(frozen=True)
class Read:
    """What all servers together have answered."""

    header: Mapping[str, Any]
    parts: Mapping[int, PartRead]


class Answers:
    """What servers answer to one worker, by the number of the push behind which it asked.

    Every living server answers each question, with the parts that it speaks for. Where one has died before, some are
    missing: then the worker asks all for everything again, so that what it reads is of one version.
    """

    def __init__(self, wire: Wire, asked: Asked, ask_again: Callable[[int], None]) -> None:
        self._wire, self._asked, self._ask_again = wire, asked, ask_again
        self._next: dict[int, ServerAnswer] = {}
        self._came: dict[int, dict[int, list[Message]]] = defaultdict(dict)
        """By server and number."""

    def of(self, number: int) -> Reading:
        """What is answered to that question; behind it the worker asks no smaller one, but 0."""
        for server in self._asked.holders.servers:
            self._posted(server)
        return Reading(self, number)

    def have(self, number: int) -> bool:
        """Whether all have answered it."""
        return all(self._has(server, number) for server in self._asked.holders.living(self._wire.dead))

    def take(self, server: int, number: int, timeout: float | None) -> Message | None:
        """What one has answered to it; None where it has died before."""
        came = self._came[server]
        while number not in came:
            if not self._comes(server, timeout):
                return None
        found = came[number].pop(0)
        if not came[number]:
            del came[number]
        return found

    def ask_again(self, number: int) -> list[int]:
        """Some of the answer is missing: ask all once more. The servers that answer."""
        self._ask_again(number)
        return self.servers

    @property
    def servers(self) -> list[int]:
        """Who answers."""
        return list(self._asked.holders.servers)

    def _has(self, server: int, number: int) -> bool:
        while number not in self._came[server] and self._posted(server).done():
            if not self._comes(server, None):
                return True
        return number in self._came[server]

    def _comes(self, server: int, timeout: float | None) -> bool:
        """Take in the next answer of one; False where it has died."""
        message = self._posted(server).wait(timeout)
        if message is None:
            return False
        del self._next[server]
        self._came[server].setdefault(int(message.header["number"]), []).append(message)
        return True

    def _posted(self, server: int) -> ServerAnswer:
        if server not in self._next:
            self._next[server] = ServerAnswer(self._wire, server, self._asked)
        return self._next[server]


class Reading:
    """The work of one question."""

    def __init__(self, answers: Answers, number: int) -> None:
        self._answers, self._number = answers, number
        self._owed = answers.servers
        self._header: Mapping[str, Any] = {}
        self._parts: dict[int, PartRead] = {}

    def done(self) -> bool:
        return not self._owed or self._answers.have(self._number)

    def wait(self, timeout: float | None = None) -> Read:
        while self._owed:
            message = self._answers.take(self._owed[0], self._number, timeout)
            del self._owed[0]
            if message is not None:
                self._header = message.header
                self._parts.update(_parts_of(message))
            if not self._owed and len(self._parts) < len(self._answers.servers):
                self._parts.clear()
                self._owed = self._answers.ask_again(self._number)
        return Read(self._header, self._parts)


def _beside(told: Mapping[str, Any]) -> dict[str, Any]:
    return {"options": told.get("options", []), "beside": told.get("beside", {})}


def _parts_of(message: Message) -> dict[int, PartRead]:
    tensors, found = list(message.tensors), {}
    numbers = []
    for one in message.header["parts"]:
        numbers.append(tensors[: one["numbers"]])
        tensors = tensors[one["numbers"] :]
    for one, mine in zip(message.header["parts"], numbers, strict=True):
        found[int(one["part"])] = PartRead(mine, one["states"], tensors[: one["kept"]], **_beside(one))
        tensors = tensors[one["kept"] :]
    return found
