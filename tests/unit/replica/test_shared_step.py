"""The step of a common optimizer on what workers give with momenta of their own."""

from __future__ import annotations

import pytest
import torch
from torch.optim import AdamW

from quorate.buckets.flat import layout_of
from quorate.core.vectors import Flat
from quorate.replica.shared_step import SharedOptions, shared_step, without_momentum
from quorate.replica.worker_momentum import WorkerMomentum


@pytest.mark.parametrize("share", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [1e-12, 1e-6, 1.0, 10.0])
def test_a_mean_square_stays_above_0_for_any_ratio(ratio: float, share: float) -> None:
    """Gradients have become very small, and the momentum is large still: small squares come with a large vector."""
    p = torch.nn.Parameter(torch.zeros(4096))
    optimizer = AdamW([p], lr=0.01)
    optimizer.state[p] = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(4096), "exp_avg_sq": torch.zeros(4096)}
    momentum = WorkerMomentum(optimizer=optimizer, plain=AdamW, kind="adam", size=2)
    x = torch.randn(4096, generator=torch.Generator().manual_seed(1))
    mean = Flat.zeros(layout_of([("p", p)], header=1))
    mean.segments()[0].copy_(x)
    square = ratio * float(x.square().sum())
    p.grad = x.clone()
    shared = SharedOptions(
        [{name: value for name, value in optimizer.param_groups[0].items() if name != "params"}], share, [square]
    )
    optimizer.param_groups[0].update(without_momentum(momentum, shared)[0])  # in force before, as in a replica
    with shared_step(momentum, [p], mean, shared):
        optimizer.step()
    kept = optimizer.state[p]["exp_avg_sq"]
    assert float(kept.min()) >= 0 and bool(torch.isfinite(p).all())
    if ratio >= 1.0:
        assert float(kept.sum()) == pytest.approx((1 - 0.999**share) * square, rel=1e-2)
