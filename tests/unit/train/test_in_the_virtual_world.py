"""`distribute` among virtual workers: the laws that hold at every size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.core.strategy import Strategy, Worker
from quorate.observe.backward import FORWARD_SHARE
from quorate.strategies import strategies
from quorate.train.distribute import distribute
from quorate.wire import current
from quorate.wire.metered import Metered
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support import scene as scenes
from tests.support.joined import joined
from tests.support.scene import Scene, Trainer

SIZES = [1, 2, 3, 5, 8]


def net(seed: int) -> nn.Module:
    return scenes.net(4, 7, 2, seed=seed)


def data(rank: int, step: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(1000 * step + rank))


def trained(*, steps: int = 4, uneven: bool = False, size: int = 3, **choice: Any) -> Scene:
    steps_by_rank = [steps + uneven * rank for rank in range(size)]
    fields: dict[str, Any] = {"model": (4, 7, 2), "rate": 0.1, "heavy": 0.9, "seed": "rank", "loss": loss_of}
    return Scene(size=size, steps=steps_by_rank, **fields, **{"strategy": "all-reduce", **choice})


def loss_of(trainer: Trainer) -> torch.Tensor:
    return trainer.model(data(trainer.rank, trainer.step)).square().mean()


def reference(size: int, steps: int = 4, *, uneven: bool = False) -> torch.Tensor:
    """One process on the joined batches of those that still train."""
    model = net(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps + uneven * (size - 1)):
        optimizer.zero_grad()
        still = [rank for rank in range(size) if step < steps + uneven * rank]
        model(torch.cat([data(rank, step) for rank in still])).square().mean().backward()
        optimizer.step()
    return scenes.flat(model)


@pytest.mark.parametrize("size", SIZES)
def test_all_reduce_is_one_process_on_the_joined_batch(size: int) -> None:
    torch.testing.assert_close(trained(size=size).end(), reference(size), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("with_one_worker", ["bypass", "algorithm"])
def test_a_world_of_one_is_the_plain_optimizer_bit_for_bit(with_one_worker: str) -> None:
    assert torch.equal(trained(size=1, with_one_worker=with_one_worker).end(), reference(1))


@pytest.mark.parametrize("size", SIZES[1:])
def test_workers_that_end_at_different_steps_end_equal(size: int) -> None:
    end = trained(size=size, uneven=True).end()
    torch.testing.assert_close(end, reference(size, uneven=True), rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_trace_of_a_training() -> None:
    traces = []
    for seed in (1, 1, 2):
        world = VirtualWorld(5, seed=seed, is_traced=True)
        world.run(joined(trained(size=5).play))
        traces.append("\n".join(world.trace))
    assert traces[0] == traces[1] != traces[2]
    assert traces[0]


def test_a_step_takes_its_modelled_time_and_communication_hides_behind_backward() -> None:
    def times(latency: float) -> list[float]:
        world = {"compute": Constant(0.1), "network": Network(latency=latency, bandwidth=1e15)}
        return trained(steps=10, world=world).run(lambda trainer: trainer.clock.now())

    assert times(0.0) == pytest.approx([1.0] * 3, abs=1e-3)
    slow = times(0.005)
    exposed = max(slow) - 1.0  # at most the exchange of every step's last part, and the few at start and end
    assert 0.1 < exposed < 0.9
    assert 0 < FORWARD_SHARE < 1


def test_bytes_counted_on_the_wire_are_the_reducers_own_formula() -> None:
    def counted(wire: Wire) -> tuple[int, int]:
        metered = Metered(wire)
        current.enter(metered, thread_only=True)
        model = net(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        distribute(optimizer, model)
        metered.meter.bytes_out.clear()
        for step in range(3):
            model(data(wire.rank, step)).sum().backward()
            optimizer.step()
        worker = optimizer.__dict__["_quorate_worker"]
        return metered.meter.bytes_out["all_reduce"], 3 * worker.means.reducer.wire_bytes(wire.size)

    for size in (2, 3, 5):
        for counts, formula in VirtualWorld(size).run(counted):
            assert counts == formula > 0


def test_a_worker_that_dies_ends_the_training_of_the_others_with_its_name() -> None:
    for rank, outcome in enumerate(trained(steps=5, dies={1: 3}).outcomes()):
        if rank != 1:
            assert isinstance(outcome.error, PeerFailed)
            assert outcome.error.ranks == (1,)


def test_a_gradient_that_somebody_keeps_is_never_written_again() -> None:
    def keeps(trainer: Trainer) -> None:
        model, optimizer = trainer.model, trainer.optimizer
        kept: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []
        for step in range(6):
            optimizer.zero_grad(set_to_none=step != 4)
            before = [p.grad for p in model.parameters()]
            model(data(trainer.rank, step)).square().mean().backward()
            now = [p.grad for p in model.parameters()]
            if step == 4:  # gradients that were there stay the same tensors
                assert all(a is b for a, b in zip(before, now, strict=True))
            if step in (0, 1, 5):
                kept.append((now, [g.clone() for g in now]))  # type: ignore[arg-type, union-attr]
            optimizer.step()
            if step == 1:
                optimizer.step()  # agrees on what is there, and leaves it where it is
                assert all(p.grad is g for p, g in zip(model.parameters(), now, strict=True))
                kept[-1] = (now, [g.clone() for g in now])  # type: ignore[union-attr]
        for grads, copies in kept:
            assert all(torch.equal(a, b) for a, b in zip(grads, copies, strict=True))

    trained(size=2).act(keeps)


def test_memory_that_nobody_keeps_is_packed_into_again() -> None:
    def note(trainer: Trainer) -> None:
        trainer.seen.append(trainer.model[0].weight.grad.data_ptr())

    assert trained(size=2, steps=5, between=note).run(lambda trainer: len(set(trainer.seen))) == [1, 1]


def test_a_strategy_of_ones_own_needs_one_file_outside_the_package() -> None:
    @strategies.register("every-other")
    @dataclass(frozen=True, kw_only=True)
    class EveryOther(Strategy):
        """Local steps, parameters averaged every `period` (Stich, ICLR 2019, Algorithm 1)."""

        period: int = 2

        def step(self, worker: Worker) -> None:
            worker.update()
            if worker.step % self.period == 0:
                worker.parameters = worker.means.of(worker.parameters).wait()

    assert not torch.equal(trained(strategy="every-other").end(), trained(strategy="every-other", period=1).end())
    with pytest.raises(ConfigurationError, match="period"):
        trained(strategy="every-other", perod=1).run()
    with pytest.raises(ConfigurationError, match='did you mean "every-other"'):
        trained(strategy="evry-other").run()


def test_what_was_chosen_on_the_command_line_goes_before_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_STRATEGY", "every-third")
    with pytest.raises(ConfigurationError, match='unknown strategy "every-third"'):
        trained(size=2).run()


def test_distribute_before_join_says_so() -> None:
    with pytest.raises(ConfigurationError, match=r"call quorate.join\(\) first"):
        distribute(torch.optim.SGD(net(0).parameters()), net(0))
