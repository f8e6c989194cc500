"""Messages between processes over sockets: one connection each way, one thread that reads and writes.

Among workers of one host the sockets are files that only this user can open. Large tensors that no longer change lie in
shared memory (`wire.real.shared`), and only their place is sent. Between hosts a connection must prove that it knows
the run's token (HMAC-SHA256 over a nonce) before its messages are read; it is encrypted where that is requested.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor

from quorate.core.contracts import Message
from quorate.wire.boxes import Inbox
from quorate.wire.frames import Reader, encode
from quorate.wire.real.arriving import Arriving, Lobby
from quorate.wire.real.encryption import Encryption, Impostor, address_of
from quorate.wire.real.links import Lane, Link, Outgoing, Unreachable, connect
from quorate.wire.real.loans import Borrower, Loan
from quorate.wire.real.shared import LEAST_BYTES, Arena, Lender, Mapped, is_possible

_NBYTES = attrgetter("nbytes")
_AGAIN_SECONDS = 0.1
"""Seconds between two attempts to reach a host that does not answer."""


class Mailbox:
    """This worker's end of all its connections. `find` returns a peer's address, waiting until it is known.

    It listens at the socket file `path`, at a port of `host`, or at both; `address` has all of them, and `address_for`
    picks one. `lost` holds the ranks whose connection to this worker has ended.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        inbox: Inbox,
        path: str | None,
        host: str | None,
        token: bytes,
        find: Callable[[int], str],
        encryption: Encryption | None = None,
        when_refused: Callable[[int, str], None] = lambda peer, why: None,
    ) -> None:
        self.rank, self.size, self.inbox, self.lost = rank, size, inbox, set[int]()
        self._arena = Arena(size) if path is not None and is_possible() else None
        if self._arena is not None:
            self._arena.dead = self.lost
        self._token, self._find, self._encryption, self._when_refused = token, find, encryption, when_refused
        self._links: dict[tuple[int, Lane], Link] = {}
        """Links by peer and lane; to a worker of this host all lanes are one link."""
        self._lock = threading.Lock()
        self._path = path
        self._selector = selectors.DefaultSelector()
        addresses = []
        if host is not None:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            port = self._listen(socket.create_server((host, 0), family=family)).getsockname()[1]
            addresses.append(address_of(host, port, encryption))
        if path is not None:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            os.chmod(path, 0o600)
            self._listen(listener)
            addresses.append(f"unix:{path}")
        self.address = " ".join(addresses)
        self.congestion = ""
        """Congestion control of TCP to other hosts, as named by Linux; empty: the system's default."""
        self._wake, wakes = socket.socketpair()
        self._wake.setblocking(False)
        wakes.setblocking(False)
        self._selector.register(wakes, selectors.EVENT_READ, wakes)
        self._closed = False
        self._full = set[Link]()
        """Links that could not take all bytes of their messages at once, since the last look."""
        self._writing: dict[Link, socket.socket] = {}
        """Links registered for writing."""
        self._lenders: list[Lender] = []
        self._newest: tuple[Message, str, list[memoryview]] | None = None
        """The newest message that is the same for every worker, its tag, and the pieces of its frame."""
        self._lobby = Lobby()
        self.borrower = Borrower()
        self._thread = threading.Thread(target=self._run, name="quorate-mailbox", daemon=True)
        self._thread.start()

    def _listen(self, listener: socket.socket) -> socket.socket:
        listener.listen(128)
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, None)
        return listener

    def send(self, message: Message, to: int, tag: str, lane: Lane = Lane.USUAL) -> Outgoing:
        """Send a message; the mailbox's thread writes the part that the system does not accept at once."""
        link = self._link(to, Lane.URGENT if message.urgent else lane)
        shares = self._arena is not None and message.shared and link.is_here
        place = partial(self._arena.place, to=to) if shares and self._arena is not None else None
        outgoing = Outgoing(self._encoded(message, tag, place))
        with link.lock:
            if link.broken:
                outgoing.end(lost=True, why=link.why)
                return outgoing
            link.queue.append(outgoing)
        self._push(link)
        if self._arena is not None:
            self._arena.give_large_blocks_back()
        return outgoing

    def _encoded(
        self, message: Message, tag: str, place: Callable[[Tensor], Sequence[int] | None] | None
    ) -> list[memoryview]:
        """Return the pieces of the frame; those of the newest small message, where it goes to one more worker."""
        known = self._newest
        if known is not None and known[0] is message and known[1] == tag:
            return known[2]
        pieces = encode(message, place, source=self.rank, tag=tag)
        is_small = message.shared and max(map(_NBYTES, message.tensors), default=0) < LEAST_BYTES
        self._newest = (message, tag, pieces) if is_small else None
        return pieces

    def empty(self, numel: int, dtype: torch.dtype, patience: float = 0.0) -> Tensor:
        """See `Wire.empty`."""
        if self._arena is None:
            return torch.empty(numel, dtype=dtype)
        for lender in tuple(self._lenders):  # others wait for blocks that were read here
            lender.report_releases()
        return self._arena.empty(numel, dtype, patience)

    def lend(self, x: Tensor) -> Loan | None:
        """See `Wire.lend`."""
        address = x.untyped_storage().data_ptr()
        memories: list[Arena | Lender] = [] if self._arena is None else [self._arena, *self._lenders]
        for memory in memories:
            if (offset := memory.offset_of(address)) is not None:
                return Loan.of(x, memory.fd, offset + x.data_ptr() - address)
        return None

    def use_gpu(self, gpu: torch.device) -> None:
        """Let `gpu` access the memory of `empty` from now on."""
        if self._arena is not None:
            self._arena.gpu = gpu

    def trim(self) -> None:
        """See `Wire.trim`."""
        if self._arena is not None:
            self._arena.trim()

    def lends(self, address: int) -> bool:
        """Whether shared memory made by `empty`, which this process still holds, begins at `address`."""
        return self._arena is not None and self._arena.lends(address)

    def let_map(self, address: int, readers: Sequence[int]) -> Mapped | None:
        """See `Arena.let_map`."""
        return None if self._arena is None else self._arena.let_map(address, readers)

    def close(self) -> None:
        """End all connections; unsent messages are lost."""
        self._closed = True
        self._poke()
        self._thread.join(timeout=2.0)
        self._wake.close()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        if self._path is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._path)

    def _poke(self) -> None:
        with suppress(BlockingIOError, OSError):
            self._wake.send(b"!")

    def _link(self, peer: int, lane: Lane) -> Link:
        with self._lock:
            link = self._links.get((peer, lane))
        if link is not None:
            return link
        address = self._find(peer)
        if address.startswith("unix:"):
            return self._link_here(peer, address, lane)
        # An unreachable host does not answer for long, and others must not wait for it.
        with self._lock:
            key = peer, lane
            if key not in self._links:
                self._links[key] = Link(None)
                threading.Thread(target=self._reach, args=(*key, self._links[key], address), daemon=True).start()
            return self._links[key]

    def _link_here(self, peer: int, address: str, lane: Lane) -> Link:
        """Return the link to a worker of this host, one for all lanes."""
        if lane is not Lane.USUAL:
            link = self._link(peer, Lane.USUAL)
            with self._lock:
                return self._links.setdefault((peer, lane), link)
        sock = connect(address, self._token, None if self._arena is None else self._arena.fd)
        with self._lock:
            link = self._links.setdefault((peer, Lane.USUAL), Link(sock))
        if link.sock is not sock:
            sock.close()
        self._poke()
        return link

    def _reach(self, peer: int, lane: Lane, link: Link, address: str) -> None:
        while not self._closed:
            try:
                sock = connect(address, self._token, encryption=self._encryption, congestion=self.congestion, lane=lane)
            except Unreachable:
                time.sleep(_AGAIN_SECONDS)
                continue
            except ConnectionError as error:
                with link.lock:
                    if isinstance(error, Impostor):
                        link.why = f"it {error}"
                    link.end()
                if isinstance(error, Impostor):
                    self._when_refused(peer, str(error))
                return
            with link.lock:
                link.sock = sock
            self._push(link)
            return

    def _push(self, link: Link) -> None:
        if link.push():
            self._full.add(link)
            self._poke()

    def _look_after_links(self) -> None:
        """Register for writing the links that have messages, and no others."""
        if not self._full and not self._writing:
            return
        links = {*self._full, *self._writing}
        self._full -= links
        writing = {link: link.sock for link in links if link.queue and not link.broken and link.sock is not None}
        for link in [idle for idle in self._writing if idle not in writing]:
            self._selector.unregister(self._writing.pop(link))
        for link, sock in writing.items():
            if link not in self._writing:
                self._writing[link] = sock
                self._selector.register(sock, selectors.EVENT_WRITE, link)

    def _run(self) -> None:
        while not self._closed:
            self._look_after_links()
            events = self._selector.select(timeout=1.0)
            for lender in self._lenders:
                lender.report_releases()
            late = self._lobby.overdue() if self._lobby.inside else ()
            for key, _ in events:
                if key.data is None:
                    self._accept(key.fileobj)  # type: ignore[arg-type]
                elif isinstance(key.data, Link):
                    key.data.push()
                elif isinstance(key.data, Arriving):
                    self._read(key.data)
                else:
                    with suppress(BlockingIOError):
                        key.data.recv(4096)
            for arriving in late:
                if arriving.reader is None and arriving.sock.fileno() >= 0:
                    self._drop(arriving)
            if (arena := self._arena) is not None:
                arena.give_large_blocks_back()
        for key in list(self._selector.get_map().values()):
            with suppress(OSError):
                (key.data if isinstance(key.data, Arriving) else key.fileobj).close()  # type: ignore[union-attr]
        for link in self._links.values():
            if link.sock is not None:
                link.sock.close()
        self._selector.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, OSError):
            is_here = listener.family == socket.AF_UNIX
            arriving = Arriving(listener.accept()[0], None if is_here else self._encryption)
            self._selector.register(arriving.sock, selectors.EVENT_READ, arriving)
            self._lobby.enter(arriving)

    def _read(self, arriving: Arriving) -> None:
        try:
            if arriving.reader is None:
                if arriving.prove(self._token):
                    self._lobby.leave(arriving)
                    if arriving.fd is not None:
                        arriving.lender = Lender(arriving.fd, self.rank, self.size)
                        self._lenders.append(arriving.lender)
                    arriving.reader = Reader(None if arriving.lender is None else arriving.lender.tensor)
                return
            while True:
                buffer = arriving.reader.want
                wanted = len(buffer)
                count = arriving.sock.recv_into(buffer)
                if count == 0:
                    raise ConnectionResetError
                for message, envelope in arriving.reader.got(count):
                    if envelope["source"] not in range(self.size):
                        raise ValueError("a message from an unknown sender")
                    arriving.source = int(envelope["source"])
                    self.inbox.put(arriving.source, str(envelope["tag"]), message)
                if count < wanted:
                    return  # there was no more
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            self._drop(arriving)

    def _drop(self, arriving: Arriving) -> None:
        if arriving.source is not None:
            self.lost.add(arriving.source)
        self._lobby.leave(arriving)
        self._selector.unregister(arriving.sock)
        if arriving.lender is not None:
            self._lenders.remove(arriving.lender)
        arriving.close()


def address_for(addresses: str, *, is_here: bool) -> str:
    """Return the one of a mailbox's `addresses` for a worker of the same host (`is_here`), or of another."""
    tcp, _, path = addresses.partition(" unix:")
    return f"unix:{path}" if path and is_here else tcp
