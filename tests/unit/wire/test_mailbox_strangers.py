"""Mailboxes that listen on TCP: who has not the token is refused at once, and garbage costs nothing."""

from __future__ import annotations

import json
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from quorate.core.contracts import Message
from quorate.core.errors import ConfigurationError
from quorate.wire.boxes import Inbox
from quorate.wire.frames import BYTES_LIMIT, HEADER_LIMIT
from quorate.wire.real import arriving
from quorate.wire.real.arriving import MAC, NONCE, proof
from quorate.wire.real.mailbox import Mailbox
from quorate.wire.real.trust import check_token, is_signed, key_of, sign, signed

KEY = key_of("a secret that is long enough", b"nonce")
SECONDS = 20.0
REFUSED = 1.0
"""Seconds in which a stranger is to be refused; the socket's own limit."""


class Listening:
    """A mailbox on TCP, rank 0 of two, and what came to it."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.box = Mailbox(0, 2, self.inbox, None, "127.0.0.1", KEY, lambda peer: "")
        self.place = ("127.0.0.1", int(self.box.address.rpartition(":")[2]))

    def knock(self) -> tuple[socket.socket, bytes]:
        """A connection, and the nonce it got."""
        stream = socket.create_connection(self.place, timeout=SECONDS)
        return stream, _exactly(stream, NONCE)

    def enter(self) -> socket.socket:
        """A connection that has proved itself."""
        stream, nonce = self.knock()
        stream.sendall(proof(KEY, nonce))
        return stream

    def still_works(self) -> None:
        """Another worker's message comes through."""
        other = Mailbox(1, 2, Inbox(), None, "127.0.0.1", KEY, lambda peer: self.box.address)
        try:
            waiting = self.inbox.ask(1, "t")
            other.send(Message((torch.arange(3.0),), {"a": 1}), 0, "t")
            assert waiting.filled.wait(SECONDS) and waiting.result is not None
            assert waiting.result[1].tensors[0].tolist() == [0.0, 1.0, 2.0]
        finally:
            other.close()


@pytest.fixture
def listening() -> Iterator[Listening]:
    listening = Listening()
    yield listening
    listening.box.close()


def _exactly(stream: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        piece = stream.recv(count - len(got))
        assert piece
        got += piece
    return got


def is_refused(stream: socket.socket, seconds: float = REFUSED) -> bool:
    """Whether the other side closes the connection within so many seconds."""
    stream.settimeout(seconds)
    try:
        return stream.recv(1) == b""
    except ConnectionResetError:
        return True


def frame(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("!I", len(text)) + text


def test_a_wrong_token_is_refused(listening: Listening) -> None:
    stream, nonce = listening.knock()
    with stream:
        stream.sendall(proof(key_of("another secret, also long", b"nonce"), nonce))
        assert is_refused(stream)
    listening.still_works()


def test_no_token_is_refused_and_nothing_it_sends_is_read(listening: Listening) -> None:
    waiting = listening.inbox.ask(1, "t")
    stream, _ = listening.knock()
    with stream:
        stream.sendall(frame({"e": {"source": 1, "tag": "t"}, "h": {}, "x": []}).ljust(MAC + 100, b" "))
        assert is_refused(stream)
    assert not waiting.filled.is_open


def test_a_proof_that_was_overheard_is_refused(listening: Listening) -> None:
    first, nonce = listening.knock()
    overheard = proof(KEY, nonce)
    with first:
        first.sendall(overheard + frame({"e": {"source": 1, "tag": "t"}, "h": {}, "x": []}))
        waiting = listening.inbox.ask(1, "t")
        assert waiting.filled.wait(SECONDS)
        second, other = listening.knock()
        with second:
            assert other != nonce
            second.sendall(overheard)
            assert is_refused(second)


ENVELOPE = {"source": 1, "tag": "t"}
FRAMES = {
    "no header": struct.pack("!I", 0),
    "a header too long": struct.pack("!I", HEADER_LIMIT + 1),
    "no JSON": frame(b"\xff" * 40),
    "JSON without end": frame(b"[" * 100_000),
    "a list": frame([1, 2]),
    "parts missing": frame({"e": ENVELOPE}),
    "no object": frame({"e": [], "h": {}, "x": []}),
    "no source": frame({"e": {"tag": "t"}, "h": {}, "x": []}),
    "a source that is none": frame({"e": {"source": 2, "tag": "t"}, "h": {}, "x": []}),
    "a source that is not a number": frame({"e": {"source": [1], "tag": "t"}, "h": {}, "x": []}),
    "an unknown dtype": frame({"e": ENVELOPE, "h": {}, "x": [["object", [1]]]}),
    "a dtype that is not a name": frame({"e": ENVELOPE, "h": {}, "x": [[["float32"], [1]]]}),
    "a dtype without numbers": frame({"e": ENVELOPE, "h": {}, "x": [["quint8", [4]]]}),
    "a negative shape": frame({"e": ENVELOPE, "h": {}, "x": [["float32", [-1]]]}),
    "a shape of text": frame({"e": ENVELOPE, "h": {}, "x": [["float32", "33"]]}),
    "a shape of halves": frame({"e": ENVELOPE, "h": {}, "x": [["float32", [1.5]]]}),
    "a huge shape": frame({"e": ENVELOPE, "h": {}, "x": [["float32", [2**40]]]}),
    "a shape beyond all numbers": frame({"e": ENVELOPE, "h": {}, "x": [["float32", [2**40, 2**40, 2**40]]]}),
    "much in all": frame({"e": ENVELOPE, "h": {}, "x": [["uint8", [BYTES_LIMIT // 2 + 1]]] * 2}),
    "shared memory": frame({"e": ENVELOPE, "h": {}, "x": [["float32", [2], [0, 0, 100, 0]]]}),
}


@pytest.mark.parametrize("garbage", FRAMES.values(), ids=FRAMES)
def test_garbage_ends_its_own_connection_alone(listening: Listening, garbage: bytes) -> None:
    with listening.enter() as stream:
        stream.sendall(garbage)
        assert is_refused(stream)
    listening.still_works()


def test_what_was_announced_takes_no_memory_before_it_comes(listening: Listening) -> None:
    listening.still_works()
    size = min(BYTES_LIMIT // 4, 2**30)
    with ExitStack() as stack:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(3):
            stream = stack.enter_context(listening.enter())
            stream.sendall(frame({"e": ENVELOPE, "h": {}, "x": [["uint8", [size]]]}) + b"x" * 100)
        listening.still_works()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 64 * 1024, "kilobytes; three times a gigabyte was announced"


def test_connections_that_say_nothing_are_closed(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    silent, _ = listening.knock()
    with silent, listening.enter() as proved:
        monkeypatch.setattr(arriving, "PROOF_SECONDS", 0.0)
        assert is_refused(silent, SECONDS)
        proved.sendall(frame({"e": ENVELOPE, "h": {}, "x": []}))
        assert listening.inbox.ask(1, "t").filled.wait(SECONDS)


def test_of_many_strangers_the_oldest_go(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arriving, "MOST_UNPROVEN", 3)
    with ExitStack() as stack:
        knocked = [stack.enter_context(listening.knock()[0]) for _ in range(6)]
        assert all(is_refused(stream, SECONDS) for stream in knocked[:3])
        listening.still_works()


def test_what_is_signed_is_so_for_one_rank_one_purpose_and_one_run() -> None:
    written = sign(KEY, "mail", 1, "tcp:10.0.0.1:5")
    assert signed(written) == "tcp:10.0.0.1:5" and is_signed(KEY, "mail", 1, written)
    assert not is_signed(KEY, "mail", 2, written)
    assert not is_signed(KEY, "place", 1, written)
    assert not is_signed(key_of("a secret that is long enough", b"other nonce"), "mail", 1, written)
    assert not is_signed(KEY, "mail", 1, written.replace(b"10.0.0.1", b"10.0.0.9"))
    unsigned = sign(b"", "mail", 1, "x")
    assert signed(unsigned) == "x"
    assert not is_signed(KEY, "mail", 1, unsigned) and not is_signed(b"", "mail", 1, unsigned)


@pytest.mark.parametrize(
    ("tokens", "sentence"),
    [
        (["", ""], "rank 0 has no token, and the workers are on several machines (a and b), where one is required"),
        (["a secret that is long", ""], r"rank 1 \(host b\) and rank 0 \(host a\) have different tokens"),
        (["a secret that is long", "A secret that is long"], "have different tokens; set QUORATE_TOKEN to the same"),
        (["short", "short"], "QUORATE_TOKEN has 5 characters; between machines it has 16 at least"),
    ],
)
def test_between_machines_the_tokens_are_equal(tokens: list[str], sentence: str) -> None:
    keys = [key_of(token, b"n") if token else b"" for token in tokens]
    places = [sign(key, "place", rank, f"{'ab'[rank]}|boot") for rank, key in enumerate(keys)]
    with pytest.raises(ConfigurationError, match=sentence.replace("(a and b)", r"\(a and b\)")):
        check_token(tokens[0], b"n", 0, places, {0: "a", 1: "b"})


def test_equal_tokens_give_one_key() -> None:
    token = "a secret that is long"
    places = [sign(key_of(token, b"n"), "place", rank, f"{rank}|boot") for rank in range(3)]
    assert check_token(token, b"n", 2, places, {0: "a", 1: "b", 2: "c"}) == key_of(token, b"n")
