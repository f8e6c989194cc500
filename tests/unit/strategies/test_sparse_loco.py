"""SparseLoCo: what it is besides `diloco`, and its equations."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.codecs.error_feedback import ErrorFeedback
from quorate.codecs.tiled_top_k import TiledTopK
from quorate.codecs.top_k import TopK
from quorate.core.codec import Draw
from quorate.strategies import strategies
from quorate.train.reduced import with_reduction
from tests.contract.test_compressed import Loop
from tests.support.scene import Scene, zeros

SMALL: dict[str, Any] = {"strategy": "sparse-loco", "sync_every": 6, "tile": 8, "keep": 10, "dense_below": 0}


def chosen(**raw: Any) -> Any:
    return with_reduction(strategies.get("sparse-loco"), raw, "sparse-loco")[1]


def test_its_codec_and_its_decay_are_there_unless_another_codec_is_given() -> None:
    assert chosen().codec == ErrorFeedback(TiledTopK(), 0.95)
    assert chosen().settings.clip_codes and not chosen(compress="top-k").settings.clip_codes
    assert chosen(keep=32, sync_every=8).codec == ErrorFeedback(TiledTopK(keep=32), 0.95)
    assert chosen(error_decay=0.5, dense_below=0).codec == ErrorFeedback(TiledTopK(), 0.5)
    assert chosen(compress="top-k").codec == ErrorFeedback(TopK())
    assert chosen(compress="none").codec is None
    with_one = with_reduction(strategies.get("sparse-loco"), {}, "", strategies.get("sparse-loco")(sync_every=9))
    assert with_one[0].sync_every == 9 and with_one[1].codec == ErrorFeedback(TiledTopK(), 0.95)  # type: ignore[attr-defined]


@pytest.mark.parametrize("size", [2, 3])
def test_it_equals_the_equations(size: int) -> None:
    """SGD on a linear loss, one matrix: e = 0.95 e + delta, sent is its code, e -= sent; the longer messages are
    shortened to the lower median, and x -= 0.6 times the mean of all messages: the rate is not in the memory."""
    periods, codec = 5, TiledTopK(tile=8, keep=8)
    slopes = [(rank + 1) * torch.randn(20, 16, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]

    x, errors = torch.ones(320), [torch.zeros(320)] * size
    for _ in range(periods):
        sent = []
        for rank in range(size):
            errors[rank] = 0.95 * errors[rank] + 0.2 * slopes[rank].view(-1) / size
            code, _ = codec.encode(errors[rank], ((20, 16),), {}, Draw())
            sent.append(codec.decode(code, ((20, 16),), Draw()))
            errors[rank] = errors[rank] - sent[-1]
        norms = [float(message.norm()) for message in sent]
        median = sorted(norms)[(size - 1) // 2]
        clipped = [message * min(1.0, median / norm) for message, norm in zip(sent, norms, strict=True)]
        x = x - 0.6 * sum(clipped, torch.zeros(320))
    settings: Any = {"sync_every": 2, "tile": 8, "keep": 8, "dense_below": 0}
    fields: Any = {
        "model": zeros(16, 20, value=1.0),
        "rate": 0.1,
        "loss": lambda t: (t.model.weight * slopes[t.rank]).sum(),
    }
    for end in Scene("sparse-loco", size, **fields, **settings).act(lambda t: t.train(2 * periods).parameters):
        torch.testing.assert_close(end, x, rtol=1e-4, atol=1e-5)


def test_without_a_codec_it_is_local_sgd() -> None:
    bare, local = (
        Loop({"strategy": name, "sync_every": 6, **more}).run()[1]
        for name, more in (("sparse-loco", {"compress": "none", "outer_rate": 1.0}), ("local-sgd", {}))
    )
    torch.testing.assert_close(bare[0], local[0], rtol=1e-4, atol=1e-5)


def test_an_ordinary_loop_learns_nearly_as_much() -> None:
    dense = Loop({"strategy": "diloco", "sync_every": 6, "outer_momentum": 0.5}).run()[0]
    loss, replicas = Loop(SMALL).run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * dense + 0.02, f"{loss:.4f}, dense {dense:.4f}"
