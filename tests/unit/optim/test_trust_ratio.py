"""Trust ratios against values worked out by hand, and norms that float16 has no room for."""

from __future__ import annotations

import pytest
import torch

from quorate.optim.by_layers import lamb_ratio, lars_ratio, norm_of


@pytest.mark.parametrize(
    ("weight", "gradient", "coefficient", "decay", "eps", "ratio"),
    [
        (2.0, 4.0, 1.0, 0.0, 0.0, 0.5),
        (2.0, 4.0, 0.001, 0.0, 0.0, 0.0005),
        (2.0, 4.0, 1.0, 0.5, 0.0, 0.4),  # 2 / (4 + 0.5 x 2)
        (2.0, 4.0, 1.0, 0.5, 3.0, 0.25),
        (0.0, 4.0, 0.001, 0.5, 0.0, 1.0),
        (2.0, 0.0, 0.001, 0.5, 0.0, 1.0),  # also with decay
        (0.0, 0.0, 0.001, 0.5, 1e-9, 1.0),
    ],
)
def test_lars(weight: float, gradient: float, coefficient: float, decay: float, eps: float, ratio: float) -> None:
    norms = torch.tensor(weight), torch.tensor(gradient)
    computed = lars_ratio(*norms, coefficient=coefficient, weight_decay=decay, eps=eps)
    assert computed.dtype == torch.float32
    assert float(computed) == pytest.approx(ratio, rel=1e-6)


@pytest.mark.parametrize(
    ("weight", "update", "bounds", "ratio"),
    [
        (2.0, 4.0, None, 0.5),
        (20.0, 4.0, (0.01, 10.0), 2.5),
        (0.001, 4.0, (0.01, 10.0), 0.0025),
        (2.0, 4.0, (0.01, 10.0), 0.5),
        (0.0, 4.0, (0.01, 10.0), 1.0),
        (2.0, 0.0, None, 1.0),
    ],
)
def test_lamb(weight: float, update: float, bounds: tuple[float, float] | None, ratio: float) -> None:
    assert float(lamb_ratio(torch.tensor(weight), torch.tensor(update), bounds=bounds)) == pytest.approx(ratio)


def test_a_norm_is_float32_or_wider() -> None:
    half = torch.full((10_000,), 400.0, dtype=torch.float16)  # a square is 160,000, and float16 ends at 65,504
    assert norm_of(half).dtype == torch.float32
    assert float(norm_of(half)) == pytest.approx(40_000.0)
    assert norm_of(torch.ones(4, dtype=torch.float64)).dtype == torch.float64
    assert float(norm_of(torch.ones(0, 3))) == 0.0
