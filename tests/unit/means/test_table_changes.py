"""Means of parameters beside sparse tables: the rows that steps have touched give the means of full tables."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.means.table_changes import TableChanges
from tests.support.scene import Scene, Trainer, parameters
from tests.support.tables import ROWS, WIDTH, Bags, of_rank

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad

SGD = partial(torch.optim.SGD, lr=0.05)


def scene(size: int = 3, *, sparse: bool = True, strategy: str = "local-sgd", **more: Any) -> Scene:
    fields: dict[str, Any] = {"make": SGD, "steps": 8, "loss": of_rank, "settings": {"sync_every": 3}}
    return Scene(strategy, size, model=partial(Bags, sparse=sparse), **(fields | more))


def assert_like_dense(size: int = 3, **more: Any) -> None:
    sparse, dense = ([*scene(size, sparse=sparse, **more).survivors(parameters).values()] for sparse in (True, False))
    assert all(torch.equal(end, sparse[0]) for end in sparse)
    torch.testing.assert_close(sparse[0], dense[0], rtol=0, atol=1e-9)


SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "reset": {"momentum": "reset"},
    "average": {"momentum": "average"},
    "seconds": {"sync_every": "0.2s"},
    "ring": {"reduce": "ring"},
}


@pytest.mark.covering(("name", "size"), product(SETTINGS, [1, 2, 3]))
def test_means_are_those_of_full_tables(name: str, size: int) -> None:
    pause = lambda rank, step: 0.02 * (1 + rank)  # noqa: E731
    assert_like_dense(size, settings={"sync_every": 3, **SETTINGS[name]}, pause=pause)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("adaptive-local-sgd", {"sync_every": 3, "least": 3, "most": 3}),
        ("post-local-sgd", {"sync_every": 2, "after": 3}),
        ("post-local-sgd", {"sync_every": 3, "after": 0}),
    ],
)
@pytest.mark.parametrize("size", [2, 3])
def test_other_strategies_of_local_steps(size: int, strategy: str, settings: dict[str, Any]) -> None:
    assert_like_dense(size, strategy=strategy, settings=settings, steps=[8, 8, 6][:size], rests=[4])


class Unknown(torch.optim.SGD):
    """An optimizer that might write other rows as well."""


def test_steps_of_an_unknown_optimizer_give_means_of_full_tables() -> None:
    make = partial(Unknown, lr=0.05)
    assert_like_dense(make=make, strategy="post-local-sgd", settings={"sync_every": 2, "after": 3}, rests=[1, 5])


@pytest.mark.parametrize("momentum", ["keep", "reset"])
def test_state_of_tables_is_of_each_worker(momentum: str) -> None:
    make = partial(torch.optim.Adagrad, lr=0.05)
    assert_like_dense(make=make, settings={"sync_every": 2, "momentum": momentum})


def test_pauses_workers_that_end_earlier_and_workers_without_rows() -> None:
    def loss(trainer: Trainer) -> Tensor:
        if trainer.rank == 1 and trainer.step % 2:
            return trainer.model.linear(torch.ones(2, 3, dtype=torch.float64)).square().mean()
        return of_rank(trainer)

    assert_like_dense(loss=loss, steps=[3, 7, 9], rests=[2])


@pytest.mark.parametrize(("before", "after"), [(3, 3), (3, 2)])
def test_a_training_is_resumed_between_means(before: int, after: int, tmp_path: Path) -> None:
    ends = []
    for sparse in (True, False):
        kept = scene(before, sparse=sparse, root=tmp_path / str(sparse), saves=[5], steps=5)
        kept.run(parameters)
        ends.append(kept.but(size=after, loads=True, steps=8).end())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


def test_writes_of_the_script_into_a_table_count() -> None:
    """As rows that are scaled behind a step: then the next mean is of full tables."""

    def scaled(trainer: Trainer) -> None:
        with torch.no_grad():
            trainer.model.words.weight[3 + trainer.rank].mul_(0.5 + 0.1 * trainer.rank)

    assert_like_dense(after=scaled)
    assert_like_dense(rests=[2, 5], rest=scaled)


def test_a_table_freezes_and_thaws() -> None:
    def before(trainer: Trainer) -> None:
        trainer.model.words.weight.requires_grad_(trainer.step not in (3, 4))

    assert_like_dense(before=before)


@pytest.mark.parametrize("death", [2, 4])
def test_survivors_are_equal(death: int) -> None:
    assert_like_dense(dies={2: death})


class Large(nn.Module):
    """A table of which a step touches few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.linear = nn.Embedding(4000, WIDTH, sparse=True), nn.Linear(WIDTH, 1)

    def forward(self, indices: Tensor) -> Tensor:
        return self.linear(self.words(indices).sum(1)).square()


@pytest.mark.parametrize(("strategy", "settings"), [("local-sgd", {}), ("post-local-sgd", {"after": 4})])
def test_bytes_are_of_touched_rows(strategy: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, plain = list[int](), TableChanges._received

    def noted(changes: TableChanges, *args: Any) -> Any:
        received = plain(changes, *args)
        sizes.extend(sum(0 if rows is None else len(rows.values) for rows in message.tables) for message in received)
        return received

    monkeypatch.setattr(TableChanges, "_received", noted)
    settings = {"sync_every": 3, **settings}
    ends = Scene(strategy, 2, model=Large, make=SGD, steps=8, loss=of_rank, settings=settings).ends()
    assert torch.equal(*ends)
    assert sizes and max(sizes) <= 3 * 12 < ROWS * 3
    assert (sizes[0] == 0) == (strategy == "post-local-sgd"), "synchronous steps leave no changes"


def test_processes_form_the_same_means() -> None:
    assert torch.equal(scene(2).end(real=True), scene(2).end())


def test_a_newcomer_takes_part_in_means() -> None:
    ends = scene(2, steps=[40, 40, 10], pause=0.01, world={"joiners": 1, "timeout": 20.0}).ends()
    assert all(torch.equal(end, ends[0]) for end in ends)
