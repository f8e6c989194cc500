"""Rows of sparse tables on servers: beside the same training with dense gradients, the parameters are the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.buckets.rows import Rows, RowsOfWorker, read
from quorate.servers.served_tables import TablesOfPart
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer, flat, parameters, played, virtual
from tests.support.tables import ROWS, WIDTH, Bags, loss_of, of_rank
from tests.unit.strategies.test_own_servers import run as run_with_own_servers

SGD = partial(torch.optim.SGD, lr=0.02)
ADAGRAD: Callable[..., torch.optim.Optimizer] = partial(torch.optim.Adagrad, lr=0.02)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant")  # of torch.optim.Adagrad


def pause(rank: int, step: int) -> float:
    """No two workers ever push at the same time."""
    return 0.02 * (1 + 3.17 * rank * (step % 3)) + 0.0031 * (rank + 1) * (step + 1) ** 0.5


def scene(strategy: str = "parameter-server", *, sparse: bool = True, size: int = 3, **more: Any) -> Scene:
    fields: dict[str, Any] = {"make": ADAGRAD, "steps": 7, "loss": of_rank, "pause": pause}
    return Scene(strategy, size, model=partial(Bags, sparse=sparse), **(fields | more))


def assert_like_dense(strategy: str = "parameter-server", **more: Any) -> None:
    sparse, dense = (scene(strategy, sparse=sparse, **more).end() for sparse in (True, False))
    assert sparse.isfinite().all()
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-9)


MODES: dict[str, tuple[str, dict[str, Any]]] = {
    "sync": ("parameter-server", {}),
    "async": ("parameter-server", {"mode": "async"}),
    "softsync": ("parameter-server", {"mode": "async", "softsync": 2}),
    "overlapped": ("parameter-server", {"mode": "bounded", "overlap": True}),
    "in order": ("parameter-server", {"mode": "async", "in_order": True}),
    "inverse": ("parameter-server", {"mode": "async", "staleness_scaling": "inverse"}),
    "own steps": ("downpour", {"push_every": 3, "pull_every": 2}),
    "late reads": ("downpour", {"push_every": 2, "pull_every": 3}),
    "ssp": ("ssp", {}),
    "backup": ("sync-backup", {}),
    "carried": ("sync-backup", {"late": "carry"}),
    "two copies": ("parameter-server", {"mode": "async", "replication": 2, "on_death": "continue"}),
    "one server": ("parameter-server", {"mode": "async", "servers": 1}),
    "coded": ("parameter-server", {"mode": "async", "compress": "half", "pulls": "coded"}),
}


@pytest.mark.parametrize("mode", MODES)
def test_rows_are_treated_as_dense_gradients_are(mode: str) -> None:
    strategy, settings = MODES[mode]
    assert_like_dense(strategy, settings=settings, rests=[4])


def test_workers_keep_momentum_of_the_rest() -> None:
    def make(of: Any) -> torch.optim.Optimizer:
        *tables, weight, bias = of
        return torch.optim.SGD([{"params": tables}, {"params": [weight, bias], "momentum": 0.5}], lr=0.02)

    assert_like_dense("dana", make=make)


@pytest.mark.covering(("mode", "rank"), product(["sync", "bounded", "async"], range(3)))
def test_a_death_loses_no_row(mode: str, rank: int) -> None:
    settings = {"mode": mode, "replication": 2, "on_death": "continue"}
    sparse, dense = (
        scene(sparse=sparse, dies={rank: 4}, settings=settings).survivors(parameters) for sparse in (True, False)
    )
    first, second = sparse.values()
    assert torch.equal(first, second)
    torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-9)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_checkpoints_continue_to_the_bit(tmp_path: Path, mode: str) -> None:
    trained = scene(settings={"mode": mode, "in_order": True})
    whole, resumed = trained.resumed(tmp_path, 3, 5, parameters, alike=True)
    assert all(map(torch.equal, whole, resumed))


def test_other_numbers_of_workers_continue_alike(tmp_path: Path) -> None:
    ends = []
    for sparse in (True, False):
        first = scene(sparse=sparse, steps=4, saves=[4], root=tmp_path / str(sparse))
        first.run()
        ends.append(first.but(size=2, steps=7, saves=[], loads=True).end())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


class OfMatrix(Bags):
    """Bags whose words are used as a matrix in some steps, so that their gradient is dense there."""

    def forward(self, indices: Tensor) -> Tensor:
        return super().forward(indices) + (self.words.weight.sum() if indices[0, 0] % 2 == 0 else 0.0)


def test_a_table_may_have_dense_gradients_in_some_steps() -> None:
    ends = [
        scene(settings={"mode": "async"}).but(model=partial(OfMatrix, sparse=sparse)).end() for sparse in (True, False)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


def idle_rank(trainer: Trainer) -> Tensor | None:
    """Rank 1 touches no table in one step, and has no gradient in the next."""
    if trainer.rank == 1 and trainer.step % 3:
        return trainer.model.linear.weight.sum() if trainer.step % 3 == 1 else None
    return of_rank(trainer)


def weigh(trainer: Trainer) -> None:
    trainer.optimizer.weight(1 + trainer.rank, full=3)


def freeze(trainer: Trainer) -> None:
    trainer.model.words.weight.requires_grad_(trainer.step % 4 < 2)


def scale(trainer: Trainer) -> None:
    """Write into a row of the last worker, and twice between two pushes where these are rare."""
    if trainer.rank == 2 and trainer.step % 3 < 2:
        with torch.no_grad():
            trainer.model.words.weight[trainer.step] *= 0.5


def renew(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.model.bags.weight.mul_(0.5)


class Renormed(Bags):
    """Bags whose words are scaled in forward passes."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__(sparse=sparse)
        self.words.max_norm = 0.5


SCRIPTS: dict[str, dict[str, Any]] = {
    "idle": {"loss": idle_rank},
    "accumulating": {"passes": 3},
    "counting": {"before": weigh},
    "freezing": {"before": freeze, "make": SGD},  # the last pushes meet, and Adagrad shows their order
    "writing": {"after": scale},
    "writing at rest": {"rests": (2, 5), "rest": renew},
    "max_norm": {"model": Renormed},
}


@pytest.mark.covering(("script", "mode"), product(SCRIPTS, ["sync", "own steps"]))
def test_scripts_have_the_effect_that_they_have_with_dense_gradients(script: str, mode: str) -> None:
    (strategy, settings), fields = MODES[mode], dict(SCRIPTS[script])
    model = fields.pop("model", Bags)
    ends = [
        scene(strategy, settings=settings, **fields).but(model=partial(model, sparse=sparse)).end()
        for sparse in (True, False)
    ]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


def test_writes_that_torch_does_not_show_count_at_the_next_pause() -> None:
    def write(trainer: Trainer) -> None:
        if trainer.step == 7:
            trainer.model.words.weight.data.fill_(3.0)

    end = scene(after=write).end()
    assert (end == 3.0).sum() == ROWS * WIDTH


def test_numbers_that_are_not_finite_are_left_out_of_tables() -> None:
    def spoil(trainer: Trainer) -> None:
        if (trainer.rank, trainer.step) == (1, 2):
            trainer.model.words.weight.grad._values().fill_(torch.nan)

    assert scene(between=spoil, settings={"on_nonfinite": "skip"}).end().isfinite().all()


def of_two_optimizers(model: Bags) -> list[Any]:
    tables = [model.bags.weight, model.words.weight]
    return [torch.optim.SparseAdam(tables, lr=0.01), torch.optim.AdamW(model.linear.parameters())]


def test_sparse_adam_makes_the_steps_of_one_process() -> None:
    def train(world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = Bags()
        optimizers = [quorate.distribute(x, model, "parameter-server") for x in of_two_optimizers(model)]
        for step in range(6):
            model.zero_grad()
            loss_of(model, step, world.rank).backward()
            for optimizer in optimizers:
                optimizer.step()
            if step == 3:
                with world.evaluate():
                    pass
        for optimizer in optimizers:
            optimizer.finish()
        return flat(model)

    torch.manual_seed(0)
    model = Bags()
    optimizers = of_two_optimizers(model)
    for step in range(6):
        model.zero_grad()
        loss: Any = sum(loss_of(model, step, rank) for rank in range(3)) / 3
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    for end in virtual(3, train):
        torch.testing.assert_close(end, flat(model), rtol=0, atol=1e-9)


def test_a_worker_that_joins_reads_full_tables() -> None:
    def live(wire: Any) -> tuple[int, Tensor]:
        if wire.is_newcomer:
            wire.clock.sleep(0.2)
        fields: dict[str, Any] = {"settings": {"mode": "async", "on_death": "continue"}, "pause": 0.05}

        def task(world: quorate.World) -> tuple[int, Tensor]:
            trainer = scene(**fields, seed="rank").trainer(world)
            begin = trainer.parameters
            trainer.train(12 if wire.rank < 2 else 5).finish()
            return int(not torch.equal(begin, trainer.parameters)), trainer.parameters

        return joined(task)(wire)

    ends = VirtualWorld(2, joiners=1, timeout=60.0).run(live)
    assert all(torch.equal(end, ends[0][1]) for _, end in ends)
    assert [count for count, _ in ends] == [1, 1, 1]


def test_separate_servers_have_tables() -> None:
    ends = []
    for sparse in (True, False):
        fields: dict[str, Any] = {"settings": {"servers": "own", "in_order": True}, "rests": (2, 5)}
        ends += run_with_own_servers(2, 2, partial(played, scene(sparse=sparse, **fields), parameters))
    for end in ends:
        torch.testing.assert_close(end, ends[0], rtol=0, atol=1e-9)


# -- bytes


def sent(rows: int, *, touched: int = 3, steps: int = 6) -> int:
    """Return the bytes that both workers have sent between the first step and the last."""

    def lookup(trainer: Trainer) -> Tensor:
        first = 2 * touched * trainer.step + touched * trainer.rank
        return trainer.model(torch.arange(first, first + touched)).sum()

    def note_bytes(trainer: Trainer) -> None:
        trainer.seen.append(trainer.bytes_out)

    make = partial(nn.Embedding, rows, 16, sparse=True)
    fields: dict[str, Any] = {"make": SGD, "steps": steps, "loss": lookup, "after": note_bytes}
    return sum(seen[-1] - seen[0] for seen in Scene("parameter-server", 2, model=make, **fields).run(lambda t: t.seen))


def test_bytes_follow_the_rows_touched_and_not_the_table() -> None:
    assert sent(400) == sent(100)
    row = 4 + 4 * 16
    # In each of 5 steps worker 0 pushes its rows to the server of worker 1, which answers with the rows of both.
    assert 0 <= sent(1000, touched=40) - sent(1000, touched=8) - 5 * 3 * 32 * row < 5 * 3 * 16


class Part:
    """A table of ten rows on a server."""

    def __init__(self) -> None:
        self.table = torch.zeros(10, 1)
        self.part = TablesOfPart([self.table], writes_rows_only=True)

    def touch(self, *indices: int) -> None:
        rows = Rows(torch.tensor(indices), torch.ones(len(indices), 1))
        (gradient,) = self.part.gradients([(1.0, RowsOfWorker(1.0, (rows,), (True,)))])
        assert gradient is not None
        self.table.add_(gradient.to_dense())

    def read(self, *readers: int, is_whole: bool = False, is_sent: bool = True) -> list[list[int] | str | None]:
        """Return the indices of the rows that each reader is sent."""
        messages = self.part.read(readers, is_whole=is_whole, is_sent=is_sent)
        seen: list[list[int] | str | None] = []
        for reader in readers if is_sent else ():
            (rows,) = read(messages[reader], [self.table]).tables
            if rows is None:
                seen.append(None)
            else:
                indices = torch.arange(10) if rows.indices is None else rows.indices
                torch.testing.assert_close(rows.values, self.table[indices])
                seen.append("all" if rows.indices is None else indices.tolist())
        return seen


def test_each_worker_reads_the_rows_that_have_changed_since_its_last_read() -> None:
    part = Part()
    part.touch(1, 4)
    assert part.read(0) == [[1, 4]]
    part.touch(4, 7)
    assert part.read(0, 1) == [[4, 7], [1, 4, 7]]
    assert part.read(0, 1) == [None, None]
    assert part.read(1, is_whole=True) == ["all"]


def test_a_copy_that_answers_nobody_knows_who_has_read() -> None:
    part = Part()
    part.touch(1)
    part.read(0, is_sent=False)
    part.touch(2)
    assert part.read(0) == [[2]]


def test_rows_written_by_a_script_are_read_by_all() -> None:
    part = Part()
    values = torch.tensor([[2.0], [torch.nan]])
    part.part.write(RowsOfWorker(1.0, (Rows(torch.tensor([3, 5]), values),), (True,)))
    assert part.table[3] == 2.0 and part.table[5] == 0.0
    assert part.read(0) == [[3, 5]]


def test_a_worker_far_behind_reads_the_table() -> None:
    part = Part()
    for step in range(4):
        part.touch(0, 1, 2 + step)
    assert part.read(0) == ["all"], "of 12 indices only 10 are kept"
    part.touch(9)
    assert part.read(0) == [[9]]


def test_steps_that_may_write_every_row_are_read_in_full() -> None:
    part = Part()
    part.part = TablesOfPart([part.table], writes_rows_only=False)
    part.touch(1)
    assert part.read(0) == ["all"]
