"""The examples of strategies of one's own: their equations, their size, and that their file is all they need."""

from __future__ import annotations

import ast
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import ConfigurationError
from quorate.launch.worker.world import World
from quorate.strategies import strategies
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import EXAMPLES
from tests.support.joined import joined

RATE, NUMEL = 0.1, 10


class Point(nn.Module):
    """Parameters that a loss draws to another target on each worker."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(NUMEL, dtype=torch.float64))


def target(rank: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def ways(size: int, steps: int, strategy: str, **settings: object) -> list[list[Tensor]]:
    """By worker: its parameters after every step, and at the end."""

    @joined
    def task(world: World) -> list[Tensor]:
        model = Point()
        plain = torch.optim.SGD(model.parameters(), lr=RATE)
        optimizer = distribute(plain, model, strategy, with_one_worker="algorithm", **settings)  # type: ignore[arg-type]
        found = []
        for _ in range(steps):
            optimizer.zero_grad()
            (0.5 * (model.x - target(world.rank)).square().sum()).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(model.x.detach().clone())
        current.here().leave()
        return [*found, model.x.detach().clone()]

    return VirtualWorld(size).run(task)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_fedprox_is_local_steps_held_near_the_newest_mean(size: int) -> None:
    found = ways(size, 12, "fedprox", sync_every=3, pull=0.2)
    begun, x = torch.zeros(NUMEL, dtype=torch.float64), [torch.zeros(NUMEL, dtype=torch.float64)] * size
    for step in range(12):
        x = [one - RATE * (one - target(rank)) for rank, one in enumerate(x)]
        x = [one + 0.2 * (begun - one) for one in x]
        if step % 3 == 2:
            begun = sum(x, torch.zeros(NUMEL, dtype=torch.float64)) / size
            x = [begun] * size
        for rank in range(size):
            torch.testing.assert_close(found[rank][step], x[rank], rtol=0, atol=1e-14)


@pytest.mark.parametrize("compress", ["top-k:density=0.1", "sign", "none"])
@pytest.mark.parametrize("size", [2, 5])
def test_gossip_memory_has_the_numbers_of_choco_sgd(size: int, compress: str) -> None:
    def trained(strategy: str, settings: dict[str, Any], world: World) -> list[Tensor]:
        model = nn.Linear(12, 10, bias=False)  # the matrix is coded
        with torch.no_grad():
            model.weight.normal_(generator=torch.Generator().manual_seed(3))
        optimizer: Any = distribute(torch.optim.SGD(model.parameters(), lr=RATE), model, strategy, **settings)
        numbers, found = torch.Generator().manual_seed(world.rank), []
        for step in range(12 + world.rank % 2):
            if step == 5 + world.rank:
                with world.evaluate():
                    pass
            optimizer.zero_grad()
            model(torch.randn(4, 12, generator=numbers)).square().mean().backward()
            optimizer.step()
            found.append(model.weight.detach().clone())
        current.here().leave()
        return [*found, model.weight.detach().clone()]

    coding = {"compress": compress} if compress == "none" else {"compress": compress, "dense_below": 100}
    small, full = (
        VirtualWorld(size).run(joined(partial(trained, name, {**settings, **coding})))
        for name, settings in (
            ("gossip-memory", {"gamma": 0.3}),
            ("choco-sgd", {"consensus_rate": 0.3, "overlap": False}),
        )
    )
    for x, y in zip(chain(*small), chain(*full), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6 if compress == "none" else 0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_one_short_file_under_a_card(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    card = ast.get_docstring(tree) or ""
    assert all(f"\n{title}:" in card for title in ("Idea", "Cost", "When it loses", "Honesty", "Paper"))
    assert len(text.splitlines()) - (tree.body[0].end_lineno or 0) <= 60


def test_the_file_of_a_strategy_is_a_name_of_it(tmp_path: Path) -> None:
    path = tmp_path / "halves.py"
    path.write_text(
        "from dataclasses import dataclass\nfrom quorate import strategies\n"
        "from quorate.core.strategy import Strategy\n\n"
        '@strategies.register("halves")\n@dataclass(frozen=True, kw_only=True)\nclass Halves(Strategy):\n'
        "    def step(self, worker):\n"
        "        worker.update(worker.means.of_gradient().wait())\n"
    )
    assert str(path) in strategies
    ends = ways(2, 3, str(path))
    assert torch.equal(ends[0][-1], ends[1][-1])
    assert strategies.registered(str(path)) == "halves"
    assert strategies.get(str(path)) is strategies.get("halves")


@pytest.mark.parametrize(("text", "said"), [(None, "there is no file"), ("x = 1\n", "registers nothing")])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "wrong.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        strategies.get(str(path))
