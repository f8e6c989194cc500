"""`Reader`: frames that arrive in pieces of any size."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from quorate.core.contracts import Message
from quorate.wire.frames import Reader, encode

MESSAGES = [
    Message(header={"number": 0}),
    Message((torch.arange(5.0), torch.zeros(0), torch.tensor(3)), header={"number": 1}),
    Message(header={"number": 2, "text": "é" * 20_000}),
    Message((torch.arange(50_000, dtype=torch.int16).view(2, -1),), header={"number": 3}),
    Message((torch.ones(2, 2, dtype=torch.bfloat16),), header={"number": 4}),
]
BYTES = b"".join(bytes(piece) for message in MESSAGES for piece in encode(message, tag="t")) * 2


def read(reader: Reader, pieces: list[bytes]) -> list[tuple[Message, dict[str, Any]]]:
    """Return the messages in the bytes of `pieces`, each of which arrives at once."""
    messages = []
    for piece in pieces:
        while piece:
            count = min(len(reader.want), len(piece))
            reader.want[:count], piece = piece[:count], piece[count:]
            messages += list(reader.got(count))
    return messages


@pytest.mark.parametrize("largest", [1, 3, 100, 9_000, len(BYTES)])
def test_frames_in_pieces(largest: int) -> None:
    draw, pieces, rest = random.Random(largest), [], BYTES
    while rest:
        count = draw.randint(1, largest)
        pieces.append(rest[:count])
        rest = rest[count:]
    messages = read(Reader(), pieces)
    assert [envelope for _, envelope in messages] == [{"tag": "t"}] * 10
    for (message, _), sent in zip(messages, MESSAGES * 2, strict=True):
        assert message.header == sent.header
        assert len(message.tensors) == len(sent.tensors)
        assert all(x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(message.tensors, sent.tensors, strict=True))


def test_what_came_before_bytes_that_are_no_frame() -> None:
    reader = Reader()
    piece = bytes(encode(MESSAGES[0])[0]) + b"\xff" * 8
    reader.want[: len(piece)] = piece
    arrived = reader.got(len(piece))
    assert next(arrived)[0].header == {"number": 0}
    with pytest.raises(ValueError, match="announces a header of 4294967295 bytes"):
        next(arrived)


def test_a_buffer_is_small_again_after_a_long_header() -> None:
    reader = Reader()
    least = len(reader.want)
    piece = bytes(encode(MESSAGES[2])[0])
    assert not read(reader, [piece[:10_000]])
    assert len(reader.want) == len(piece) - 10_000
    assert len(read(reader, [piece[10_000:]])) == 1
    assert len(reader.want) == least
