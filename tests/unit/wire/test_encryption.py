"""Connections between hosts in TLS: what somebody in the middle sees, and what becomes of somebody else's answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress

import pytest
import torch

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.wire.boxes import Inbox
from quorate.wire.real.encryption import CANNOT, ENCRYPTED, PLAIN, Encryption, check_wishes, split
from quorate.wire.real.mailbox import Mailbox
from quorate.wire.real.trust import key_of
from tests.support.kept_boards import kept_boards

pytest.importorskip("cryptography")
KEY = key_of("a secret that is long enough", b"nonce tls")
SECONDS = 20.0
SECRET = "nobody else is to read this"


class Middle:
    """Listens, and hands on what comes, each way, to the port of another; keeps all it has seen."""

    def __init__(self, port: int, encryption: Encryption | None = None) -> None:
        self.seen = bytearray()
        self._port, self._encryption = port, encryption
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._own_port = self._listener.getsockname()[1]
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._in_thread(self._accept)

    def _in_thread(self, does: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=does, args=args, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            with suppress(OSError):
                caller = self._listener.accept()[0]
                if self._is_closed:
                    caller.close()
                    return
                self._meet(caller)

    def _meet(self, caller: socket.socket) -> None:
        self._open.append(caller)
        if self._encryption is not None:  # with a certificate of its own
            self._open[-1] = caller = self._encryption.accepted(caller)
            with suppress(OSError):
                caller.do_handshake()
        other = socket.create_connection(("127.0.0.1", self._port))
        self._open.append(other)
        for source, target in ((caller, other), (other, caller)):
            self._in_thread(self._hand_on, source, target)

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while more := source.recv(1 << 16):
                self.seen += more
                target.sendall(more)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """All of it is over when this returns: nothing is left for a later test to be warned of."""
        self._is_closed = True
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", self._own_port)).close()
        self._threads[0].join(SECONDS)
        for sock in self._open:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(SECONDS)
        for sock in [self._listener, *self._open]:
            sock.close()


class Pair:
    """Rank 0 and rank 1; rank 1 finds rank 0 at `place`."""

    def __init__(self, stack: ExitStack, *, is_encrypted: bool = True) -> None:
        made = lambda: Encryption() if is_encrypted else None  # noqa: E731
        self.inbox, self.refused = Inbox(), list[tuple[int, str]]()
        self.first = Mailbox(0, 2, self.inbox, None, "127.0.0.1", KEY, lambda peer: "", made())
        self.place = self.first.address
        self.port = int(self.place.rpartition(":")[2])
        self.told = threading.Event()
        self.second = Mailbox(
            1, 2, Inbox(), None, "127.0.0.1", KEY, lambda peer: self.place, made(), self._when_refused
        )
        stack.callback(self.first.close)
        stack.callback(self.second.close)

    def _when_refused(self, peer: int, why: str) -> None:
        self.refused.append((peer, why))
        self.told.set()

    def goes_by(self, port: int) -> None:
        self.place = f"{self.place.rpartition(':')[0]}:{port}"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def send(pair: Pair, tensor: torch.Tensor) -> Message:
    waiting = pair.inbox.ask(1, "t")
    pair.second.send(Message((tensor,), {"said": SECRET}), 0, "t")
    assert waiting.filled.wait(SECONDS) and waiting.result is not None
    return waiting.result[1]


@pytest.mark.parametrize("is_encrypted", [True, False])
def test_who_is_in_the_middle_reads_nothing(stack: ExitStack, is_encrypted: bool) -> None:
    pair = Pair(stack, is_encrypted=is_encrypted)
    middle = Middle(pair.port)
    stack.callback(middle.close)
    pair.goes_by(middle.port)
    tensor = torch.randn(100_000, generator=torch.Generator().manual_seed(1))
    for _ in range(3):
        message = send(pair, tensor)
        assert torch.equal(message.tensors[0], tensor) and message.header == {"said": SECRET}
    assert len(middle.seen) > 3 * 400_000
    raw = tensor.numpy().tobytes()
    pieces = [SECRET.encode(), b'"tag"', *(raw[at : at + 16] for at in range(0, len(raw), 40_000))]
    assert [piece in middle.seen for piece in pieces] == [not is_encrypted] * len(pieces)


@pytest.mark.parametrize("shows", ["its own certificate", "no certificate"])
def test_who_is_somebody_else_is_refused(stack: ExitStack, shows: str) -> None:
    pair = Pair(stack)
    middle = Middle(pair.port, Encryption() if shows == "its own certificate" else None)
    if shows == "no certificate":
        plain = Pair(stack, is_encrypted=False)
        middle.port = plain.port
    stack.callback(middle.close)
    pair.goes_by(middle.port)
    outgoing = pair.second.send(Message((), {"said": SECRET}), 0, "t")
    assert outgoing.sent.wait(SECONDS) and outgoing.lost
    if shows == "its own certificate":
        assert pair.told.wait(SECONDS)
        sentence = f"was shown another certificate at 127.0.0.1:{middle.port} than that of the worker there"
        assert pair.refused[0][0] == 0 and pair.refused[0][1].startswith(sentence)
    assert SECRET.encode() not in middle.seen


def test_tls_is_no_proof_of_the_token(stack: ExitStack) -> None:
    pair = Pair(stack)
    other = Mailbox(1, 2, Inbox(), None, "127.0.0.1", b"another key", lambda peer: pair.place, Encryption())
    stack.callback(other.close)
    waiting = pair.inbox.ask(1, "t")
    other.send(Message(), 0, "t")
    assert not waiting.filled.wait(0.5)
    waiting = pair.inbox.ask(1, "u")
    pair.second.send(Message(), 0, "u")
    assert waiting.filled.wait(SECONDS)


def test_only_tls_1_3_is_spoken(stack: ExitStack) -> None:
    pair = Pair(stack)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(("127.0.0.1", pair.port), timeout=SECONDS) as sock, pytest.raises(OSError):  # noqa: PT011
        context.wrap_socket(sock)


def test_a_board_is_kept_in_tls(stack: ExitStack) -> None:
    boards = kept_boards(3, stack, is_encrypted=True)
    assert all(split(board.address)[0] for board in boards)
    value = b"x" * 300_000
    boards[1].set("k", value)
    assert boards[2].get("k") == value
    assert boards[0].add("n") == 1 and boards[2].add("n") == 2


HOSTS: Mapping[int, str] = {0: "a", 1: "b"}


def test_all_encrypt_or_none() -> None:
    check_wishes({0: ENCRYPTED, 1: ENCRYPTED}, HOSTS)
    check_wishes({0: PLAIN, 1: PLAIN}, HOSTS)
    with pytest.raises(
        ConfigurationError, match=r"is set on rank 1 \(host b\) and not on rank 0 \(host a\); set it on"
    ):
        check_wishes({0: PLAIN, 1: ENCRYPTED}, HOSTS)
    with pytest.raises(MissingExtra, match=r"needs cryptography on rank 1 \(host b\); install it there: pip install"):
        check_wishes({0: ENCRYPTED, 1: CANNOT}, HOSTS)
