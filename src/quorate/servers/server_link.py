"""The messages of one worker to the servers, and their answers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.errors import PeerFailed
from quorate.core.servers import ServerTerms
from quorate.core.vectors import Flat
from quorate.servers.messages import Again, AnswerFields, Failed, FromWorker, PushMessage, Signal, Wanted
from quorate.servers.server_task import READ, ServerTask
from quorate.servers.setting_out import WANTED
from quorate.servers.shard import Cut
from quorate.servers.succession import Holders

Received = tuple[AnswerFields, Sequence[Tensor]]
"""An answer that has arrived: its fields and its tensors."""


class ServerLink:
    """Connects the worker of one optimizer with its servers; `task` is that of the worker's own server."""

    def __init__(self, wire: Wire, terms: ServerTerms, task: ServerTask) -> None:
        self._wire, self._terms, self._task = wire, terms, task
        self._holders = Holders(terms.servers, terms.replication)
        all_parts, some_part = "all parameters were", "a part of the parameters was"
        if terms.elastic is not None:
            all_parts, some_part = "the centre was", "a part of the centre was"
        self._asked = Asked(self._holders, all_parts, some_part, task.check)
        self._answers = Answers(wire, self._asked, self._ask_again)
        self.cuts: list[Cut] = []
        """The parts that lie on servers."""
        self.era = 0
        """Number of the era, from 1 on."""

    def cuts_on(self, server: int) -> dict[int, Cut]:
        """Return the cuts that lie on a server, by part."""
        return {part: self.cuts[part] for part in self._holders.parts_of(server)}

    def push(
        self,
        message: PushMessage,
        numbers: Sequence[Sequence[Tensor]] | None,
        edit: Flat | None,
        unused: Sequence[Sequence[int]],
        row_edits: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        """Push to every server its parts of `numbers` and `edit`; `numbers`, `unused` and `row_edits` are by part."""
        for server in self._terms.servers:
            tensors: list[Tensor] = []
            for part, cut in self.cuts_on(server).items():
                tensors += (*([] if numbers is None else numbers[part]), *([] if edit is None else cut.of(edit)))
                tensors += row_edits[part] if row_edits else []
            unused_there = [unused[part] for part in self._holders.parts_of(server)]
            self.send(replace(message, unused=unused_there), server, *tensors)

    def read(self, number: int) -> Reading:
        """Return the answer to the question after push `number`; 0 is the question at a pause."""
        return self._answers.of(number)

    def tell(self, message: FromWorker) -> None:
        """Send a message without tensors to the servers that may decide."""
        terms = self._terms
        for server in terms.servers[:1] if terms.consistent and terms.replication == 1 else terms.servers:
            self.send(message, server)

    def send(self, message: FromWorker, server: int, *tensors: Tensor) -> None:
        """Send a message to one server."""
        self._task.send(Message(tensors, message.header(), shared=True), server)

    def without_worker(self, workers: Collection[int]) -> Iterator[int]:
        """Yield the servers without a worker of their own among `workers` that want their parts from this worker."""
        servers = [server for server in self._holders.living(self._wire.dead) if server not in workers]
        for server in servers:
            self.send(Signal("comes", self.era), server)
        for server in servers:
            answer = ServerAnswer(self._wire, server, self._asked, WANTED).wait()
            if answer is not None and Wanted.read(answer.header).wanted:
                yield server

    def _ask_again(self, number: int) -> None:
        dead = sorted(self._wire.dead)
        for server in self._terms.servers:
            self.send(Again(self.era, number, dead), server)


@dataclass(frozen=True)
class Asked:
    """The subject of questions, for error messages when a server has died."""

    holders: Holders
    all_parts: str
    some_part: str
    """Beginnings of sentences: that everything was on a server, or that a part was."""
    check: Callable[[], None]
    """Raises the error with which this worker's own server has ended."""

    def lost_with(self, dead: Collection[int]) -> str | None:
        """Return the clause that says what is lost with the `dead`; None if nothing is."""
        if not self.holders.lost(dead):
            return None
        return f"{self.all_parts if len(self.holders.servers) == 1 else self.some_part} on it alone"


class ServerAnswer:
    """Waits for the next answer of `server`."""

    def __init__(self, wire: Wire, server: int, asked: Asked, tag: str = READ) -> None:
        self._wire, self._server, self._asked = wire, server, asked
        self._work = wire.receive(server, tag)

    def done(self) -> bool:
        return self._work.done()

    def wait(self, timeout: float | None = None) -> Message | None:
        """Return the answer; None if the server died and others hold its parts. Raises `PeerFailed` if none does."""
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
            raise PeerFailed(
                f"the server on rank {self._server} raised {Failed.read(message.header).failed}", [self._server]
            )
        return message


@dataclass(frozen=True)
class PartRead:
    """One part in the answer of a server."""

    numbers: Sequence[Tensor]
    states: Sequence[Any]
    kept: Sequence[Tensor]
    """The optimizer state with `states`, in the form of `states_to_plain`."""
    options: Sequence[dict[str, Any]]
    """The options that the optimizer's own steps have changed, by parameter group."""
    beside: Mapping[str, Any]
    """State of the optimizer outside parameters and options."""


@dataclass(frozen=True)
class Read:
    """The answers of all servers together."""

    answer: AnswerFields
    """The newest of them, of whose fields only those that all have in common are used."""
    parts: Mapping[int, PartRead]


class Answers:
    """The answers of servers to one worker, by question: the number of the push after which it asked.

    Every living server answers each question with the parts that it speaks for. If a server has died before, parts are
    missing. Then the worker asks all servers for everything again, so that all parts are of one version.
    """

    def __init__(self, wire: Wire, asked: Asked, ask_again: Callable[[int], None]) -> None:
        self._wire, self._asked, self._ask_again = wire, asked, ask_again
        self._next: dict[int, ServerAnswer] = {}
        self._received: dict[int, dict[int, list[Received]]] = defaultdict(dict)
        """Answers that were not taken yet, by server and number of the question."""

    def of(self, number: int) -> Reading:
        """Return the answer to question `number`. Later questions have greater numbers, except 0."""
        for server in self._asked.holders.servers:
            self._next_answer(server)
        return Reading(self, number)

    def have(self, number: int) -> bool:
        """Whether all living servers have answered question `number`."""
        return all(self._has(server, number) for server in self._asked.holders.living(self._wire.dead))

    def take(self, server: int, number: int, timeout: float | None) -> Received | None:
        """Return the answer of `server` to question `number`; None if the server has died before it answered."""
        received = self._received[server]
        while number not in received:
            if not self._receive(server, timeout):
                return None
        answer = received[number].pop(0)
        if not received[number]:
            del received[number]
        return answer

    def ask_again(self, number: int) -> list[int]:
        """Ask all servers question `number` once more, as a part is missing. Return the servers that answer."""
        self._ask_again(number)
        return self.servers

    @property
    def servers(self) -> list[int]:
        """The servers that answer."""
        return list(self._asked.holders.servers)

    def _has(self, server: int, number: int) -> bool:
        while number not in self._received[server] and self._next_answer(server).done():
            if not self._receive(server, None):
                return True
        return number in self._received[server]

    def _receive(self, server: int, timeout: float | None) -> bool:
        message = self._next_answer(server).wait(timeout)
        if message is None:
            return False
        del self._next[server]
        answer = AnswerFields.read(message.header)
        self._received[server].setdefault(answer.number, []).append((answer, message.tensors))
        return True

    def _next_answer(self, server: int) -> ServerAnswer:
        if server not in self._next:
            self._next[server] = ServerAnswer(self._wire, server, self._asked)
        return self._next[server]


class Reading:
    """Collects the answers to one question."""

    def __init__(self, answers: Answers, number: int) -> None:
        self._answers, self._number = answers, number
        self._outstanding = answers.servers
        self._answer: AnswerFields
        self._parts: dict[int, PartRead] = {}

    def done(self) -> bool:
        return not self._outstanding or self._answers.have(self._number)

    def wait(self, timeout: float | None = None) -> Read:
        while self._outstanding:
            received = self._answers.take(self._outstanding[0], self._number, timeout)
            del self._outstanding[0]
            if received is not None:
                self._answer = received[0]
                self._parts.update(_parts_of(*received))
            if not self._outstanding and len(self._parts) < len(self._answers.servers):
                self._parts.clear()
                self._outstanding = self._answers.ask_again(self._number)
        return Read(self._answer, self._parts)


def _parts_of(answer: AnswerFields, tensors: Sequence[Tensor]) -> dict[int, PartRead]:
    parts, numbers = {}, []
    for part in answer.parts:
        numbers.append(tensors[: part.numbers])
        tensors = tensors[part.numbers :]
    for part, part_numbers in zip(answer.parts, numbers, strict=True):
        kept = tensors[: part.kept]
        parts[part.part] = PartRead(part_numbers, part.states, kept, part.options or [], part.beside or {})
        tensors = tensors[part.kept :]
    return parts
