"""One run of a virtual world: the lives of its workers, the board that they share, and the messages between them."""

from __future__ import annotations

import json
import threading
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from quorate.core.contracts import Board, Message
from quorate.core.draws import common_seed, mixed
from quorate.core.errors import ConfigurationError, Failure, PeerFailed, QuorateError, WireTimeout
from quorate.core.members import DeathNotice, Members
from quorate.wire import current, failure
from quorate.wire.boxes import Boxes
from quorate.wire.members import GONE, members_in
from quorate.wire.virtual.formation import copy, nbytes
from quorate.wire.virtual.generators import Generators
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.ports import Queues
from quorate.wire.virtual.rendezvous import Rendezvous
from quorate.wire.virtual.scheduler import Resumed, Scheduler, Strand
from quorate.wire.virtual.waits import Awaited, Departure, Scene, VirtualWork

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


class Keys(VirtualWork[None]):
    """Keys that `rank` waits for."""

    __slots__ = ("lacking",)

    def __init__(self, scene: Scene, rank: int, keys: Sequence[str], timeout: float) -> None:
        super().__init__(scene, rank, "board.wait", timeout)
        self.lacking = dict.fromkeys(keys)

    def timed_out(self, seconds: float) -> WireTimeout:
        keys = ", ".join(f'"{key}"' for key in self.lacking)
        return WireTimeout(f"rank {self.rank} waited {seconds:g} s for {keys} in board.wait")


class VirtualBoard(Board):
    """See `Board`; reading and writing take no virtual time."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._values: dict[str, bytes] = {}
        self._counters: dict[str, int] = {}
        self._waits: dict[str, list[Keys]] = {}

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = bytes(value)
        if self._scene.is_traced:
            self._scene.note(None, f"board {key} = {len(value)} bytes")
        for wait in self._waits.pop(key, ()):
            del wait.lacking[key]
            if not wait.lacking and not wait.is_finished:
                wait.finish(None)
        if key == failure.FAILED:
            self._scene.learn_of_failure(self._values[key])
        if key == GONE:
            self._scene.learn_members(self._values[key])

    def get(self, key: str) -> bytes | None:
        return self._values.get(key)

    def add(self, key: str, amount: int = 1) -> int:
        self._counters[key] = self._counters.get(key, 0) + amount
        return self._counters[key]

    def swap(self, key: str, expected: bytes | None, value: bytes) -> bool:
        if self._values.get(key) != expected:
            return False
        self.set(key, value)
        return True

    def wait(self, keys: Sequence[str], timeout: float | None = None) -> None:
        scene = self._scene
        wait = Keys(scene, scene.scheduler.running().rank, keys, scene.timeout)
        for key in keys:
            if key in self._values:
                wait.lacking.pop(key, None)
        if not wait.lacking:
            return
        for key in wait.lacking:
            self._waits.setdefault(key, []).append(wait)
        try:
            wait.wait(timeout)
        finally:
            for key in wait.lacking:
                self._forget(key, wait)

    def delete(self, prefix: str) -> None:
        for table in (self._values, self._counters):
            for key in [key for key in table if key.startswith(prefix)]:
                del table[key]
        if failure.FAILED.startswith(prefix):
            self._scene.learn_of_failure(None)

    def _forget(self, key: str, wait: Keys) -> None:
        waits = self._waits[key]
        waits.remove(wait)
        if not waits:
            del self._waits[key]


HOST = "virtual"
"""The host name of all virtual workers."""

NOTICE_SECONDS = 0.05
"""Seconds from a worker's death until the launcher has written it on the board."""

GRACE_SECONDS = 1.0
"""Seconds from a worker's normal end until waits that need it fail."""


class Unwound(BaseException):
    """Ends a virtual worker's thread: it crashed, or its task has ended. User code never handles it."""


@dataclass
class Life:
    """One virtual worker, from its birth to its end."""

    rank: int
    strands: list[Strand] = field(default_factory=list)
    result: Any = None
    error: BaseException | None = None
    is_crashed: bool = False
    is_over: bool = False
    seconds: float = 0.0
    """The virtual time at which it ended."""


MAIN = "main"
"""The name of the thread in which a worker begins."""


class Stage:
    """The shared state of one run, through which its parts reach each other."""

    def __init__(
        self,
        size: int,
        most: int,
        *,
        seed: int,
        network: Network,
        timeout: float,
        has_generators: bool,
        is_traced: bool,
        resumed: Resumed,
    ) -> None:
        self.size = size
        self.seed = seed
        self.network = network
        self.timeout = timeout
        self.is_traced = is_traced
        self.trace: list[str] = []
        self.scheduler = Scheduler(mixed(seed))
        self.queues = Queues(network)
        self.board = VirtualBoard(self)
        self.post = Post(self)
        self.rendezvous = Rendezvous(self)
        self.lives = [Life(rank) for rank in range(most)]
        self.failures: list[Life] = []
        """Workers that raised or crashed, in the order of virtual time."""
        self.ended: set[int] = set()
        """Workers that ended normally, more than `GRACE_SECONDS` ago."""
        self.members = Members(size)
        """The workers as the board has them."""
        self.followers: list[Address] = []
        """Addresses that get a message about each death."""
        self._failure: bytes | None = None
        self._has_generators, self._resumed = has_generators, resumed

    def note(self, rank: int | None, event: str) -> None:
        who = "-" if rank is None else str(rank)
        self.trace.append(f"{self.scheduler.now:.9f} {who} {event}")

    # -- why a wait cannot be

    def obstacle(self, pending: Awaited) -> Failure | None:
        if self._failure is not None:
            return failure.failure_in(self._failure)
        away = self.ended | self.members.dead if self.members.dead else self.ended
        if away:
            ranks = [rank for rank in pending.missing() if rank in away and not pending.can_come_from(rank)]
            if ranks:
                return pending.ended(ranks)
        return None

    def learn_of_failure(self, value: bytes | None) -> None:
        self._failure = value
        self._stop_waits()

    def learn_members(self, value: bytes) -> None:
        before, self.members = self.members, members_in(value, self.size)
        new_deaths = sorted(self.members.dead - before.dead)
        for address in self.followers if new_deaths else ():
            if not self.lives[address[1]].is_over:
                self.post.tell(address, Message(header=DeathNotice(new_deaths).header()))
        self._stop_waits()

    def _stop_waits(self) -> None:
        for strand in list(self.scheduler.strands):
            if strand.waits and isinstance(strand.awaited, VirtualWork):
                obstacle = self.obstacle(strand.awaited)
                if obstacle is not None:
                    self.scheduler.wake(strand, obstacle)

    # -- lives

    def start(self, rank: int, name: str, body: Callable[[], None]) -> None:
        """Start a thread of worker `rank`, which runs `body` once it gets the baton."""
        life = self.lives[rank]
        common, own = self._seeds(rank, name)
        seed = common if name == MAIN else own
        strand = Strand(rank, name, Generators(seed) if self._has_generators else None, self._resumed)
        thread = threading.Thread(target=self._live, args=(strand, body), name=f"rank {rank} {name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            message = f"the system refused a thread for rank {rank} of {self.size}; raise its limit or lower the size"
            raise ConfigurationError(message) from None
        life.strands.append(strand)
        self.scheduler.add(strand)

    def generator_seeds(self, rank: int) -> tuple[int, int] | None:
        """Return the seed of all workers' generators, and one of this worker's own; None without generators."""
        return self._seeds(rank, MAIN) if self._has_generators else None

    def _seeds(self, rank: int, name: str) -> tuple[int, int]:
        thread = zlib.crc32(name.encode())
        return common_seed(self.seed, thread), mixed(self.seed, rank, thread)

    def _live(self, strand: Strand, body: Callable[[], None]) -> None:
        strand.lock.acquire()
        strand.ident = threading.get_ident()
        torch.autograd.set_multithreading_enabled(False)  # hooks of a GPU's backward pass run in this thread
        strand.resume()
        try:
            if strand.fate is None:
                body()
        finally:
            self.lives[strand.rank].strands.remove(strand)
            self.scheduler.leave()

    def play(self, rank: int, task: Callable[[], Any]) -> None:
        """Run the task of worker `rank`, and announce its end."""
        life = self.lives[rank]
        try:
            life.result = task()
        except Unwound:
            pass
        except BaseException as error:  # any error ends it, as it would end a process
            life.error = error
            self._die(life, f"raised {_in_words(error)}")
        else:
            self._end(life)

    def spawn(self, rank: int, name: str, task: Callable[[], None]) -> VirtualWork[None]:
        """Start a further thread of worker `rank`; a wait for it raises its error."""
        pending = VirtualWork[None](self, rank, f"spawn of {name}", self.timeout)
        place = current.place()

        def body() -> None:
            current.adopt(place)
            try:
                task()
            except Unwound:
                pass
            except BaseException as error:  # the wait raises it
                self.note(rank, f"{name} raised {_in_words(error)}") if self.is_traced else None
                pending.fail(error)
            else:
                pending.finish(None)

        self.start(rank, name, body)
        return pending

    def crash(self, rank: int) -> None:
        """End worker `rank`, which calls it, as by a crash."""
        life = self.lives[rank]
        life.is_crashed = True
        life.error = PeerFailed(f"rank {rank} crashed", (rank,))
        self._die(life, "crashed")
        raise Unwound

    def _die(self, life: Life, reason: str) -> None:
        self.failures.append(life)
        self._close(life, reason)
        scheduler = self.scheduler
        scheduler.at(scheduler.now + NOTICE_SECONDS, partial(self._announce, life.rank, reason))

    def _announce(self, rank: int, reason: str) -> None:
        if not failure.has_come(self.board, self.size, rank):
            failure.report_outsider(self.board, rank, reason, host=HOST)
        elif self.lives[rank].is_crashed:
            failure.report_death(self.board, rank, reason, host=HOST)
        elif isinstance(self.lives[rank].error, QuorateError) or not failure.report_outlived_error(
            self.board, rank, reason, host=HOST
        ):
            failure.report_failure(self.board, rank, reason, host=HOST)

    def _end(self, life: Life) -> None:
        self._close(life, "ended")
        self.board.set(failure.ended(life.rank), b"0")
        self.scheduler.at(self.scheduler.now + GRACE_SECONDS, partial(self._miss, life.rank))

    def _miss(self, rank: int) -> None:
        self.ended.add(rank)
        self._stop_waits()

    def _close(self, life: Life, how: str) -> None:
        life.is_over = True
        life.seconds = self.scheduler.now
        if self.is_traced:
            self.note(life.rank, how)
        for strand in life.strands:
            if strand is not self.scheduler.current:
                self.scheduler.doom(strand, Unwound())


def _in_words(error: BaseException) -> str:
    first_line, _, _ = str(error).partition("\n")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
