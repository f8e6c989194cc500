"""Short messages between hosts: who may send them, and what becomes of a connection that brings no answer."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from quorate.wire.real.encryption import Encryption
from quorate.wire.real.lines import Lines
from tests.support.launching import until

KEY = b"the key of a run"


class End:
    """One worker's lines, and what has come through them."""

    def __init__(
        self, rank: int, key: bytes = KEY, patience: float = 0.2, encryption: Encryption | None = None
    ) -> None:
        self.came: list[tuple[int, dict[str, Any]]] = []
        self.closed: list[int] = []
        self.lines = Lines(
            rank,
            "127.0.0.1",
            key,
            every=0.02,
            patience=patience,
            received=lambda source, message: self.came.append((source, message)),
            closed=self.closed.append,
            step=lambda now: None,
            flush=lambda: None,
            encryption=encryption,
        )

    def begin(self, **addresses: str) -> None:
        known = {int(name.removeprefix("of_")): where for name, where in addresses.items()}
        self.lines.begin(known)

    def send(self, to: int, **message: Any) -> None:
        self.lines.do(lambda: self.lines.send(to, {"kind": "note", **message}))


@pytest.fixture
def ends() -> Iterator[Callable[..., End]]:
    with ExitStack() as stack:

        def made(*arguments: Any, **named: Any) -> End:
            end = End(*arguments, **named)
            stack.callback(end.lines.close)
            return end

        yield made


def test_messages_arrive_in_order(ends: Callable[..., End]) -> None:
    first, second = ends(0), ends(1)
    first.begin(of_1=second.lines.address)
    second.begin(of_0=first.lines.address)
    for number in range(200):
        first.send(1, number=number, text="x" * 1000)
    until(lambda: len(second.came) == 200)
    assert [(source, said["number"]) for source, said in second.came] == [(0, number) for number in range(200)]


def test_somebody_elses_certificate_is_refused_and_nobody_has_ended(
    ends: Callable[..., End], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told once; behind it the peer may well be alive."""
    first, second = ends(0, encryption=Encryption()), ends(1, encryption=Encryption())
    second.begin(of_0=first.lines.address)
    digest = first.lines.address.split(":")[1]
    first.begin(of_1=f"tls:{digest}:{second.lines.address.split(':', 2)[2]}")
    for _ in range(20):
        first.send(1)
        time.sleep(0.02)
    assert first.closed == [] and second.came == []
    sentence = "quorate: rank 0 was shown another certificate at 127.0.0.1:"
    assert capsys.readouterr().err.count(sentence) == 1
    first.lines.know(1, second.lines.address)

    def arrives() -> bool:
        first.send(1)
        return bool(second.came)

    until(arrives)


@pytest.mark.parametrize("kind", ["another key", "garbage", "an unknown rank"])
def test_strangers_are_not_heard(ends: Callable[..., End], kind: str) -> None:
    end = ends(0)
    end.begin(of_1="tcp:127.0.0.1:9")
    if kind == "garbage":
        with socket.create_connection(("127.0.0.1", int(end.lines.address.rpartition(":")[2]))) as sock:
            sock.sendall(b"\0" * 1000)
            sock.settimeout(240.0)
            with suppress(ConnectionError):  # closed with what it has not read
                while sock.recv(100):
                    pass
    else:
        rank, key = (7, KEY) if kind == "an unknown rank" else (1, b"another key")
        stranger = ends(rank, key)
        stranger.begin(of_0=end.lines.address)
        stranger.send(0)
        until(lambda: stranger.closed == [0])
    assert end.came == []


def test_an_end_is_told(ends: Callable[..., End]) -> None:
    first, second = ends(0), ends(1)
    first.begin(of_1=second.lines.address)
    second.begin(of_0=first.lines.address)
    first.send(1)
    until(lambda: bool(second.came))
    first.lines.close()
    until(lambda: second.closed == [0])


def test_where_no_answer_comes_a_connection_is_made_anew(ends: Callable[..., End]) -> None:
    """And what is sent arrives, though nobody at the old one reads any more."""
    first, second = ends(0), ends(1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        first.begin(of_1=f"tcp:127.0.0.1:{mute.getsockname()[1]}")
        first.send(1)
        second.begin(of_0=first.lines.address)
        time.sleep(0.1)
        first.lines.know(1, second.lines.address)

        def arrives() -> bool:
            first.send(1, again=True)
            return bool(second.came)

        until(arrives)
