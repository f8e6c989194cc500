"""Wrong gradients, and late ones, among real processes: the strategies that bear them end where they should."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quorate.aggregation.centered_clipping import CenteredClipping
from quorate.aggregation.median import Median
from quorate.aggregation.multi_krum import MultiKrum
from quorate.aggregation.rule import Rule, aggregated
from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.vectors import empty_vector, header_in
from quorate.launch.worker.world import World
from quorate.means.robust import Robust
from tests.support.processes import run_real, run_real_world
from tests.support.sampled import Few
from tests.support.scene import Scene, spoiling, sums

STEPS = 12


def train(wrong: bool, late: bool, settings: dict[str, Any], world: World) -> Tensor:
    """The parameters at the end; rank 2 is `wrong`, or `late`."""
    chosen = {"strategy": "all-reduce", "on_nonfinite": "ignore", **settings}
    spoilt = spoiling({2: lambda g: -1e4 * g} if wrong else {})
    pause = lambda rank, step: 0.02 * (late and rank == 2)  # noqa: E731 - lateness is what is tried
    data = sums(4 * STEPS * world.size, 8)
    return Scene(model=(8, 16, 1), data=data, begin=spoilt, pause=pause, **chosen).play(world).parameters


@dataclass(frozen=True)
class Training:
    """What `train` is called with."""

    wrong: bool = False
    late: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


def all_of(trainings: Sequence[Training], world: World) -> list[Tensor]:
    return [train(each.wrong, each.late, each.settings, world) for each in trainings]


def ends(size: int, *trainings: Training) -> list[Tensor]:
    """Return the parameters at the end of each training, in one world; all workers have the same."""
    by_rank = run_real_world(size, partial(all_of, trainings), 60.0)
    for first, *others in zip(*by_rank, strict=True):
        assert all(torch.equal(other.nan_to_num(), first.nan_to_num()) for other in others)
    return by_rank[0]


def apart(x: Tensor, y: Tensor) -> float:
    return float((x - y).abs().max())


def summed_by_rules(rules: Sequence[Rule], wire: Wire) -> None:
    """What rules make of vectors that lie in memory which workers share, whoever comes late to which step."""
    layout = layout_of([(str(part), torch.zeros(60_000)) for part in range(3)], part_bytes=1 << 18, header=4)
    late = random.Random(wire.rank)
    for number, rule in enumerate(rules):
        channel = wire.channel(str(number))
        reducer, x = Robust(layout, channel, rule, seed=3), empty_vector(layout, channel.empty)
        centre = torch.zeros(180_000)
        for step in range(4):
            drawn = torch.Generator().manual_seed(10 * step + number)
            every = torch.randn(wire.size, 180_000, generator=drawn)
            place = 0
            for part in range(len(x.parts)):
                bare = x.bare().parts[part]
                bare.copy_(every[wire.rank, place : place + bare.numel()])
                place += bare.numel()
            header_in(x).fill_(1.0)
            found = torch.cat(reducer.start(x).wait().bare().parts)
            centre = aggregated(rule, every, centre)
            torch.testing.assert_close(found, centre, rtol=1e-5, atol=1e-6)
            time.sleep(0.01 * late.random())  # lateness is what is tried


def test_rules_read_vectors_where_they_lie(few: Few) -> None:
    run_real(3, partial(summed_by_rules, few([Median(), CenteredClipping(), MultiKrum(f=0)])), 60.0)


def test_draco_ends_where_it_ends_without_wrong_ones() -> None:
    """Each in a world of its own: how batches are dealt goes by the strategy that is chosen first."""
    draco: dict[str, Any] = {"strategy": "draco", "s": 1}
    (free,), (wrong,) = (ends(3, Training(wrong=is_wrong, settings=draco)) for is_wrong in (False, True))
    assert apart(wrong, free) == 0.0
    (wanted,) = ends(3, Training(settings={"strategy": "all-reduce"}))
    (decoded,) = ends(3, Training(wrong=True, settings=draco | {"code": "cyclic"}))
    assert apart(decoded, wanted) < 1e-4


def test_gradient_coding_ends_where_all_reduce_does_without_the_latest() -> None:
    (wanted,) = ends(3, Training(settings={"strategy": "all-reduce"}))
    coding = {"strategy": "gradient-coding", "code": "cyclic", "s": 1, "grace": 30.0}  # nobody is left out for its load
    (found,) = ends(3, Training(late=True, settings=coding))
    assert apart(found, wanted) < 1e-4


def test_what_is_absurd_is_left_out_and_a_quorum_has_a_rule() -> None:
    ruled: dict[str, Any] = {"strategy": "quorum", "wait_for": 3, "reduce": "median:f=1"}
    free, skipped, by_rule, summed = ends(
        4,
        Training(),
        Training(wrong=True, settings={"on_anomaly": "skip"}),
        Training(wrong=True, settings=ruled),
        Training(wrong=True),
    )
    assert apart(skipped, free) < 0.5
    assert apart(by_rule, free) < 2.0, "which gradients a round takes depends on time"
    assert not apart(summed, free) < 100
