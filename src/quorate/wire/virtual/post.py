"""Messages between virtual workers, and the boxes in which they wait."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from functools import partial

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.wire.boxes import Boxes
from quorate.wire.virtual.formation import copy, nbytes
from quorate.wire.virtual.waits import Departure, Scene, VirtualWork

Address = tuple[str, int, str]
"""Channel, receiver, tag."""


class Receipt(VirtualWork[tuple[int, Message]]):
    """A receive of `rank` from `source` (None: any worker); it fails where one of `needs` has died."""

    __slots__ = ("_address", "_needs", "_post", "source")

    def __init__(
        self, scene: Scene, post: Post, address: Address, source: int | None, timeout: float, needs: Sequence[int]
    ) -> None:
        super().__init__(scene, address[1], "receive", timeout)
        self._post, self._address, self._needs = post, address, needs
        self.source = source

    def fill(self, source: int, message: Message) -> None:
        """Complete the receive with its message."""
        self.finish((source, message))

    def missing(self) -> Sequence[int]:
        """Return the sender, or all others; and the needed workers that are dead."""
        dead = [rank for rank in self._needs if rank in self._scene.members.dead and rank != self.source]
        if self.source is not None:
            return (self.source, *dead)
        return [rank for rank in range(self._scene.size) if rank != self.rank]

    def can_come_from(self, rank: int) -> bool:
        """Whether a message of `rank` is on its way; a receive from any worker needs none in particular."""
        if self.source is None:
            return rank not in self._needs or rank not in self._scene.members.dead
        return rank == self.source and self._post.is_on_its_way(self._address, rank)


class Post:
    """All messages of a virtual world that are sent and not received."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._boxes = Boxes[Address, Receipt]()
        self._on_their_way: dict[tuple[int, int, bool], deque[tuple[Address, Message]]] = {}
        """By sender, receiver, and whether they overtake others."""
        self._ports = scene.queues.ports

    def send(self, source: int, address: Address, message: Message) -> Departure:
        """Copy `message` (only the header of a shared one) and send it; first in, first out on each link, but for
        urgent messages between hosts."""
        scene, target = self._scene, address[1]
        header, header_bytes = _as_json(message)
        tensors = tuple((x.detach() if message.shared else copy(x)) for x in message.tensors)
        copied = Message(tensors, header, message.shared, message.urgent)
        size = nbytes(message.tensors) + header_bytes
        now = scene.scheduler.own_now()
        if scene.is_traced:
            scene.note(source, f"send {size} bytes to {target} as {address[2]} on {address[0]}")
        if source == target:
            self._deliver(source, address, copied)
            return Departure(scene, now, target)
        link = scene.network.link(source, target)
        way = (source, target)
        overtakes = message.urgent and self._ports.are_between(source, target)
        self._on_their_way.setdefault((*way, overtakes), deque()).append((address, copied))
        if overtakes:
            sent_at = now + link.transmission(size)
            scene.scheduler.at(sent_at + link.latency, partial(self._arrive, source, target, overtakes=True))
            return Departure(scene, sent_at, target)
        sent_at = scene.queues.message(way, size, now)
        if self._ports.are_between(source, target):
            begins = sent_at - self._ports.seconds(size) + link.latency
            scene.scheduler.at(begins, partial(self._enter, source, target, size))
        else:
            scene.scheduler.at(sent_at + link.latency, partial(self._arrive, source, target))
        return Departure(scene, sent_at, target)

    def tell(self, address: Address, message: Message) -> None:
        """Deliver a message of the receiver to itself, at any time."""
        self._deliver(address[1], address, message)

    def receive(self, address: Address, source: int | None, timeout: float, needs: Sequence[int]) -> Receipt:
        """Return a receive of the next message at `address` that no earlier receive gets."""
        receipt = Receipt(self._scene, self, address, source, timeout, needs)
        self._boxes.ask(address, receipt)
        return receipt

    def is_on_its_way(self, address: Address, source: int) -> bool:
        """Whether a message from `source` to `address` is on the link."""
        ways = ((source, address[1], overtakes) for overtakes in (False, True))
        return any(address == other for way in ways for other, _ in self._on_their_way.get(way, ()))

    def _enter(self, source: int, target: int, size: int) -> None:
        """Let the first byte reach the receiver's port."""
        scheduler = self._scene.scheduler
        scheduler.at(self._ports.enters(target, size, scheduler.now), partial(self._arrive, source, target))

    def _arrive(self, source: int, target: int, *, overtakes: bool = False) -> None:
        address, message = self._on_their_way[source, target, overtakes].popleft()
        self._deliver(source, address, message)

    def _deliver(self, source: int, address: Address, message: Message) -> None:
        if self._scene.is_traced:
            self._scene.note(address[1], f"got {address[2]} from {source} on {address[0]}")
        self._boxes.put(source, address, message)


def _as_json(message: Message) -> tuple[dict[str, object], int]:
    """Return the header as the receiver reads it, and its bytes."""
    if not message.header:
        return {}, 0
    try:
        text = json.dumps(dict(message.header), separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"the header of a message is plain JSON values: {error}") from None
    return json.loads(text), len(text)
