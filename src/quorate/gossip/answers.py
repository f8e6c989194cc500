"""The task beside a worker that answers other workers' questions, also while its training thread computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import PeerFailed
from quorate.core.neighbours import Answer, Request
from quorate.core.vectors import Flat, Layout
from quorate.wire.attendant import Attendant
from quorate.wire.work import Together


class Answers:
    """Questions of this worker, and its answers to those of others.

    `wire` is the training thread's; the task runs on `wire.channel("questions")`, and sends answers on `wire`. A
    question that nobody serves yet waits until somebody does, and so does one of a worker that has gone on after all
    had paused (so often already: `pauses`; -1 of one that has not joined yet), until this worker goes on as well: what
    it keeps does not move while it is looked at.
    """

    def __init__(self, wire: Wire, layout: Callable[[], Layout], pauses: int) -> None:
        self._wire, self._layout = wire, layout
        self._asks = 0
        self._handlers: dict[str, Callable[[Request], None]] = {}
        self._unserved: list[Request] = []
        self._early: list[tuple[float, Request]] = []
        self._pauses: float = pauses
        self._newest: dict[int, int] = {}
        self._lock = threading.Lock()
        self._questions = Attendant(wire, "questions", self._take)

    def ask(self, peer: int, name: str, x: Flat | None, header: Mapping[str, Any], pauses: int) -> Work[Answer]:
        """See `core.neighbours.Neighbours`; all have paused `pauses` times. Raises what the task has ended with."""
        self._questions.check()
        self._asks += 1
        question = {"name": name, "sequence": self._asks, "header": dict(header), "rests": pauses}
        self._questions.send(_message(x, question), peer)
        answer = OfTheLiving(self._wire, peer, self._wire.receive(peer, f"answer/{self._asks}"))

        def opened(results: list[tuple[int, Message]]) -> Answer:
            message = results[0][1]
            return self._vector(message), message.header

        return Together([answer], opened, self._wire.clock)

    def serve(self, name: str, handler: Callable[[Request], None]) -> None:
        """Let `handler` answer what is asked under `name`; what has been asked already it answers at once."""
        with self._lock:
            self._handlers[name] = handler
            mine = [request for request in self._unserved if request.name == name]
            self._unserved = [request for request in self._unserved if request.name != name]
        for request in mine:
            handler(request)

    def resume(self, pauses: float) -> None:
        """This worker goes on after so many pauses: it answers those that have done so before."""
        if pauses <= self._pauses:
            return
        with self._lock:
            self._pauses = pauses
            now = [request for after, request in self._early if after <= pauses]
            self._early = [(after, request) for after, request in self._early if after > pauses]
        for request in now:
            self._answer(request)

    def close(self) -> None:
        """End the task; raises what it has ended with."""
        self._questions.close()

    # -- the task

    def _take(self, source: int, message: Message) -> None:
        question = message.header
        sequence = question["sequence"]
        if sequence <= self._newest.get(source, 0):
            return  # it has come twice
        self._newest[source] = sequence
        reply = partial(self._reply, source, sequence)
        request = Request(source, question["name"], sequence, self._vector(message), question["header"], reply)
        with self._lock:
            is_early = question["rests"] > self._pauses
            if is_early:
                self._early.append((question["rests"], request))
        if not is_early:
            self._answer(request)

    def _answer(self, request: Request) -> None:
        with self._lock:
            handler = self._handlers.get(request.name)
            if handler is None:
                self._unserved.append(request)
        if handler is not None:
            handler(request)

    def _reply(self, source: int, sequence: int, x: Flat | None = None, **header: Any) -> None:
        self._wire.send(_message(x, header), source, f"answer/{sequence}")

    def _vector(self, message: Message) -> Flat | None:
        layout = self._layout()
        parts = [x.to(p.device) for x, p in zip(message.tensors, layout.parts, strict=False)]
        return Flat(parts, layout) if parts else None


class OfTheLiving:
    """A message of `peer` under way; an empty one where it has died, and is outlived."""

    def __init__(self, wire: Wire, peer: int, work: Work[tuple[int, Message]]) -> None:
        self._wire, self._peer, self._work = wire, peer, work

    def done(self) -> bool:
        return self._work.done() or self._peer in self._wire.dead

    def wait(self, timeout: float | None = None) -> tuple[int, Message]:
        if self._peer in self._wire.dead and not self._work.done():
            return self._peer, Message()  # at once: a wire takes its time before it says so
        try:
            return self._work.wait(timeout)
        except PeerFailed:
            if self._peer not in self._wire.dead:
                raise
            return self._peer, Message()


def _message(x: Flat | None, question: Mapping[str, Any]) -> Message:
    return Message(() if x is None else x.parts, question, shared=True)
