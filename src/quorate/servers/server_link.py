"""The messages of one worker to the servers, and their answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from quorate.core.contracts import Message, Wire
from quorate.core.servers import ServerTerms
from quorate.core.vectors import Flat
from quorate.servers.holders import Holders
from quorate.servers.messages import Again, FromWorker, PushMessage, Signal, Wanted
from quorate.servers.server_answer import Answers, Asked, Reading, ServerAnswer
from quorate.servers.server_task import ServerTask
from quorate.servers.setting_out import WANTED
from quorate.servers.shard import Cut


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
    ) -> None:
        """Push to every server its parts of `numbers` and `edit`; `numbers` and `unused` are by part."""
        for server in self._terms.servers:
            tensors: list[Tensor] = []
            for part, cut in self.cuts_on(server).items():
                tensors += (*([] if numbers is None else numbers[part]), *([] if edit is None else cut.of(edit)))
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
