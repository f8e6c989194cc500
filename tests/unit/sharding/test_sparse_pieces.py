"""Sparse attention of workers with pieces of a sequence: the numbers of one process, and fewer bytes than dense."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import quorate
from quorate.attention import BigBird, ByFunction, Dense, Longformer, Pattern, Window
from quorate.core.errors import ConfigurationError
from quorate.sharding.sequence import InPieces
from quorate.sharding.tensor.activations import Together
from quorate.sharding.traffic import Traffic
from quorate.wire import current
from quorate.wire.group import GroupWire
from quorate.wire.metered import Metered
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

HEADS, KEY_HEADS, WIDTH = 4, 2, 6


def _no_diagonal(head: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return (rows - columns) % 3 == head % 3


PATTERNS: dict[str, Pattern] = {
    "window": Window(block=4),
    "bigbird": BigBird(block=4, random=2),
    "longformer": Longformer(block=8, global_blocks=(1,)),
    "function": ByFunction(block=4, function=_no_diagonal),
}


def drawn(length: int, batch: int = 2) -> list[Tensor]:
    """Query, key, value and the gradient of the output, of the full sequence."""
    draw = torch.Generator().manual_seed(length)
    return [
        torch.randn(batch, heads, length, WIDTH, generator=draw, dtype=torch.float64)
        for heads in (HEADS, KEY_HEADS, KEY_HEADS, HEADS)
    ]


def attended(tensors: list[Tensor], gradient: Tensor, **call: Any) -> list[Tensor]:
    """The output and the gradients of query, key and value."""
    qkv = [x.clone().requires_grad_() for x in tensors]
    output = quorate.sequence_attention(*qkv, enable_gqa=True, scale=0.3, layer=2, **call)
    output.backward(gradient)
    return [output.detach(), *(x.grad for x in qkv)]  # type: ignore[list-item]


def on_workers(
    size: int, length: int, batch: int = 2, *, dtype: torch.dtype = torch.float64, **call: Any
) -> tuple[list[Tensor], list[int]]:
    """What `size` workers compute together, and the bytes that each has sent forward and backward."""
    *tensors, gradient = (x.to(dtype) for x in drawn(length, batch))

    def task(world: Any) -> tuple[list[Tensor], int]:
        place = current.here()
        wire = Metered(place.wire)
        here = place.context(InPieces)
        here.together = Together(GroupWire(wire, range(size)), Traffic(), None)  # type: ignore[arg-type]
        pieces = [quorate.sequence_piece(x, 2) for x in (*tensors, gradient)]
        before = wire.meter.total_out
        results = attended(pieces[:3], pieces[3], **call)
        return results, wire.meter.total_out - before

    ends = VirtualWorld(size).run(joined(task))
    return [torch.cat(parts, 2) for parts in zip(*(end[0] for end in ends), strict=True)], [end[1] for end in ends]


@pytest.mark.parametrize("kind", ["none", "padding", "documents"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", PATTERNS)
def test_workers_compute_what_one_process_does(name: str, size: int, is_causal: bool, kind: str) -> None:
    length, call = 53, {"pattern": PATTERNS[name], "is_causal": is_causal}
    if kind == "padding":
        call["attn_mask"] = (torch.arange(length) < torch.tensor([[length], [40]])).view(2, 1, 1, length)
    if kind == "documents":
        call["documents"] = [20, 33]
    *tensors, gradient = drawn(length)
    wanted = attended(tensors, gradient, **call)
    results, _ = on_workers(size, length, by="ring", **call)
    assert max((a - b).abs().max().item() for a, b in zip(results, wanted, strict=True)) < 1e-12
    if size == 2:
        by_heads, _ = on_workers(size, length, by="heads", **call)
        assert max((a - b).abs().max().item() for a, b in zip(by_heads, wanted, strict=True)) < 1e-12


def _same_bits(pattern: Pattern | None, dtype: torch.dtype) -> list[bool]:
    """Whether output and gradients of query, key and value have the same bits on one to four workers."""
    call: dict[str, Any] = {"is_causal": True} | ({} if pattern is None else {"pattern": pattern})
    results = [on_workers(size, 96, by="ring", dtype=dtype, **call)[0] for size in (1, 2, 3, 4)]
    return [all(torch.equal(x, tensors[0]) for x in tensors) for tensors in zip(*results, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PATTERNS)
def test_bits_do_not_depend_on_the_number_of_workers(name: str, dtype: torch.dtype) -> None:
    """Those of outputs, and of all that has the same bits in the dense ring: a query has all its keys on one worker."""
    output, *gradients = _same_bits(PATTERNS[name], dtype)
    assert output and gradients[0]
    assert all(sparse >= dense for sparse, dense in zip([output, *gradients], _same_bits(None, dtype), strict=True))


@pytest.mark.parametrize("size", [2, 4])
def test_blocks_of_other_documents_are_not_sent(size: int) -> None:
    length, pattern = 96, Dense(block=4)
    _, sent = on_workers(size, length, by="ring", pattern=pattern, documents=[24] * 4)
    assert sum(sent) == 0, "each document is on one worker"
    _, sent = on_workers(size, length, by="ring", pattern=pattern, documents=[length])
    keys = 2 * 2 * KEY_HEADS * length * WIDTH * 8
    assert sum(sent) == pytest.approx(2 * (size - 1) * keys, rel=0.05)


def test_bytes_fall_with_the_density() -> None:
    """A window of an eighth and one global block: at most 0.15 of the bytes of the dense ring, on four workers."""
    size, length, block = 4, 512, 8
    pattern = Longformer(block=block, width=length // block // 8)
    _, sent = on_workers(size, length, 1, by="ring", is_causal=True, pattern=pattern)
    keys = KEY_HEADS * length * WIDTH * 8
    dense = 2 * (size - 1) * keys + 2 * (2 * size - 1) * keys  # see `sequence_attention`; tests with processes count it
    # Seven blocks of the worker before, and the global one, of keys and of values, there and back.
    assert sum(sent) == pytest.approx(2 * 2 * (size - 1) * 8 * block * keys / length, rel=0.02)
    assert sum(sent) <= 0.15 * dense


def test_what_is_refused() -> None:
    x = torch.zeros(1, 4, 8, 2)
    with pytest.raises(ConfigurationError, match='documents need a pattern; pass pattern="dense"'):
        quorate.sequence_attention(x, x, x, documents=[4, 4])
    with pytest.raises(ConfigurationError, match="supports masks of padding with a pattern"):
        on_workers(2, 53, by="ring", pattern="window:block=4", attn_mask=torch.ones(53, 53, dtype=torch.bool))
