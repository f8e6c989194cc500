"""Workers that compute a model together: random numbers, batches that differ, and what they send."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError, Mismatch, PeerFailed
from tests.support.processes import run_real_world

WIDTH, NEURONS, BATCH = 8, 64, 16


class Block(nn.Module):
    """With dropout among the neurons, of which each worker has some, and behind them, where all have all."""

    def __init__(self, *, recomputes: bool = False) -> None:
        super().__init__()
        self.fc1, self.among, self.fc2 = nn.Linear(WIDTH, NEURONS), nn.Dropout(0.5), nn.Linear(NEURONS, WIDTH)
        self.behind, self.recomputes = nn.Dropout(0.5), recomputes

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        return x + self.behind(self.fc2(self.among(self.fc1(x))))


def drawn(world: Any, *, recomputes: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The masks among the neurons of both blocks and behind them, and gradients, two steps long."""
    torch.manual_seed(5 + world.rank)
    model = nn.Sequential(Block(recomputes=recomputes), Block(recomputes=recomputes))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(0.1)
    torch.manual_seed(7 + world.rank)
    model = quorate.parallelize(model, tensor="auto")
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    among, behind, gradients = list[Tensor](), list[Tensor](), list[Tensor]()
    for block in model:
        for module, kept in ((block.among, among), (block.behind, behind)):
            module.register_forward_hook(lambda _, args, y, kept=kept: kept.append((y == 0).detach()))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(BATCH, WIDTH)).sum().backward()
        gradients += [p.grad._local_tensor.clone() for p in model.parameters()]
        optimizer.step()
    optimizer.finish()
    return among, behind, gradients


def both(world: Any) -> Any:
    torch.set_num_threads(1)
    return drawn(world, recomputes=False), drawn(world, recomputes=True)


def test_workers_draw_alike_where_all_is_whole_and_apart_where_it_is_cut() -> None:
    (first, recomputed), (second, _) = run_real_world(2, both, 60.0)
    among, behind, gradients = first
    assert all(map(torch.equal, behind, second[1]))
    assert not any(map(torch.equal, among, second[0]))
    for masks in (among, behind):
        assert len({mask.numpy().tobytes() for mask in masks}) == 4  # of each block and step
    assert all(map(torch.equal, gradients, recomputed[2]))
    assert [mask.shape for mask in among] == [(BATCH, NEURONS // 2)] * 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, NEURONS), nn.ReLU(), nn.Linear(NEURONS, WIDTH))


def refused(world: Any) -> list[str]:
    """What becomes of batches that differ, and of calls in the wrong order."""
    told = []
    model = quorate.parallelize(mlp(), tensor="auto")
    with pytest.raises(Mismatch) as different:
        model(torch.full((2, WIDTH), float(world.rank)))
    told.append(str(different.value))
    for wrong in (
        lambda: quorate.parallelize(model),
        lambda: quorate.parallelize(mlp(), world.mesh(shards=2), tensor="auto"),
    ):
        with pytest.raises(ConfigurationError) as error:
            wrong()
        told.append(str(error.value))
    return told


def dealt_before(world: Any) -> str:
    quorate.loader(TensorDataset(torch.arange(8)), 2)
    with pytest.raises(ConfigurationError) as error:
        quorate.parallelize(mlp(), tensor="auto")
    return str(error.value)


def test_what_is_refused() -> None:
    for different, again, axis in run_real_world(2, refused, 60.0):
        assert "different batches (call 1 of the model)" in different
        assert "the model is sharded already" in again and "needs a mesh with a tensor axis" in axis
    for told in run_real_world(2, dealt_before, 60.0):
        assert "quorate.loader was called before quorate.parallelize" in told


class Gated(nn.Module):
    """Two layers that take the same, and one behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, NEURONS), nn.Linear(WIDTH, NEURONS)
        self.down_proj = nn.Linear(NEURONS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def sent(world: Any) -> tuple[int, list[int]]:
    """Bytes of one step, and the examples that a worker was given."""
    model: Any = quorate.parallelize(Gated(), world.mesh(replicas=1, shards=2, tensor=2), zero=2)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    loader = quorate.loader(TensorDataset(torch.arange(16)), 4, shuffle=False)
    given = [int(n) for (batch,) in loader for n in batch]
    x = torch.ones(BATCH, WIDTH, requires_grad=True)
    for _ in range(2):  # the first call looks at batches
        model(x).sum().backward()
    meter = optimizer.__dict__["_quorate_worker"].coordinates.traffic.meter
    before = meter.bytes_out["all_reduce"]
    model(x).sum().backward()
    found = meter.bytes_out["all_reduce"] - before
    optimizer.step()
    optimizer.finish()
    return int(found), given


def test_bytes_and_batches() -> None:
    """One sum behind the pair forward, and one before it backward, for both layers that take the same.

    Of two workers each sends what it has once.
    """
    ends = run_real_world(4, sent, 60.0)
    assert [found for found, _ in ends] == [2 * 4 * BATCH * WIDTH] * 4
    (first, one), (second, other) = [tuple(given for _, given in ends[at : at + 2]) for at in (0, 2)]
    assert first == one and second == other and sorted(first + second) == list(range(16))


def on_pieces(world: Any) -> tuple[float, Tensor]:
    """A loss over pieces of a vocabulary, and the gradient of its table."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model: Any = nn.Sequential(nn.Embedding(62, WIDTH), nn.Linear(WIDTH, 62))
    if world is not None:
        model = quorate.parallelize(model, tensor={"0": "embedding", "1": "logits"})
    tokens = torch.arange(60).view(4, 15)
    with nullcontext() if world is None else loss_parallel():
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten().flip(0))
        loss.backward()
    gradient = model[0].weight.grad
    return loss.item(), gradient if world is None else gradient.full_tensor()


def test_a_loss_over_pieces_of_the_vocabulary() -> None:
    wanted, gradient = on_pieces(None)
    for loss, found in run_real_world(2, on_pieces, 60.0):
        assert loss == pytest.approx(wanted, rel=1e-6)
        torch.testing.assert_close(found, gradient)


def parted(world: Any) -> str:
    """Worker 1 ends when worker 0 goes on."""
    model = quorate.parallelize(mlp(), tensor="auto")
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def go_on() -> None:
        for _ in range(3 - world.rank):
            model(torch.ones(2, WIDTH)).sum().backward()
            optimizer.step()
        optimizer.finish()

    with pytest.raises((Mismatch, PeerFailed)) as error:
        go_on()
    return type(error.value).__name__


def test_workers_that_part_learn_of_it_at_once() -> None:
    assert "Mismatch" in run_real_world(2, parted, 40.0)
