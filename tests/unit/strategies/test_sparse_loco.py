"""SparseLoCo: what it is besides `diloco`, and its equations."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from quorate.codecs.error_feedback import ErrorFeedback
from quorate.codecs.tiled_top_k import TiledTopK
from quorate.codecs.top_k import TopK
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


def sent_of(error: Any) -> Any:
    """The published code in numpy: the 5 largest of each tile of 5 x 8, in four bins over six deviations."""
    sent = np.zeros_like(error)
    for top, left in product(range(0, 20, 5), range(0, 16, 8)):
        tile = error[top : top + 5, left : left + 8]
        least = np.sort(np.abs(tile), axis=None)[-5]
        sent[top : top + 5, left : left + 8] = np.where(np.abs(tile) >= least, tile, 0.0)
    values = sent[sent != 0]
    bins = np.clip(np.round((values - values.mean()) / (6 * values.std(ddof=1) / 4) + 2), 0, 3)
    sent[sent != 0] = [values[bins == number].mean() for number in bins]
    return sent


@pytest.mark.parametrize("size", [2, 3])
def test_it_equals_the_equations(size: int) -> None:
    """SGD on a linear loss, one matrix: e = 0.95 e + delta, sent is its code, e -= sent; the longer messages are
    shortened to the lower median, and x -= 0.6 times the mean of all messages: the rate is not in the memory."""
    periods = 5
    slopes = [(rank + 1) * torch.randn(20, 16, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]

    x, errors = np.ones((20, 16)), [np.zeros((20, 16))] * size
    for _ in range(periods):
        errors = [0.95 * error + 0.2 * slope.double().numpy() for error, slope in zip(errors, slopes, strict=True)]
        sent = [sent_of(error) for error in errors]
        errors = [error - message for error, message in zip(errors, sent, strict=True)]
        norms = [np.linalg.norm(message) for message in sent]
        median = sorted(norms)[(size - 1) // 2]
        x = x - 0.6 * sum(message * min(1.0, median / norm) for message, norm in zip(sent, norms, strict=True)) / size
    settings: Any = {"sync_every": 2, "tile": 8, "keep": 8, "dense_below": 0}
    fields: Any = {
        "model": zeros(16, 20, value=1.0),
        "rate": 0.1,
        "loss": lambda t: (t.model.weight * slopes[t.rank]).sum(),
    }
    for end in Scene("sparse-loco", size, **fields, **settings).act(lambda t: t.train(2 * periods).parameters):
        torch.testing.assert_close(end, torch.from_numpy(x).view(-1).float(), rtol=1e-4, atol=1e-5)


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
