"""Ordinary models x strategies: hooks, frozen layers, evaluations, buffers, and forward passes that write weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import quorate
from quorate.core.contracts import Wire
from quorate.means import forward_buffers
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.ordinary_loops import Cell, ended, ended_for_real, every_family, loss_of, small_net
from tests.support.scene import Trainer, flat

LOCKSTEP: list[tuple[str, dict[str, Any]]] = [("all-reduce", {}), ("quorum", {"wait_for": "all"})]
"""Strategies whose workers make every step on the mean of all gradients."""
in_lockstep = pytest.mark.parametrize(("strategy", "settings"), LOCKSTEP, ids=["all-reduce", "quorum-all"])


def by_hand(steps: int, size: int = 2) -> list[float]:
    """The small net after `steps` of SGD on the mean of all ranks' gradients, in this process."""
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        optimizer.zero_grad()
        torch.stack([loss_of(model, rank, step) for rank in range(size)]).mean().backward()
        optimizer.step()
    return flat(model).tolist()


# -- hooks of the script that step inside backward


def steps_in_hooks(
    is_first: bool, *, one_each: bool, is_watched: bool = False, steps: int = 4
) -> Callable[[Cell], list[float]]:
    """Steps in post-accumulate hooks, registered before `distribute` (`is_first`) or after it; the parameters.

    `one_each`: an optimizer per parameter, or one of all that steps with each of them. `is_watched`: optimizers have
    a hook of the script that only looks.
    """

    def loop(cell: Cell) -> list[float]:
        model = small_net()
        named, optimizers = dict(model.named_parameters()), dict[Any, Any]()

        def hook(p: torch.Tensor) -> None:
            cell.step(optimizers[p])
            optimizers[p].zero_grad()

        def register() -> None:
            for p in named.values():
                p.register_post_accumulate_grad_hook(hook)

        if is_first:
            register()
        if one_each:
            for name, p in named.items():
                optimizers[p] = cell.distribute(torch.optim.SGD([p], lr=0.05), model, name=name)
        else:
            whole = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.05), model)
            optimizers |= dict.fromkeys(named.values(), whole)
        if not is_first:
            register()
        for optimizer in dict.fromkeys(optimizers.values()) if is_watched else ():
            optimizer.register_step_pre_hook(lambda *_: None)
        for step in range(steps):
            loss_of(model, cell.world.rank, step).backward()
        for optimizer in dict.fromkeys(optimizers.values()):
            optimizer.finish()
        return flat(model).tolist()

    return loop


@pytest.mark.parametrize("one_each", [True, False], ids=["one-each", "one-of-all"])
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@in_lockstep
def test_steps_in_hooks_are_on_the_mean(
    strategy: str, settings: dict[str, Any], is_first: bool, one_each: bool
) -> None:
    first, second = ended(steps_in_hooks(is_first, one_each=one_each), strategy, **settings).right()
    assert first == second
    assert first == pytest.approx(by_hand(4), abs=1e-6)


@pytest.mark.parametrize("one_each", [True, False], ids=["one-each", "one-of-all"])
@every_family()
def test_steps_in_hooks_may_be_watched(strategy: str, one_each: bool) -> None:
    ended(steps_in_hooks(True, one_each=one_each, is_watched=True), strategy).right()


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "after"])
@in_lockstep
def test_watched_steps_in_hooks_are_on_the_mean(strategy: str, settings: dict[str, Any], is_first: bool) -> None:
    first, second = ended(steps_in_hooks(is_first, one_each=False, is_watched=True), strategy, **settings).right()
    assert first == second == pytest.approx(by_hand(4), abs=1e-6)


@every_family("all-reduce")
def test_steps_in_hooks_leave_equal_replicas(strategy: str) -> None:
    first, second = ended(steps_in_hooks(True, one_each=True), strategy).right()
    assert first == second


def hooked(cell: Cell) -> list[float]:
    return steps_in_hooks(True, one_each=True)(cell)


def test_steps_in_hooks_are_on_the_mean_in_processes() -> None:
    first, second = ended_for_real(hooked, "all-reduce").right()
    assert first == second == pytest.approx(by_hand(4), abs=1e-6)


# -- backward passes inside an evaluation


def evaluates(ranks: set[int], *, clears: bool) -> Callable[[Cell], list[float]]:
    """After every other step an evaluation, in which some ranks run a backward pass (rank times, plus one)."""

    def after(trainer: Trainer) -> None:
        if trainer.step % 2 == 0:
            with trainer.world.evaluate():
                for again in range((trainer.rank + 1) * (trainer.rank in ranks)):
                    loss_of(trainer.model, trainer.rank, 100 + again).backward()
            if clears:
                trainer.optimizer.zero_grad()

    return lambda cell: cell.train(6, after=after).parameters.tolist()


@pytest.mark.parametrize("ranks", [{0}, {1}, {0, 1}], ids=["first", "last", "unequally"])
@in_lockstep
def test_a_backward_pass_in_an_evaluation_is_this_workers_own(
    strategy: str, settings: dict[str, Any], ranks: set[int]
) -> None:
    first, second = ended(evaluates(ranks, clears=True), strategy, **settings).right()
    assert first == second == pytest.approx(by_hand(6), abs=1e-6)


@every_family("all-reduce")
def test_a_backward_pass_in_an_evaluation_changes_nothing(strategy: str) -> None:
    attacked, plain = ended(evaluates({0, 1}, clears=True), strategy), ended(evaluates(set(), clears=True), strategy)
    assert attacked.right() == plain.right()


def keeps_gradients(cell: Cell) -> list[float]:
    """Gradients of an evaluation on rank 0 that the script does not clear are in its next contribution, as in torch."""
    trainer = cell.trainer().train(1)
    trainer.optimizer.zero_grad()
    with cell.world.evaluate():
        if cell.world.is_first:
            loss_of(trainer.model, 0, 7).backward()
    trainer.backward()
    cell.step(trainer.optimizer)
    return trainer.finish().parameters.tolist()


@in_lockstep
def test_gradients_of_an_evaluation_accumulate(strategy: str, settings: dict[str, Any]) -> None:
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ((loss_of(model, 0, 0) + loss_of(model, 1, 0)) / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    ((loss_of(model, 0, 1) + loss_of(model, 0, 7) + loss_of(model, 1, 1)) / 2).backward()
    optimizer.step()
    first, second = ended(keeps_gradients, strategy, **settings).right()
    assert first == second == pytest.approx(flat(model).tolist(), abs=1e-6)


def evaluates_before_the_step(cell: Cell) -> None:
    """Rank 0's evaluation adds to gradients that all have agreed on."""

    def between(trainer: Trainer) -> None:
        with cell.world.evaluate():
            if cell.world.is_first:
                loss_of(trainer.model, 0, 7).backward()

    cell.train(1, between=between)


def test_an_evaluation_between_backward_and_step_does_not_change_the_mean() -> None:
    sentence = r"inside world\.evaluate\(\) has added"
    ended(evaluates_before_the_step, "all-reduce").named(sentence, at=0, within=1)


# -- parameters that freeze, or come, on one rank only


def lays_out_on(rank: int, change: str, *, at: int = 4, steps: int = 40) -> Callable[[Cell], list[float]]:
    """One rank "freezes" a layer, or "adds" one to the optimizer, before step `at`."""

    def before(trainer: Trainer) -> None:
        if trainer.step == at and trainer.rank == rank:
            if change == "adds":
                trainer.optimizer.add_param_group({"params": list(trainer.model[2].parameters())})
            else:
                trainer.model[0].requires_grad_(False)

    first = lambda ps: torch.optim.SGD([*ps][: 2 if change == "adds" else 4], lr=0.05)  # noqa: E731
    return lambda cell: cell.train(steps, make=first, before=before).parameters.tolist()


@pytest.mark.parametrize(("rank", "change"), [(0, "freezes"), (1, "adds")])
@every_family("all-reduce")
def test_a_change_of_layout_on_one_rank_is_named_soon(strategy: str, rank: int, change: str) -> None:
    sentence = rf"rank {rank} trains other parameters since its step .* and rank {1 - rank}"
    ended(lays_out_on(rank, change), strategy).named(sentence, at=4, within=32)


@pytest.mark.parametrize("change", ["freezes", "adds"])
def test_a_change_of_layout_on_one_rank_is_named_at_once(change: str) -> None:
    """Where all workers come to each step together."""
    sentence = r"rank 1 trains other parameters since its step \d \(.*\), and rank 0 is at its step 6 without it"
    ended(lays_out_on(1, change), "quorum", wait_for="all").named(sentence, at=4, within=1)
    ended(lays_out_on(1, change), "all-reduce").named("called different things", at=4, within=0)


@every_family("all-reduce")
def test_a_change_of_layout_is_named_where_the_others_have_ended(strategy: str) -> None:
    sentence = "rank 0 trains other parameters .* and rank 1 pauses or ends after its step 6 without it"
    ended(lays_out_on(0, "freezes", steps=6), strategy).named(sentence, at=4, within=2)


def freezes_on_rank_1(cell: Cell) -> list[float]:
    return lays_out_on(1, "freezes")(cell)


def test_a_change_of_layout_on_one_rank_is_named_in_processes() -> None:
    endings = ended_for_real(freezes_on_rank_1, "quorum", wait_for="all")
    endings.named("rank 1 trains other parameters since its step 5", at=4, within=2)


# -- streams of unequal length, and a schedule per step


def one_cycle(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=16)


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)


def warm_up(optimizer: Any) -> Any:
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6)
    fall = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [6])


def unequal_streams(
    schedule: Callable[[Any], Any], kind: type[torch.optim.Optimizer], *, is_early: bool, per_epoch: bool = False
) -> Callable[[Cell], Any]:
    """Five batches an epoch on rank 0, three on rank 1; rates after each step by rank, and the parameters.

    `is_early`: the schedule is made before `distribute`. `per_epoch`: it is stepped at the end of each epoch.
    """

    def loop(cell: Cell) -> Any:
        schedulers: list[Any] = []

        def make(parameters: Any) -> torch.optim.Optimizer:
            plain = kind(parameters, lr=0.05)
            schedulers.extend([schedule(plain)] * is_early)
            return plain

        def after(trainer: Trainer) -> None:
            if not per_epoch:
                schedulers[0].step()

        def between(trainer: Trainer) -> None:
            rates.append((len(seen), trainer.step - len(seen) * batches, trainer.rate))

        batches, rates, seen = 5 if cell.world.is_first else 3, list[Any](), list[Any]()
        loss = lambda t: loss_of(t.model, t.rank, 10 * len(seen) + t.step - len(seen) * batches)  # noqa: E731
        trainer = cell.trainer(make=make, loss=loss, between=between, after=after)
        schedulers += [schedule(trainer.optimizer)] * (not is_early)
        for epoch in range(3):
            trainer.train((epoch + 1) * batches)
            if per_epoch:
                schedulers[0].step()
            with cell.world.evaluate():
                seen.append((trainer.rate, trainer.parameters.tolist()))
        return rates, seen, trainer.finish().parameters.tolist(), schedulers[0].last_epoch

    return loop


@pytest.mark.parametrize(("schedule", "kind"), [(one_cycle, "SGD"), (cosine, "AdamW"), (warm_up, "SGD")])
@pytest.mark.parametrize("is_early", [True, False], ids=["before", "after"])
def test_schedules_follow_the_training_where_streams_are_unequal(
    schedule: Callable[[Any], Any], kind: str, is_early: bool
) -> None:
    loop = unequal_streams(schedule, getattr(torch.optim, kind), is_early=is_early)
    (rates, *first), (others, *second) = ended(loop, "all-reduce").right()
    assert first == second
    assert first[-1] == 15
    assert set(others) <= set(rates), "the same rate in each step that both make"


def test_a_schedule_per_epoch_stays_one_where_streams_are_unequal() -> None:
    loop = unequal_streams(cosine, torch.optim.SGD, is_early=False, per_epoch=True)
    (rates, *first), (others, *second) = ended(loop, "all-reduce").right()
    assert first == second and first[-1] == 3
    assert set(others) <= set(rates)


def own_streams(cell: Cell) -> Any:
    return unequal_streams(cosine, torch.optim.AdamW, is_early=False)(cell)


@every_family("all-reduce")
def test_unequal_streams_end_with_equal_replicas(strategy: str) -> None:
    (_, _, first, _), (_, _, second, _) = ended(own_streams, strategy).right()
    assert first == second


def test_schedules_follow_the_training_in_processes() -> None:
    (rates, *first), (others, *second) = ended_for_real(own_streams, "all-reduce").right()
    assert first == second and set(others) <= set(rates)


# -- buffers that forward passes read


class Codes(nn.Module):
    """A layer and a codebook in a buffer, which each forward pass moves in the given way."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.way, self.first, self.norm = way, nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("book", torch.randn(8, 4))
        self.register_buffer("wide", torch.randn(3, dtype=torch.float64))
        self.register_buffer("used", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("is_used", torch.zeros(8, dtype=torch.bool))
        self.register_buffer("mask", torch.ones(4))
        self.book: torch.Tensor
        self.wide: torch.Tensor
        self.used: torch.Tensor
        self.is_used: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.norm(self.first(x))
        near = torch.cdist(z, self.book).argmin(1)
        loss = (z - self.book[near]).square().mean() + self.wide.sum().float() * z.mean() * self.is_used.sum()
        with torch.no_grad():
            if self.way == "in place":
                self.book[near] = 0.5 * (self.book[near] + z)
            elif self.way == "through data":
                self.book.data.lerp_(z.mean(0, keepdim=True), 0.1)
            else:
                self.book = torch.cat([self.book[4:], z[:4]])
            self.wide += z.double().mean() / 3
            self.used[near] += 2**40 + 1
            self.is_used[near] = True
        return loss


WAYS = ["in place", "through data", "replaced"]


def drift(trainer: Trainer) -> torch.Tensor:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * trainer.step + trainer.rank)) + trainer.rank
    return trainer.model(x)


def moves_buffers(way: str, *, unequal: bool = False, steps: int = 8) -> Callable[[Cell], Any]:
    """The buffers after each step, and the parameters."""

    def after(trainer: Trainer) -> None:
        own = [*trainer.model.buffers(), *trainer.model.parameters()]
        trainer.seen.append([x.detach().clone() for x in own if x is not trainer.model.norm.running_mean])

    def loop(cell: Cell) -> Any:
        trainer = cell.trainer(model=lambda: Codes(way), rate=0.1, loss=drift, after=after)
        trainer.train(steps - 3 * unequal * cell.world.rank)
        kept, model = trainer.model.norm.running_mean.clone(), trainer.finish().model
        return trainer.seen, kept, [*model.buffers(), *model.parameters()]

    return loop


def as_ddp(way: str, size: int, steps: int = 8) -> list[torch.Tensor]:
    """The same as torch DDP makes it, in this process: rank 0's buffers before each forward pass, the mean gradient."""
    models = [Codes(way) for _ in range(size)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(steps):
        for rank, model in enumerate(models):
            optimizers[rank].zero_grad()
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank)) + rank
            model(x).backward()
        for x, *others in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([p.grad for p in (x, *others)]).mean(0)
            for p in (x, *others):
                p.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        for model in models[1:]:
            model.load_state_dict(models[0].state_dict())
    return [*models[0].buffers(), *models[0].parameters()]


@pytest.mark.parametrize(
    ("size", "way", "more"),
    [
        *((size, way, {}) for size in (2, 3) for way in WAYS),
        (3, "replaced", {"on_death": "continue"}),
        (2, "in place", {"compress": "top-k"}),
    ],
)
def test_forward_buffers_are_those_of_rank_0_as_under_ddp(size: int, way: str, more: dict[str, Any]) -> None:
    found = ended(moves_buffers(way), "all-reduce", size, **more).right()
    for seen, _, last in found:
        for step, mine, first in zip(range(8), seen, found[0][0], strict=True):
            same = [torch.equal(x, y) for x, y in zip(mine[:4], first[:4], strict=True)]
            assert all(same), f"step {step}: {same}"
        assert all(torch.equal(x, y) for x, y in zip(last, found[0][2], strict=True))
    assert not torch.equal(found[0][1], found[1][1]), "batch norm's statistics are each worker's own until all rest"
    if "compress" not in more:
        for x, y in zip(found[0][2], as_ddp(way, size), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["in place", "replaced"])
def test_forward_buffers_travel_with_the_gradient_from_the_third_time_on(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    apart, together = [], []
    copy, read = forward_buffers.copy_tensors, forward_buffers.BufferCopies._read
    monkeypatch.setattr(forward_buffers, "copy_tensors", lambda *tensors: (apart.append(1), copy(*tensors)))
    monkeypatch.setattr(forward_buffers.BufferCopies, "_read", lambda *room: (together.append(1), read(*room)))
    ended(moves_buffers(way, steps=20), "all-reduce").right()
    assert len(apart) <= 2 * 6, "among them copies as other buffers change, too"
    assert len(apart) + len(together) == 2 * 20


def reshapes_on_rank_1(cell: Cell) -> list[list[float]]:
    """The codebook after each step; that of rank 1 has another shape before some means."""
    model, seen = Codes("in place"), []
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for step in range(8):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, generator=torch.Generator().manual_seed(step)))
        if cell.world.rank and step in (4, 6):
            model.book = torch.zeros(3, 4)
        loss.backward()
        cell.step(optimizer)
        seen.append([*model.book.flatten().tolist(), *model.used.tolist()])
    optimizer.finish()
    return seen


def test_forward_buffers_of_another_shape_become_rank_0s() -> None:
    first, second = ended(reshapes_on_rank_1, "all-reduce").right()
    assert first == second


def test_a_newcomer_takes_part_in_forward_buffers() -> None:
    def live(wire: Wire) -> list[list[float]]:
        if wire.is_newcomer:
            wire.clock.sleep(0.105)
        place = current.enter(wire, thread_only=True)
        try:
            world, model, seen = quorate.join(records=False), Codes("in place"), []
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            optimizer = quorate.distribute(optimizer, model, "all-reduce", on_death="continue")
            x = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
            loader = quorate.loader(torch.utils.data.TensorDataset(x), 4, share="dynamic")
            for _ in range(loader.epoch, 2):
                for (x,) in loader:
                    optimizer.zero_grad()
                    model(x + world.rank).backward()
                    wire.clock.sleep(0.01)
                    optimizer.step()
                    seen.append([*model.book.flatten().tolist(), *model.used.tolist()])
            optimizer.finish()
            place.leave()
            return seen
        finally:
            current.forget(thread_only=True)

    first, second, third = VirtualWorld(2, joiners=1, seed=3, timeout=60.0).run(live)
    assert first == second
    assert 2 < len(third) < len(first)
    assert third == first[-len(third) :]


def rests_in_each_step(cell: Cell) -> None:
    def model() -> nn.Module:
        net = nn.Sequential(nn.BatchNorm1d(4), small_net())
        net.register_buffer("mask", torch.ones(4))
        return net

    cell.train(6, model=model, rests=range(1, 6))


def test_buffers_that_no_forward_pass_moves_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[object] = []
    monkeypatch.setattr("quorate.means.forward_buffers.copy_tensors", lambda *given: copies.append(given))
    ended(rests_in_each_step, "all-reduce").right()
    assert not copies


def test_forward_buffers_of_one_that_has_ended() -> None:
    (seen, _, last), (fewer, _, others) = ended(moves_buffers("in place", unequal=True), "all-reduce").right()
    for mine, theirs in zip(fewer, seen, strict=False):
        assert all(torch.equal(mine[place], theirs[place]) for place in (0, 1, 2, 3, -4, -3, -2, -1))
    assert all(torch.equal(x, y) for x, y in zip(last, others, strict=True))


def moves_in_place(cell: Cell) -> Any:
    seen, _, last = moves_buffers("in place")(cell)
    return [[x.tolist() for x in step[:4]] for step in seen], [x.tolist() for x in last]


def test_forward_buffers_are_those_of_rank_0_in_processes() -> None:
    first, second = ended_for_real(moves_in_place, "all-reduce").right()
    assert first == second


@every_family("all-reduce")
def test_forward_buffers_that_part_are_named_once(strategy: str) -> None:
    endings = ended(moves_buffers("in place", steps=20), strategy)
    endings.right()
    endings.told_once("the buffer book is not the same on all workers after 1 steps of each")


class Counts(nn.Module):
    """A buffer that is the same on all workers, and one that no step moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 1), nn.BatchNorm1d(1)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(4))
        self.count: torch.Tensor
        self.mask: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.norm(self.layer(x * self.mask))


def counts(cell: Cell) -> int:
    return int(cell.train(20, model=Counts).model.count)


@every_family()
def test_equal_buffers_are_not_told(strategy: str) -> None:
    endings = ended(counts, strategy)
    assert endings.right() == [20, 20]
    assert "the buffer" not in endings.told


def prunes(cell: Cell) -> None:
    """After two steps each worker prunes its own replica by magnitude, so that masks are of its own weights."""

    def before(trainer: Trainer) -> None:
        if trainer.step == 3:
            prune.l1_unstructured(trainer.model[0], "weight", 0.5)

    cell.train(20, rate=0.5, before=before)


def test_masks_of_a_workers_own_weights_are_named_once() -> None:
    endings = ended(prunes, "local-sgd", sync_every=8)
    endings.right()
    endings.told_once("the buffer 0.weight_mask is not the same on all workers after 4 steps of each")


def test_buffers_of_each_step_are_refused_where_no_step_has_all() -> None:
    for strategy in ("eager-majority", "local-sgd", "d-psgd", "parameter-server"):
        ended(counts, strategy, buffers="rank0-each-step").refused('buffers="rank0-each-step" needs a strategy')


# -- forward passes that write weights


class Words(nn.Module):
    """A mean of embeddings, renormalized by a module, a bag, or a function."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.way, norm = way, None if way == "function" else 0.5
        kind = nn.EmbeddingBag if way == "bag" else nn.Embedding
        self.table, self.head = kind(20, 4, max_norm=norm), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.way == "function":
            return self.head(nn.functional.embedding(x, self.table.weight, max_norm=0.5).mean(1))
        found = self.table(x)
        return self.head(found if self.way == "bag" else found.mean(1))


def renormalizes(way: str, *, by_hook: bool = False) -> Callable[[Cell], list[float]]:
    def loss(trainer: Trainer) -> torch.Tensor:
        draw = torch.Generator().manual_seed(10 * trainer.step + trainer.rank)
        return trainer.model(torch.randint(20, (6, 3), generator=draw)).square().mean()

    def model() -> nn.Module:
        words = Words(way)
        if by_hook:
            words.table.max_norm = None
        return words

    def begin(trainer: Trainer) -> None:
        if by_hook:
            renorm = trainer.model.table.weight.data.renorm_
            trainer.optimizer.register_step_post_hook(lambda *_: renorm(2, 0, 0.5))

    return lambda cell: cell.train(8, model=model, rate=0.1, loss=loss, begin=begin).parameters.tolist()


@pytest.mark.parametrize("way", ["module", "bag", "function"])
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
def test_a_forward_pass_that_writes_weights_is_refused(strategy: str, way: str) -> None:
    name = {"module": r"table \(Embedding\)", "bag": r"table \(EmbeddingBag\)", "function": "a call of embedding"}[way]
    ended(renormalizes(way), strategy).refused(f"{name}.* has max_norm, .* equal under {strategy}")


@pytest.mark.parametrize("way", ["bag", "function"])
@every_family("all-reduce", "eager-majority")
def test_a_forward_pass_writes_where_replicas_differ_anyhow(strategy: str, way: str) -> None:
    first, second = ended(renormalizes(way), strategy).right()
    assert first == second


@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
def test_rows_are_renormalized_in_a_hook_instead(strategy: str) -> None:
    first, second = ended(renormalizes("module", by_hook=True), strategy).right()
    assert first == second
    assert torch.tensor(first[:80]).view(20, 4).norm(dim=1).max() <= 0.5 + 1e-5


def spectral(cell: Cell) -> list[float]:
    """A layer whose weight is divided by its norm, which power iterations of each forward pass follow, in buffers."""
    layer = nn.utils.spectral_norm
    trainer = cell.train(8, model=lambda: nn.Sequential(layer(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 1)))
    return [x for y in (*trainer.model.parameters(), *trainer.model.buffers()) for x in y.detach().reshape(-1).tolist()]


@every_family()
def test_spectral_norms_end_equal(strategy: str) -> None:
    endings = ended(spectral, strategy)
    first, second = endings.right()
    assert first == second
    assert ("weight_u is not the same" in endings.told) == (strategy in ("local-sgd", "d-psgd"))
