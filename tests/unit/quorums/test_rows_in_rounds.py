"""Rows of sparse gradients in rounds: beside the same training with dense gradients, the parameters are the same."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import NotFinite
from tests.support.scene import Scene, Trainer, parameters
from tests.support.tables import ROWS, WIDTH, Bags, of_rank
from tests.unit.rounds.test_silence import let_stand_still, small_logs, stand_still

SGD = partial(torch.optim.SGD, lr=0.05)
LATE = {"wait_for": 1, "on_death": "continue"}


def pause(rank: int, step: int) -> float:
    return 0.02 * (1 + 3 * rank * (step % 3))


def scene(size: int = 3, *, sparse: bool = True, **more: Any) -> Scene:
    fields: dict[str, Any] = {"make": SGD, "steps": 8, "loss": of_rank, "pause": pause, "settings": LATE}
    return Scene("quorum", size, model=partial(Bags, sparse=sparse), **(fields | more))


def assert_like_dense(size: int = 3, **more: Any) -> None:
    ends = [scene(size, sparse=sparse, **more).end() for sparse in (True, False)]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"late": "drop"},
        {"late": "replace"},
        {"late_weight": "falling"},
        {"divide_by": "arrived"},
        {"clip_norm": 0.05},
        {"compress": "top-k", "density": 1.0, "dense_below": 0},
        {"max_staleness": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [2, 3])
def test_rows_are_treated_as_dense_gradients_are(settings: dict[str, Any], size: int) -> None:
    assert_like_dense(size, settings={**LATE, **settings})


@pytest.mark.parametrize("size", [2, 3])
def test_momentum_of_the_rest_stays_with_the_workers(size: int) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        *tables, weight, bias = parameters
        return torch.optim.SGD([{"params": tables}, {"params": [weight, bias], "momentum": 0.9}], lr=0.05)

    assert_like_dense(size, make=make)


def weighed(trainer: Trainer) -> Tensor:
    trainer.optimizer.weight(1 + 2 * trainer.rank, full=3)
    return of_rank(trainer)


def test_contributions_have_weights() -> None:
    assert_like_dense(loss=weighed)


def test_workers_may_touch_no_row_or_end_earlier() -> None:
    def loss(trainer: Trainer) -> Tensor:
        if trainer.rank == 1 and trainer.step % 2:
            return trainer.model.linear(torch.ones(2, 3, dtype=torch.float64)).square().mean()
        return of_rank(trainer)

    assert_like_dense(loss=loss, steps=[3, 6, 8], rests=[2])


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 2), (2, 3)])
def test_pending_rows_are_in_checkpoints(before: int, after: int, tmp_path: Path) -> None:
    ends = []
    for sparse in (True, False):
        kept = scene(before, sparse=sparse, root=tmp_path / str(sparse), saves=[4], steps=5)
        kept.run(parameters)
        ends.append(kept.but(size=after, loads=True, steps=8).end())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sparse", [True, False])
def test_pending_gradients_of_the_other_kind_are_refused(sparse: bool, tmp_path: Path) -> None:
    kept = scene(3, sparse=sparse, root=tmp_path, saves=[4], steps=5)
    kept.run(parameters)
    other = scene(3, sparse=not sparse, root=tmp_path, loads=True)
    errors = [str(outcome.error) for outcome in other.outcomes() if outcome.error is not None]
    assert any("another setting sparse=" in error for error in errors)


def test_a_row_that_is_not_finite_is_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    def loss(trainer: Trainer) -> Tensor:
        words = trainer.model.words.weight
        if (trainer.step, trainer.rank) == (1, 1):
            words.register_hook(lambda grad: grad * math.nan)
        return of_rank(trainer)

    def task(policy: str) -> Scene:
        return scene(2, loss=loss, steps=3, settings={**LATE, "on_nonfinite": policy})

    assert bool(torch.isfinite(task("skip").end()).all())
    assert "first in words.weight" in capfd.readouterr().err
    assert any(isinstance(outcome.error, NotFinite) for outcome in task("raise").outcomes())


def test_real_processes_add_late_rows() -> None:
    settings = {"wait_for": "all", "on_death": "continue", "grace": 20.0}
    assert torch.equal(scene(2, settings=settings).end(real=True), scene(2, settings=settings).end())


@pytest.mark.parametrize("late", ["carry", "drop"])
def test_rows_that_no_round_takes_are_discarded(late: str) -> None:
    settings = {**LATE, "late": late, "max_staleness": 4}
    seen = scene(2, pause=lambda rank, _: 0.02 + 0.07 * rank, steps=[60, 20], settings=settings).run()
    for trainer in seen:
        assert all(len(rows) <= 10 for rows in trainer.worker._rounds._rows.held.by_rank.values())


class Twins(nn.Module):
    """Two equal tables, of which one has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.sparse = nn.Embedding(ROWS, WIDTH, sparse=True, dtype=torch.float64)
        self.dense = nn.Embedding.from_pretrained(self.sparse.weight.detach().clone(), freeze=False)

    def forward(self, indices: Tensor) -> Tensor:
        return (self.sparse(indices).sum(1) - 1).square() + (self.dense(indices).sum(1) - 1).square()


def tables(trainer: Trainer) -> tuple[Tensor, Tensor]:
    return trainer.model.sparse.weight.detach(), trainer.model.dense.weight.detach()


DEATH = {"wait_for": 2, "grace": 0.2, "patience": 0.5}


def test_survivors_add_the_same_rows_of_a_worker_that_dies() -> None:
    """Wherever it dies, both tables of all survivors are the same: no contribution has lost its rows."""
    for death in range(5, 60, 9):
        fields: dict[str, Any] = {"model": Twins, "make": SGD, "loss": of_rank, "pause": pause, "settings": DEATH}
        ends = Scene("quorum", 3, deaths={2: death}, steps=6, **fields).survivors(tables)
        (sparse, dense), (other, _) = ends[0], ends[1]
        assert torch.equal(sparse, other)
        torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-12)


def test_a_table_freezes_and_thaws() -> None:
    def before(trainer: Trainer) -> None:
        trainer.model.words.weight.requires_grad_(trainer.step not in (3, 4))

    assert_like_dense(before=before)


def test_a_worker_that_becomes_a_copy_of_another_one_passes_over_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    let_stand_still(monkeypatch)
    small_logs(monkeypatch)

    def stuck(rank: int, step: int) -> float:
        if (rank, step) == (1, 5):
            stand_still(1.0)
        return 1.0 if (rank, step) == (1, 5) else 0.01

    trainers = scene(pause=stuck, steps=[120, 30, 120], settings={**LATE, "patience": 0.1}).run()
    assert trainers[1].worker._rounds.rounds._jumps > 0
    ends = [trainer.parameters for trainer in trainers]
    assert all(torch.equal(end, ends[0]) for end in ends)
