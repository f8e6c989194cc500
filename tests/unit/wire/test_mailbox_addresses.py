"""Mailboxes that listen at a socket file and at a port: who is here shares memory, who is elsewhere gets copies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quorate.core.contracts import Message
from quorate.wire.boxes import Inbox
from quorate.wire.real.mailbox import Mailbox, address_for
from quorate.wire.real.shared import LEAST_BYTES, is_possible
from quorate.wire.real.trust import key_of

KEY = key_of("a secret that is long enough", b"nonce")
SECONDS = 20.0
NUMEL = LEAST_BYTES


@pytest.mark.parametrize(
    ("addresses", "here", "elsewhere"),
    [
        ("tcp:10.0.0.1:5 unix:/tmp/a b/mail-0", "unix:/tmp/a b/mail-0", "tcp:10.0.0.1:5"),
        ("tcp:[::1]:5", "tcp:[::1]:5", "tcp:[::1]:5"),
        ("unix:/tmp/a b/mail-0", "unix:/tmp/a b/mail-0", "unix:/tmp/a b/mail-0"),
    ],
)
def test_who_is_here_takes_the_socket_file(addresses: str, here: str, elsewhere: str) -> None:
    assert address_for(addresses, is_here=True) == here
    assert address_for(addresses, is_here=False) == elsewhere


@pytest.mark.skipif(not is_possible(), reason="this system has no memory that processes can share")
@pytest.mark.parametrize("is_here", [True, False])
def test_only_who_is_here_shares_memory(is_here: bool, tmp_path: Path) -> None:
    inbox = Inbox()
    box = Mailbox(0, 2, inbox, str(tmp_path / "mail-0"), "127.0.0.1", KEY, lambda peer: "")
    other = Mailbox(
        1,
        2,
        Inbox(),
        str(tmp_path / "mail-1"),
        "127.0.0.1",
        KEY,
        lambda peer: address_for(box.address, is_here=is_here),
    )
    try:
        x = other.empty(NUMEL, torch.float32).fill_(1.0)
        assert other.lends(x.untyped_storage().data_ptr())
        waiting = inbox.ask(1, "t")
        other.send(Message((x,), shared=True), 0, "t")
        assert waiting.filled.wait(SECONDS) and waiting.result is not None
        (received,) = waiting.result[1].tensors
        x.fill_(2.0)
        assert received.eq(2.0 if is_here else 1.0).all()
    finally:
        other.close()
        box.close()
