"""The bytes of numbers that a process writes into messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quorate.core.contracts import Message
from quorate.wire.real import mailbox


@contextmanager
def payload() -> Iterator[Counter[str]]:
    """Count, inside, the bytes of tensors in messages to others, by tag; without texts, which are `all_gather` and
    `scatter` of bytes, and without places in shared memory."""
    encode, counts = mailbox.encode, Counter[str]()

    def counted(message: Message, place: Any = None, **envelope: Any) -> list[memoryview]:
        head, *tensors = encode(message, place, **envelope)
        is_text = str(message.header.get("operation", "")).startswith(("all_gather torch.uint8", "scatter"))
        if not is_text:
            counts[envelope["tag"]] += sum(map(len, tensors))
        return [head, *tensors]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mailbox, "encode", counted)
        yield counts
    for tag in [tag for tag, nbytes in counts.items() if not nbytes]:
        del counts[tag]


@contextmanager
def tensors_sent() -> Iterator[Counter[str]]:
    """Count, inside, the bytes of all tensors in messages to others, by operation, wherever they lie."""
    send, counts = mailbox.Mailbox.send, Counter[str]()

    def counted(box: mailbox.Mailbox, message: Message, to: int, tag: str, *more: Any) -> Any:
        if nbytes := sum(x.nbytes for x in message.tensors):
            counts[str(message.header.get("operation", tag))] += nbytes
        return send(box, message, to, tag, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mailbox.Mailbox, "send", counted)
        yield counts
