"""What is pure gives the numbers of the CPU on a GPU: codecs, aggregation rules, optimizers for large batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.aggregation import rules
from quorate.aggregation.rule import aggregated
from quorate.codecs import codecs
from quorate.core.codec import Draw, Memory
from quorate.optim import LAMB, LARS
from tests.support.on_gpu import GPU, needs_gpu

pytestmark = [pytest.mark.gpu, needs_gpu]

SHAPES = ((96, 40), (40,), (7, 3, 11))
NUMEL = sum(torch.Size(shape).numel() for shape in SHAPES)


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", list(codecs))
def test_a_codec(name: str) -> None:
    """Those that draw draw other numbers there, and are held against the vector: their error is no larger."""
    codec: Any = codecs.get(name)()
    x = noise(0, NUMEL)
    memory: Memory = {each: torch.zeros(NUMEL) for each in codec.memories}

    def coded(x: Tensor, seed: int = 0) -> Tensor:
        there = {key: value.to(x.device) for key, value in memory.items()}
        code, kept = codec.encode(x, SHAPES, there, Draw(seed))
        assert code.device == x.device and all(one.device == x.device for one in kept.values())
        found: Tensor = codec.decode(code, SHAPES, Draw(seed))
        assert found.device == x.device
        return found.cpu()

    here, there = coded(x), coded(x.to(GPU))
    if torch.equal(here, coded(x, 1)):
        torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)
    else:
        assert float((there - x).norm()) < 1.2 * float((here - x).norm()) + 1e-6


@pytest.mark.parametrize("name", list(rules))
def test_a_rule(name: str) -> None:
    rule = rules.get(name)(f=0 if name == "mean" else 1)
    rows = noise(1, max(9, rule.least), 1000)
    if name == "majority":
        rows[1:] = rows[0]
    centre = torch.zeros(1000) if rule.has_centre else None
    here, there = (
        aggregated(rule, rows, centre),
        aggregated(rule, rows.to(GPU), None if centre is None else centre.to(GPU)),
    )
    assert there.device.type == GPU.type
    torch.testing.assert_close(there.cpu(), here, rtol=1e-4, atol=1e-5)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "lars": lambda ps: LARS(ps, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "lamb": lambda ps: LAMB(ps, lr=0.01, weight_decay=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer(name: str) -> None:
    ends = []
    for device in (torch.device("cpu"), GPU):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        optimizer = OPTIMIZERS[name](model.parameters())
        for step in range(5):
            optimizer.zero_grad()
            model(noise(step, 6, 8).to(device)).square().mean().backward()
            optimizer.step()
        ends.append([p.detach().cpu() for p in model.parameters()])
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-6)
