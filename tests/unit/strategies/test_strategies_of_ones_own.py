"""The examples of strategies of one's own: their equations, their size, and that their file is all they need."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import ConfigurationError
from quorate.strategies import strategies
from tests.architecture.tree import ROOT
from tests.support.every_strategy import EXAMPLES
from tests.support.scene import Scene, Trainer, note, squares

RATE, NUMEL = 0.1, 10


class Point(nn.Module):
    """Parameters that a loss draws to another target on each worker."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(NUMEL, dtype=torch.float64))


def target(rank: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def ways(size: int, steps: int, strategy: str, **settings: Any) -> list[list[Tensor]]:
    """By worker: its parameters after every step, and at the end."""

    def loss(trainer: Trainer) -> Tensor:
        return 0.5 * (trainer.model.x - target(trainer.rank)).square().sum()

    scene = Scene(strategy, size, model=Point, rate=RATE, loss=loss, steps=steps, after=note, **settings)
    return scene.run(lambda trainer: [*trainer.seen, trainer.parameters])


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
    def trained(strategy: str, **settings: Any) -> list[Tensor]:
        """Of a matrix, which is coded."""

        def before(trainer: Trainer) -> None:
            if trainer.step == 5 + trainer.rank:
                with trainer.world.evaluate():
                    pass

        steps = [12 + rank % 2 for rank in range(size)]
        matrix = {"model": lambda: nn.Linear(12, 10, bias=False), "rate": RATE, "loss": squares}
        ends = Scene(strategy, size, steps=steps, before=before, after=note, **matrix, **settings).run()
        return [x for end in ends for x in (*end.seen, end.parameters)]

    coding = {"compress": compress} if compress == "none" else {"compress": compress, "dense_below": 100}
    small = trained("gossip-memory", gamma=0.3, **coding)
    full = trained("choco-sgd", consensus_rate=0.3, overlap=False, **coding)
    for x, y in zip(small, full, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-6 if compress == "none" else 0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_one_short_file_under_a_card(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    card = ast.get_docstring(tree) or ""
    assert all(f"\n{title}:" in card for title in ("Idea", "Cost", "When it loses", "Honesty", "Paper"))
    assert len(text.splitlines()) - (tree.body[0].end_lineno or 0) <= 60


def test_the_guide_shows_the_whole_of_gossip_with_memory() -> None:
    card, code = (ROOT / "examples" / "strategies" / "gossip_memory.py").read_text(encoding="utf-8").split('"""\n\n', 1)
    assert card.startswith('"""')
    guide = (ROOT / "docs" / "howto" / "add-a-strategy.md").read_text(encoding="utf-8")
    assert f"```python\n{code}```" in guide


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
