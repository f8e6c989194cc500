"""Messages between processes over sockets: one connection each way, one thread that reads and writes.

On one host the sockets are files that only this user can open; large tensors that nobody changes any more lie in shared
memory (`wire.real.shared`), and only where they lie is written. Between hosts a connection has to prove that it knows
the run's token (HMAC-SHA256 over a nonce) before anything it sends is read; what is sent is not encrypted.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import Tensor

from quorate.core.contracts import Message
from quorate.wire.frames import Reader, encode
from quorate.wire.real.arriving import NONCE, Arriving, Lobby, proof
from quorate.wire.real.inbox import Inbox
from quorate.wire.real.shared import Arena, Lender, is_possible


class Outgoing:
    """One message on its way; `sent` when the system has taken all of it, `lost` when the connection broke."""

    def __init__(self, pieces: list[memoryview]) -> None:
        self.pieces = deque(pieces)
        self.sent = threading.Event()
        self.lost = False

    def end(self, *, lost: bool = False) -> None:
        """Send no more of the message; `lost`: it has not gone out whole."""
        self.lost = lost
        self.pieces.clear()
        self.sent.set()


class _Link:
    """Our connection to one peer, which only we write to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.lock = threading.Lock()
        self.queue: deque[Outgoing] = deque()
        self.broken = False

    def push(self) -> bool:
        """Write what the system takes now; True if something is left."""
        with self.lock:
            while self.queue:
                first = self.queue[0]
                while first.pieces:
                    try:
                        count = self.sock.send(first.pieces[0])
                    except BlockingIOError:
                        return True
                    except OSError:
                        self.broken = True
                        while self.queue:
                            self.queue.popleft().end(lost=True)
                        return False
                    rest = first.pieces[0][count:]
                    if len(rest):
                        first.pieces[0] = rest
                    else:
                        first.pieces.popleft()
                self.queue.popleft().end()
            return False


class Mailbox:
    """This worker's end of all its connections. `find` gives a peer's address, waiting until it is known.

    `lost` holds the ranks whose connection to us has ended.
    """

    def __init__(
        self, rank: int, size: int, inbox: Inbox, path: str | None, host: str, token: bytes, find: Callable[[int], str]
    ) -> None:
        self.rank, self.size, self.inbox, self.lost = rank, size, inbox, set[int]()
        self._arena = Arena(size) if path is not None and is_possible() else None
        if self._arena is not None:
            self._arena.dead = self.lost
        self._token, self._find = token, find
        self._links: dict[int, _Link] = {}
        self._lock = threading.Lock()
        self._path = path
        if path is not None:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(path)
            os.chmod(path, 0o600)
            self.address = f"unix:{path}"
        else:
            self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
            self.address = f"tcp:{host}:{self._listener.getsockname()[1]}"
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake, wakes = socket.socketpair()
        self._wake.setblocking(False)
        wakes.setblocking(False)
        self._selector.register(wakes, selectors.EVENT_READ, wakes)
        self._closed = False
        self._lenders: list[Lender] = []
        self._lobby = Lobby()
        self._thread = threading.Thread(target=self._run, name="quorate-mailbox", daemon=True)
        self._thread.start()

    def send(self, message: Message, to: int, tag: str) -> Outgoing:
        """Put a message on its way; what the system does not take at once is written by the mailbox's thread."""
        link = self._link(to)
        place = partial(self._arena.place, to=to) if self._arena is not None and message.shared else None
        outgoing = Outgoing(encode(message, place, source=self.rank, tag=tag))
        with link.lock:
            if link.broken:
                outgoing.end(lost=True)
                return outgoing
            link.queue.append(outgoing)
        if link.push():
            self._poke()
        return outgoing

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numel, dtype=dtype) if self._arena is None else self._arena.empty(numel, dtype)

    def lends(self, address: int) -> bool:
        """Whether memory that `empty` gave, and somebody here still holds, begins there and is shared."""
        return self._arena is not None and self._arena.lends(address)

    def close(self) -> None:
        """End all connections; what is not yet written is lost."""
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

    def _link(self, peer: int) -> _Link:
        with self._lock:
            link = self._links.get(peer)
        if link is None:
            sock = self._connect(self._find(peer))
            with self._lock:
                link = self._links.setdefault(peer, _Link(sock))
            if link.sock is not sock:
                sock.close()
            self._poke()
        return link

    def _connect(self, address: str) -> socket.socket:
        kind, _, where = address.partition(":")
        try:
            if kind == "unix":
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(10.0)
                sock.connect(where)
            else:
                host, _, port = where.rpartition(":")
                sock = socket.create_connection((host, int(port)), timeout=10.0)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = b""
            while len(nonce) < NONCE:
                more = sock.recv(NONCE - len(nonce))
                if not more:
                    raise ConnectionResetError("closed while introducing ourselves")
                nonce += more
            if kind == "unix" and self._arena is not None:
                socket.send_fds(sock, [proof(self._token, nonce)], [self._arena.fd])
            else:
                sock.sendall(proof(self._token, nonce))
        except OSError as error:
            raise ConnectionError(f"cannot reach the worker at {address}: {error}") from error
        sock.setblocking(False)
        return sock

    def _run(self) -> None:
        while not self._closed:
            with self._lock:
                links = list(self._links.values())
            writing = {}
            for link in links:
                if link.queue and not link.broken:
                    writing[link.sock] = link
                    self._selector.register(link.sock, selectors.EVENT_WRITE, link)
            events = self._selector.select(timeout=1.0)
            for sock in writing:
                self._selector.unregister(sock)
            for lender in self._lenders:
                lender.settle()
            late = self._lobby.overdue()
            for key, _ in events:
                if key.data is None:
                    self._accept()
                elif isinstance(key.data, _Link):
                    key.data.push()
                elif isinstance(key.data, Arriving):
                    self._read(key.data)
                else:
                    with suppress(BlockingIOError):
                        key.data.recv(4096)
            for arriving in late:
                if arriving.reader is None and arriving.sock.fileno() >= 0:
                    self._drop(arriving)
        for key in list(self._selector.get_map().values()):
            with suppress(OSError):
                (key.data if isinstance(key.data, Arriving) else key.fileobj).close()  # type: ignore[union-attr]
        for link in self._links.values():
            link.sock.close()
        self._selector.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError, OSError):
            arriving = Arriving(self._listener.accept()[0])
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
                count = arriving.sock.recv_into(arriving.reader.want)
                if count == 0:
                    raise ConnectionResetError
                whole = arriving.reader.got(count)
                if whole is not None:
                    message, envelope = whole
                    if envelope["source"] not in range(self.size):
                        raise ValueError("a message from none of the workers")
                    arriving.source = int(envelope["source"])
                    self.inbox.put(arriving.source, str(envelope["tag"]), message)
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
