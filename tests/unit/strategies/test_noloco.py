"""NoLoCo: its equations, for even and odd numbers of workers; pauses, edits and checkpoints; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.gossip.topology import topology_of
from tests.support.local_trainings import loss, net
from tests.support.scene import Scene, Trainer, note, zeros

RATE, ETA, GAMMA = 0.1, 0.7, 0.4


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("mixing", [1.0, 0.5])
def test_it_equals_the_equations(size: int, mixing: float) -> None:
    """SGD on a linear loss, two steps a period: y = p + eta g, p = y - alpha (y - W y) + gamma (y - y before)."""
    periods = 5
    slopes = [torch.randn(1, 6, generator=torch.Generator().manual_seed(rank)) for rank in range(size)]
    graph = topology_of("random-matching", size)
    p, before = torch.ones(size, 6), None
    for number in range(periods):
        y = p - ETA * 2 * RATE * torch.cat(slopes)
        w = torch.zeros(size, size)
        for rank in range(size):
            for edge in graph.out_edges(rank, size, number):
                w[rank, edge.peer] = edge.weight
        p = y - mixing * (y - w @ y)
        if before is not None:
            p = p + GAMMA * (y - before)
        before = y
    scene = Scene(
        "noloco",
        size,
        model=zeros(6, 1, value=1.0),
        rate=RATE,
        loss=lambda t: (t.model.weight * slopes[t.rank]).sum(),
        steps=2 * periods,
        settings={"sync_every": 2, "mixing": mixing, "outer_rate": ETA, "outer_momentum": GAMMA},
        last=lambda t: t.seen.append(t.parameters),
    )
    for rank, (end, seen) in enumerate(scene.run(lambda t: (t.parameters, t.seen))):
        torch.testing.assert_close(seen[-1], p[rank])
        torch.testing.assert_close(end, p.mean(0))


def test_on_a_complete_graph_without_momentum_it_is_local_sgd() -> None:
    def trained(strategy: str, **settings: Any) -> list[torch.Tensor]:
        fields: dict[str, Any] = {"model": net, "steps": 12, "loss": lambda t: loss(t.model, t.rank, t.step)}
        return Scene(strategy, 3, **fields, settings={"sync_every": 4, **settings}).run(lambda t: t.parameters)

    gossip = trained("noloco", topology="complete", outer_rate=1.0, outer_momentum=0.0)
    for end, expected in zip(gossip, trained("local-sgd"), strict=True):
        torch.testing.assert_close(end, expected, atol=1e-5, rtol=1e-4)


def test_an_evaluation_changes_nothing_and_is_of_the_mean() -> None:
    def trained(rests: tuple[int, ...]) -> list[tuple[torch.Tensor, list[Any]]]:
        fields: dict[str, Any] = {"model": net, "loss": lambda t: loss(t.model, t.rank, t.step), "steps": 11}
        settings = {"sync_every": 3}
        return Scene("noloco", 3, **fields, settings=settings, rests=rests, rest=note).run(
            lambda t: (t.parameters, t.seen)
        )

    rested, unbroken = trained((4, 6)), trained(())
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(rested, unbroken, strict=True))


def test_a_worker_waits_for_its_neighbour_of_a_round_only() -> None:
    """Of four workers in pairs, the pair of the slow one waits in the first round, and the other pair does not."""
    pairs = {rank: topology_of("random-matching", 4).out_edges(rank, 4, 0)[1].peer for rank in range(4)}
    slow = 3

    def trained(trainer: Trainer) -> list[float]:
        return trainer.times

    pause = lambda rank, step: 0.1 if rank == slow else 0.01  # noqa: E731
    times = Scene("noloco", 4, model=net, steps=2, settings={"sync_every": 2}, pause=pause).run(trained)
    for rank in range(4):
        assert (times[rank][-1] > 0.15) == (rank in (slow, pairs[slow]))


@pytest.mark.parametrize("at", [4, 7])
def test_a_resumed_training_ends_as_an_unbroken_one(at: int, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"model": net, "loss": lambda t: loss(t.model, t.rank, t.step), "steps": 14}
    scene = Scene("noloco", 3, heavy=0.9, settings={"sync_every": 3, "outer_rate": 0.7}, **fields)
    unbroken, resumed = scene.resumed(tmp_path, at, at + 2)
    assert all(map(torch.equal, resumed, unbroken))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"mixing": 0.0}, "mixing is 0.0; it must be a share above 0 and at most 1"),
        ({"outer_momentum": 1.0}, "the momentum at least 0 and below 1"),
        ({"sync_every": 0}, "sync_every is 0; it must be a number of steps"),
        ({"topology": "exponential"}, "lead one way"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        Scene("noloco", 3, model=net, steps=1, settings=settings).run(lambda t: None)
