"""Ordinary loops x models in shards: each loop is as in one process, or is named before a step that would differ."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import quorate
from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family

WIDTH = 144
"""A layer of this width is a block of its own."""
STEPS = 3


def numbers(rank: int, step: int) -> Tensor:
    """A worker's batch."""
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))


class Deep(nn.Module):
    """Equal blocks, which each worker calls as `order(rank, step)` says."""

    def __init__(self, order: Callable[[int, int], Iterable[int]] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.head, self.order = nn.Linear(WIDTH, 1), order

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        for number in range(3) if self.order is None else self.order(rank, step):
            x = x + self.blocks[number](x)
        return self.head(x)


def squares(model: Any, rank: int, step: int) -> Tensor:
    """The loss."""
    return (model(numbers(rank, step), rank, step) - 1).square().mean()


def whole(p: Any) -> Tensor:
    """All of a tensor that may be in pieces."""
    gathered: Tensor = p.full_tensor() if hasattr(p, "full_tensor") else p
    return gathered.detach().clone()


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4, weight_decay=0.1)


def by_hand(model: Any, loss: Callable[[Any, int, int], Tensor] = squares, size: int = 2) -> list[Tensor]:
    """Parameters of `model` after a training in this process on the mean of all workers' gradients."""
    optimizer = adamw(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        sum(loss(model, rank, step) / size for rank in range(size)).backward()  # type: ignore[union-attr]
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def in_shards(
    cell: Cell, model: Any, zero: Any, loss: Callable[[Any, int, int], Tensor] = squares, **chosen: Any
) -> Tensor:
    """The same in shards; the greatest difference from `by_hand`."""
    wanted = by_hand(copy.deepcopy(model), loss)
    model = quorate.parallelize(model, zero=zero, **chosen)
    optimizer = cell.distribute(adamw(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    return furthest([whole(p) for p in model.parameters()], wanted)


def furthest(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    return torch.stack(
        [(a - b).abs().max() if a.numel() else torch.zeros(()) for a, b in zip(some, others, strict=True)]
    ).max()


def each(cell: Cell, cases: Sequence[Callable[[Cell], Any]]) -> list[Any]:
    """Several loops in one world."""
    torch.set_num_threads(1)
    return [case(cell) for case in cases]


def check(*cases: Callable[[Cell], Any], at_most: float = 1e-5, size: int = 2) -> None:
    """Fails unless every case is as near to one process on every worker."""
    for worker in ended_for_real(partial(each, cases=cases), "all-reduce", size).right():
        assert not [(case, far) for case, far in zip(cases, worker, strict=True) if not far <= at_most]


def another_order(rank: int, step: int) -> Iterable[int]:
    return range(3) if rank == 0 or step == 0 else reversed(range(3))


def another_one_skipped(rank: int, step: int) -> Iterable[int]:
    return [n for n in range(3) if n != rank]


@pytest.mark.parametrize(
    ("zero", "order", "within"), [(3, another_order, 1), (2, another_one_skipped, 0)], ids=["order", "skipped"]
)
def test_workers_that_use_other_blocks_are_named(zero: Any, order: Any, within: int) -> None:
    end = ended_for_real(partial(in_shards, model=Deep(order), zero=zero), "all-reduce")
    end.named(
        r"rank 0 .*all_gather of blocks\.\d,.* rank 1 .*all_gather of blocks\.\d,.*quorate\.whole", at=within, within=0
    )


def by_torch(cell: Cell, order: Any) -> Tensor:
    """In shards whose numbers torch's own collectives carry, without names, as on GPUs."""
    by_fsdp: Any = importlib.import_module("quorate.sharding.by_fsdp")
    by_fsdp._over_wires = lambda coordinates: False
    return in_shards(cell, Deep(order), 3)


def test_workers_that_use_other_blocks_are_named_without_names_in_messages() -> None:
    end = ended_for_real(partial(by_torch, order=another_order), "all-reduce")
    end.named(
        r"in step 2 of a model in shards, collective \d+, worker \d .*all_gather of blocks\.\d, and worker \d called "
        r"all_gather of blocks\.\d.*quorate\.whole",
        at=1,
        within=2,
    )


def test_torchs_own_collectives_give_the_same() -> None:
    check(partial(by_torch, order=None))


class Towers(nn.Module):
    """Two small layers of one shape, of which each worker's batch needs one; and one that nobody needs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(WIDTH, 4)
        self.left, self.right, self.idle = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        tower = self.left if rank == step % 2 else self.right
        return tower(self.trunk(x))


def test_parameters_that_some_workers_use() -> None:
    check(*(partial(in_shards, model=Towers(), zero=zero) for zero in (1, 3)))


def averaged(cell: Cell, zero: Any, make: Callable[[nn.Module], Any]) -> Tensor:
    """An average of the weights, by `make`, and a copy of the last model: their distance from one process."""

    def trained(model: Any, optimizer: Any, ranks: Sequence[int]) -> tuple[Tensor, Tensor]:
        average = make(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            sum(squares(model, rank, step) / len(ranks) for rank in ranks).backward()  # type: ignore[union-attr]
            optimizer.step()
            move(average, model)
            last = copy.deepcopy(model)
        squares(model, ranks[0], 0).backward()  # the copy stays what it was
        optimizer.step()
        with torch.no_grad():
            return average(numbers(0, 99), 0, 0), last(numbers(0, 99), 0, 0)

    plain, model = Deep(), quorate.parallelize(Deep(), zero=zero)
    wanted = trained(plain, adamw(plain), range(2))
    found = trained(model, cell.distribute(adamw(model), model), [cell.world.rank])
    return furthest(found, wanted)


def move(average: Any, model: nn.Module) -> None:
    if isinstance(average, AveragedModel):
        average.update_parameters(model)
        return
    with torch.no_grad():
        for kept, p in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(p, 0.1)


def of_weights(model: nn.Module) -> Any:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def test_averages_of_weights_and_copies() -> None:
    check(
        *(
            partial(averaged, zero=zero, make=make)
            for zero, make in ((1, of_weights), (3, copy.deepcopy), (3, of_weights))
        )
    )


def decoded(cell: Cell) -> Tensor:
    """Outputs of unequal numbers of calls, a state, and a plain copy inside `quorate.whole`; then training goes on."""
    wanted = by_hand(Deep())
    told: list[tuple[Tensor, Tensor]] = []

    def looked(model: Any, rank: int, step: int) -> Tensor:
        with quorate.whole(model) as inside, torch.no_grad():
            plain = Deep()
            plain.load_state_dict(inside.state_dict())
            for number in range(3 * cell.world.rank):
                told.append((inside(numbers(0, number), 0, 0), plain(numbers(0, number), 0, 0)))
            twin = copy.deepcopy(inside)
        if cell.world.rank:
            told.append((twin(numbers(0, 1), 0, 0), plain(numbers(0, 1), 0, 0)))
        assert type(twin) is Deep
        return squares(model, rank, step)

    model = quorate.parallelize(Deep(), zero=2)
    optimizer = cell.distribute(adamw(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        looked(model, cell.world.rank, step).backward()
        cell.step(optimizer)
    optimizer.finish()
    assert len(told) == 4 * STEPS * cell.world.rank
    off = [float((a - b).detach().abs().max()) for a, b in told]
    return max([furthest([whole(p) for p in model.parameters()], wanted), *map(torch.tensor, off)])


def edited(cell: Cell) -> Tensor:
    """Changes made inside are kept, in a copy as well."""
    model = quorate.parallelize(Deep())
    with quorate.whole(model):
        model.head.weight.requires_grad_(False)
        with torch.no_grad():
            model.blocks[1][0].weight.mul_(2.0)
        model.head.bias.data = torch.full((1,), 7.0)
        with quorate.whole(model):
            model.blocks[2].load_state_dict(model.blocks[0].state_dict())
    twin = copy.deepcopy(model)
    with quorate.whole(twin), torch.no_grad():
        twin.blocks[0][0].weight.zero_()
    assert not model.head.weight.requires_grad
    plain = Deep()
    wanted = [2 * plain.blocks[1][0].weight, torch.full((1,), 7.0), plain.blocks[0][0].weight]
    wanted += [plain.blocks[0][0].weight, 0 * plain.blocks[0][0].weight]
    changed = [model.blocks[1][0].weight, model.head.bias, model.blocks[2][0].weight, model.blocks[0][0].weight]
    return furthest([whole(p) for p in (*changed, twin.blocks[0][0].weight)], [x.detach() for x in wanted])


def test_a_model_is_whole_for_a_while() -> None:
    check(decoded, edited)


def changed_by_one(cell: Cell) -> None:
    model = quorate.parallelize(Deep())
    with quorate.whole(model):
        if cell.world.is_first:
            model.load_state_dict({key: 2 * x for key, x in model.state_dict().items()})


def trained_inside(cell: Cell) -> None:
    model = quorate.parallelize(Deep())
    with quorate.whole(model):
        squares(model, 0, 0).backward()


@pytest.mark.parametrize(
    ("loop", "sentence"),
    [
        (changed_by_one, "with changes .* with no changes; .* alike inside quorate.whole"),
        (trained_inside, r"blocks\.0\.0\.weight got a gradient inside quorate.whole"),
    ],
)
def test_what_whole_models_refuse(loop: Any, sentence: str) -> None:
    ended_for_real(loop, "all-reduce").refused(sentence)


@every_family()
def test_a_model_that_is_not_in_shards_is_whole(strategy: str) -> None:
    ended(left_alone, strategy).right()


def left_alone(cell: Cell) -> None:
    model = nn.Linear(4, 1)
    cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    before = dict(model.named_parameters())
    with quorate.whole(model) as inside:
        assert inside is model
        assert all(p is before[name] for name, p in model.named_parameters())


class TwoDtypes(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.fine = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.gain = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.gain * torch.tanh(self.fine(self.wide(x).double()))).float()


class Scaled(nn.Module):
    """Blocks of two dtypes, and parameters without dimensions or elements."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(TwoDtypes() for _ in range(2)), nn.Linear(WIDTH, 1)
        self.logit_scale, self.nothing = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.zeros(0, 3))

    def forward(self, x: Tensor, rank: int, step: int) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.logit_scale.exp() + self.nothing.sum()


def of_whole_tensors(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Which divides by the number of elements."""
    return torch.optim.Adafactor([p for p in parameters if p.numel()], lr=1e-2)


def clipped(cell: Cell, zero: Any, make: Any, clip: float | None = None) -> Tensor:
    """Shapes stay, in a copy and inside `quorate.whole` as well; numbers are those of one process."""

    def trained(model: Any, optimizer: Any, ranks: Sequence[int]) -> list[Tensor]:
        for step in range(STEPS):
            optimizer.zero_grad()
            for rank in ranks:
                (squares(model, rank, step) / len(ranks)).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        model = copy.deepcopy(model)
        with torch.no_grad(), quorate.whole(model):
            model.logit_scale.add_(1.0)
        with torch.no_grad():
            return [whole(p) for p in model.parameters()] + [model(numbers(0, 99), 0, 0)]

    plain, model = Scaled(), quorate.parallelize(Scaled(), zero=zero)
    wanted = trained(plain, make(plain.parameters()), range(2))
    found = trained(model, cell.distribute(make(model.parameters()), model), [cell.world.rank])
    assert [x.shape for x in found] == [x.shape for x in wanted]
    assert [x.dtype for x in found] == [x.dtype for x in wanted]
    return furthest(found, wanted)


def test_two_dtypes_in_a_block_and_parameters_without_dimensions() -> None:
    sgd = partial(torch.optim.SGD, lr=1e-2, momentum=0.9)
    adam = partial(torch.optim.AdamW, lr=1e-2, eps=1e-4)
    check(
        partial(clipped, zero=3, make=sgd, clip=0.5),
        partial(clipped, zero=2, make=adam),
        partial(clipped, zero=1, make=of_whole_tensors),
        at_most=2e-5,
    )


class Grouped(nn.Module):
    """Causal attention of which several query heads have one key head, as Llama writes it."""

    def __init__(self, key_heads: int, bias: bool) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = 8, key_heads, 2
        self.n_rep = self.n_heads // self.n_kv_heads
        self.wq, self.wo = nn.Linear(16, 16, bias=bias), nn.Linear(16, 16, bias=bias)
        self.wk, self.wv = (nn.Linear(16, 2 * key_heads, bias=bias) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q = self.wq(x).unflatten(-1, (self.n_heads, self.head_dim)).transpose(1, 2)
        k = self.wk(x).unflatten(-1, (self.n_kv_heads, self.head_dim)).transpose(1, 2)
        v = self.wv(x).unflatten(-1, (self.n_kv_heads, self.head_dim)).transpose(1, 2)
        k, v = (y.repeat_interleave(self.n_rep, dim=1) for y in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.wo(y.transpose(1, 2).flatten(2))


def attended(cell: Cell, key_heads: int, axes: dict[str, int]) -> Tensor:
    """Training with a tensor axis; the batches are those of each group of workers that compute together."""
    groups = cell.world.size // axes["tensor"]

    def loss(model: Any, rank: int, step: int) -> Tensor:
        return (model(numbers(rank, step).view(8, 9, 16)) - 1).square().mean()

    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(Grouped(key_heads, bias) for bias in (True, False)))

    def sgd(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    plain = made()
    optimizer = sgd(plain)
    for step in range(STEPS):
        optimizer.zero_grad()
        for group in range(groups):
            (loss(plain, group, step) / groups).backward()
        optimizer.step()
    model = quorate.parallelize(made(), cell.world.mesh(**axes))
    assert model[0].n_kv_heads == max(1, key_heads // axes["tensor"])
    optimizer = cell.distribute(sgd(model), model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(model, cell.world.rank // axes["tensor"], step).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e3)
        cell.step(optimizer)
    optimizer.finish()
    return furthest([whole(p) for p in model.parameters()], [p.detach() for p in plain.parameters()])


def test_fewer_key_heads_than_workers() -> None:
    check(partial(attended, key_heads=1, axes={"tensor": 2}), partial(attended, key_heads=2, axes={"tensor": 2}))


def test_fewer_key_heads_than_four_workers() -> None:
    cases = [partial(attended, key_heads=heads, axes={"tensor": 4}) for heads in (2, 1)]
    check(*cases, partial(attended, key_heads=1, axes={"shards": 2, "tensor": 2}), size=4)


def with_a_term(model: Any, rank: int, step: int) -> Tensor:
    """A loss that uses weights outside their blocks, behind the forward pass."""
    loss = squares(model, rank, step) + 0.01 * sum(p.square().sum() for p in model.parameters())
    hidden = nn.functional.linear(numbers(rank, step), model.blocks[1][0].weight)
    return loss + 0.01 * (hidden - 1).square().mean()


def test_weights_outside_their_blocks() -> None:
    check(
        partial(in_shards, model=Deep(), zero=2, loss=with_a_term),
        partial(in_shards, model=Deep(), zero=3, loss=with_a_term, blocks=[]),
        partial(in_shards, model=Deep(), zero=3, loss=with_a_term),
        at_most=2e-5,
    )
