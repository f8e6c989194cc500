"""Elastic averaging: the equations, the sum that exchanges keep, and the centre as what is evaluated and kept."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import ConfigurationError, PeerFailed
from quorate.strategies import strategies
from tests.support.scene import Scene, Trainer, note

RATE, NUMEL = 0.1, 10
SIZES = [1, 2, 3, 5]


class Point(nn.Module):
    """Parameters in several tensors, which servers keep by turns."""

    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.full((2,), value, dtype=torch.float64) for _ in range(NUMEL // 2)])

    @property
    def x(self) -> Tensor:
        return torch.cat(list(self.parts))


def target(rank: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def drawn(trainer: Trainer) -> Tensor:
    return 0.5 * (trainer.model.x - target(trainer.rank)).square().sum()


def scene(name: str = "easgd", size: int = 3, **chosen: Any) -> Scene:
    return Scene(name, size, **{"model": Point, "rate": RATE, "loss": drawn, **chosen})


def ways(
    size: int, lengths: list[int], strategy: str, evaluate_at: int | None = None, **settings: Any
) -> list[list[Tensor]]:
    """By worker: its parameters after every step, and at the end."""
    draws = [random.Random(rank) for rank in range(size)]
    fields: dict[str, Any] = {"steps": lengths, "pause": lambda rank, _: draws[rank].random(), "after": note}
    rests = [] if evaluate_at is None else [evaluate_at + 1]
    return scene(strategy, size, rests=rests, **fields, **settings).run(lambda t: [*t.seen, t.parameters])


@pytest.mark.parametrize("evaluate_at", [None, 4])
@pytest.mark.parametrize("size", SIZES)
def test_the_symmetric_form_is_equations_5_and_6(size: int, evaluate_at: int | None) -> None:
    found = ways(size, [12] * size, "symmetric-easgd", evaluate_at, sync_every=3, beta=0.6)
    centre, x = torch.zeros(NUMEL, dtype=torch.float64), [torch.zeros(NUMEL, dtype=torch.float64)] * size
    for step in range(12):
        alpha = 0.6 / size if step % 3 == 0 else 0.0
        before = x
        x = [one - RATE * (one - target(rank)) - alpha * (one - centre) for rank, one in enumerate(x)]
        centre = centre + alpha * sum((one - centre for one in before), torch.zeros(NUMEL, dtype=torch.float64))
        for rank in range(size):
            torch.testing.assert_close(found[rank][step], x[rank], rtol=0, atol=1e-14)
    for rank in range(size):
        torch.testing.assert_close(found[rank][-1], centre, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("settings", "evaluate_at"), [({}, None), ({}, 4), ({"servers": 1}, None), ({"overlap": True}, None)]
)
@pytest.mark.parametrize("size", SIZES)
def test_in_a_given_order_it_is_algorithm_1(size: int, settings: dict[str, Any], evaluate_at: int | None) -> None:
    lengths = [12 + 2 * rank for rank in range(size)]
    found = ways(size, lengths, "easgd", evaluate_at, sync_every=3, alpha=0.2, in_order=True, **settings)
    centre, x = torch.zeros(NUMEL, dtype=torch.float64), [torch.zeros(NUMEL, dtype=torch.float64)] * size
    late = [torch.zeros(NUMEL, dtype=torch.float64)] * size
    for step in range(max(lengths)):
        for rank in (rank for rank in range(size) if step < lengths[rank]):
            x[rank] = x[rank] - late[rank]  # what came with one step's delay is here now
            gradient = x[rank] + late[rank] - target(rank)
            late[rank] = torch.zeros(NUMEL, dtype=torch.float64)
            way = (0.2 if step % 3 == 0 else 0.0) * (x[rank] - centre)
            if "overlap" in settings:
                late[rank] = way
            else:
                x[rank] = x[rank] - way
            x[rank] = x[rank] - RATE * gradient
            centre = centre + way
            torch.testing.assert_close(found[rank][step], x[rank], rtol=0, atol=1e-12)
    for one in found:
        torch.testing.assert_close(one[-1], centre, rtol=0, atol=1e-12)


@pytest.mark.parametrize("ends", ["together", "uneven"])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.seeds(2, 60)
def test_exchanges_keep_the_sum_of_all_workers_and_the_centre(size: int, overlap: bool, ends: str, seed: int) -> None:
    """Steps move by known ways; whoever comes when, the sum is what these make of it."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, 14) for _ in range(size)]
    settings = {"sync_every": draw.randint(1, 4), "alpha": draw.uniform(0.1, 0.9)}
    settings["servers"] = draw.choice(["all", 1, size])

    def loss(trainer: Trainer) -> Tensor:
        return -(trainer.model.x * target(100 * trainer.step + trainer.rank)).sum()

    def play(trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
        steps = range(lengths[trainer.rank])
        trainer.train(len(steps))
        gone = RATE * torch.stack([target(100 * step + trainer.rank) for step in steps]).sum(0)
        mine = trainer.parameters
        if ends == "uneven" and not overlap:  # else what is under way comes as it ends
            return mine, trainer.finish().parameters, gone
        with trainer.world.evaluate():
            centre = trainer.parameters
        return trainer.parameters, centre, gone

    late = [random.Random(seed + rank) for rank in range(size)]
    fields: dict[str, Any] = {"model": lambda: Point(1.0), "loss": loss}
    fields["pause"] = lambda rank, _: late[rank].random() * (0.1 + (rank == 0))

    found = scene("easgd", size, overlap=overlap, **fields, **settings).act(play)
    xs, centres, gone = zip(*found, strict=True)
    assert all(torch.equal(one, centres[0]) for one in centres)
    total = sum(xs) + centres[0]
    torch.testing.assert_close(total, sum(gone) + float(size + 1), rtol=0, atol=1e-12)
    assert size == 1 or not torch.equal(xs[0], xs[1])


@pytest.mark.parametrize("name", ["easgd", "symmetric-easgd"])
def test_an_evaluation_sees_the_centre_and_leaves_every_worker_its_own(name: str) -> None:
    def play(trainer: Trainer) -> list[Tensor]:
        before, states = trainer.train(5).parameters, trainer.optimizer.state.values()
        momenta = [state["momentum_buffer"].clone() for state in states]
        with trainer.world.evaluate():
            centre = trainer.parameters
        with trainer.world.evaluate(at="replica"):
            assert torch.equal(trainer.parameters, before)
        assert torch.equal(trainer.parameters, before)
        assert trainer.worker.updates == 5, "of its own steps, not those of the centre"
        assert all(map(torch.equal, momenta, [state["momentum_buffer"] for state in states]))
        trainer.train(6)
        return [before, centre]

    found = scene(name, heavy=0.9, sync_every=3).act(play)
    assert all(torch.equal(centre, found[0][1]) for _, centre in found)
    assert len({tuple(before.tolist()) for before, _ in found}) == 3
    assert not torch.equal(found[0][0], found[0][1])


@pytest.mark.parametrize("name", ["easgd", "symmetric-easgd"])
def test_a_centre_that_the_script_writes_is_the_centre_from_then_on(name: str) -> None:
    def play(trainer: Trainer) -> list[Tensor]:
        trainer.train(5)
        with trainer.world.evaluate(), torch.no_grad():
            for p in trainer.model.parameters():
                p.fill_(3.0)
        with trainer.world.evaluate():
            first = trainer.parameters
        trainer.train(7)
        with trainer.world.evaluate():
            return [first, trainer.parameters]

    for found, later in scene(name, sync_every=3, loss=lambda t: drawn(t) * (t.step < 5)).act(play):
        assert torch.equal(found, torch.full_like(found, 3.0))
        assert not torch.equal(found, later)  # it has been drawn on from there


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "symmetric-easgd"])
@pytest.mark.parametrize("servers", ["all", 1])
def test_it_learns_with_momentum_and_a_late_worker(name: str, servers: Any) -> None:
    settings = {} if name == "symmetric-easgd" else {"servers": servers}

    def loss(trainer: Trainer) -> Tensor:
        noise = target(1000 * (trainer.step + 1) + trainer.rank)
        return 0.05 * (trainer.model.x - target(0)).square().sum() + 0.1 * (trainer.model.x * noise).sum()

    steps = [120 if name == "symmetric-easgd" else 60, 120, 120]
    pause = lambda rank, _: 0.01 if rank else 0.02  # noqa: E731
    end = scene(name, heavy=0.9, loss=loss, steps=steps, pause=pause, sync_every=4, **settings).end()
    assert float((end - target(0)).norm()) < 0.3 * float(target(0).norm())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sync_every": 0}, "sync_every is 0; it must be a number of steps"),
        ({"beta": 0.0}, "beta is 0.0; it must be a number above 0 and at most 1"),
        ({"beta": 1.5}, "beta is 1.5"),
        ({"beta": float("nan")}, "beta is nan"),
        ({"alpha": 1.0}, "alpha is 1.0; it must be a number above 0 and below 1"),
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"servers": 0}, 'servers is 0; it must be "all", or a whole number'),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        strategies.get("easgd")(**settings)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("easgd", {"servers": 3}, "servers=3 needs as many workers, and there are 2"),
        ("symmetric-easgd", {"alpha": 0.6}, "alpha is 0.6 on 2 workers; it must be at most 1 / 2"),
    ],
)
def test_settings_that_this_world_cannot_have_are_refused(name: str, settings: dict[str, Any], said: str) -> None:
    assert said in scene(name, 2, **settings).refusal()


@pytest.mark.parametrize(("name", "momentum", "says"), [("eamsgd", 0.0, 1), ("eamsgd", 0.9, 0), ("easgd", 0.0, 0)])
def test_eamsgd_without_momentum_is_told(
    name: str, momentum: float, says: int, capfd: pytest.CaptureFixture[str]
) -> None:
    scene(name, 2, heavy=momentum).act(Trainer.finish)
    assert capfd.readouterr().err.count("eamsgd is easgd whose local steps have momentum") == says


def test_the_optimizer_needs_no_learning_rate_option() -> None:
    class Plain(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {})

        def step(self, closure: Any = None) -> None:
            with torch.no_grad():
                for p in self.param_groups[0]["params"]:
                    p.add_(p.grad, alpha=-0.1)

    assert scene("easgd", 2, make=Plain, steps=3, sync_every=1).end().any()


def test_a_server_whose_own_worker_has_ended_goes_on_from_the_centre() -> None:
    """Not from where a worker is that it asks for its part."""

    def play(trainer: Trainer) -> list[Tensor]:
        trainer.train(5)
        if trainer.rank != 2:
            for _ in range(2):
                with trainer.world.evaluate():
                    note(trainer)
        return [*trainer.seen, trainer.finish().parameters]

    found = scene(sync_every=2).act(play)
    for one in found:
        assert all(torch.equal(centre, found[0][0]) for centre in one)


@pytest.mark.parametrize("in_order", [False, True])
def test_workers_wait_for_each_other_where_exchanges_have_an_order(in_order: bool) -> None:
    settings: dict[str, Any] = {"in_order": in_order}
    strategy = strategies.get("easgd")(**settings)
    assert strategy.waits == in_order


def fates(size: int, dead: int, **settings: Any) -> list[Any]:
    """What becomes of workers of which one dies at its seventh step: where they are before the end, and behind it."""

    def after(trainer: Trainer) -> None:
        if trainer.step == 14:
            note(trainer)

    fields: dict[str, Any] = {"steps": 14, "dies": {dead: 6}, "pause": 0.01, "after": after, "world": {"seed": 1}}
    scenes = scene("easgd", size, sync_every=2, on_death="continue", **fields, **settings)
    return scenes.outcomes(lambda trainer: [*trainer.seen, trainer.parameters])


@pytest.mark.parametrize("settings", [{}, {"overlap": True}, {"in_order": True}], ids=str)
def test_the_others_go_on_without_a_worker_that_is_no_server(settings: dict[str, Any]) -> None:
    found = fates(4, 3, servers=2, **settings)
    assert found[3].is_crashed
    ends = [one.result for one in found[:3]]
    assert all(end is not None for end in ends), found
    assert all(torch.equal(end[1], ends[0][1]) for end in ends)
    assert not torch.equal(ends[0][0], ends[1][0])


@pytest.mark.parametrize(("servers", "lost"), [(2, "a part of the centre was"), (1, "the centre was")])
def test_without_a_server_all_stop_in_a_sentence(servers: int, lost: str) -> None:
    found = fates(3, 0, servers=servers)
    for one in found[1:]:
        assert isinstance(one.error, PeerFailed), one
        assert f"it was a server, and {lost} on it alone" in str(one.error)


@pytest.mark.parametrize("servers", ["all", 1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_an_exchange_is_d_numbers_there_and_back(size: int, servers: Any) -> None:
    """Of all workers; what lies on a worker's own server is not sent."""
    if servers == 2 and size == 1:
        return

    def play(trainer: Trainer) -> int:
        meter = trainer.worker.wire.meter
        trainer.world.barrier()
        before = meter.bytes_out.total()
        trainer.train(12)
        trainer.world.barrier()
        return meter.bytes_out.total() - before

    told = scene("easgd", size, sync_every=3, servers=servers).act(play)
    assert sum(told) == 4 * 2 * (size - 1) * NUMEL * 8
