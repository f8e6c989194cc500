"""Parts of gradients that change while training: no bit changes, all workers change at the same sum, and why."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.vectors import digest_of
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of, rows
from quorate.train import part_tuning
from quorate.train.loop import loops_of
from quorate.tuning.best_parts import LinkCosts
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

STEPS = 70
SMALL = {"part_bytes": 600, "first_part_bytes": 200}
SETTINGS: list[dict[str, Any]] = [
    SMALL,
    {**SMALL, "part_order": "arrival"},
    {"part_layout": "measured"},
    {**SMALL, "part_overlap": False},
    {**SMALL, "part_channels": 3},
    {**SMALL, "autotune": True},
]


class Net(nn.Module):
    """Its gradients become ready in another order than that of registration from its end."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(12, 1)
        self.layers = nn.Sequential(*[part for _ in range(6) for part in (nn.Linear(12, 12), nn.Tanh())])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(x))


def trained(
    settings: dict[str, Any],
    world: quorate.World,
    *,
    steps: Callable[[int], int] = lambda rank: STEPS,
    before: Callable[[int, Net, quorate.World], None] = lambda step, model, world: None,
    folder: Path | None = None,
) -> tuple[str, Any, int, str]:
    """Train, and return a digest of the parameters, the choice, the number of parts, and a digest of the layout."""
    if folder is not None and world.rank == 0:
        current.here().context(Timing).recorder = Recorder(records_of(folder, 0))
    model, data = Net(), torch.Generator().manual_seed(world.rank)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model, **settings)
    for step in range(steps(world.rank)):
        before(step, model, world)
        optimizer.zero_grad()
        model(torch.randn(4, 12, generator=data)).square().mean().backward()
        optimizer.step()
    (loop,) = loops_of(current.here())
    schedule, layout = loop.worker.means.parts, loop.replica.layout
    optimizer.finish()
    recorder = current.here().context(Timing).recorder
    if recorder is not None:
        recorder.close()
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    choice = schedule._used if isinstance(schedule, part_tuning.PartTuning) else None
    return bits, choice, len(layout.parts), digest_of(layout)


def run(settings: dict[str, Any], *, network: Network | None = None, **how: Any) -> list[tuple[str, Any, int, str]]:
    return VirtualWorld(3, network=network).run(joined(partial(trained, settings, **how)))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_tuning, "STEPS", 60)
    monkeypatch.setattr(part_tuning, "SAMPLES", ((64, 1), (1 << 12, 1)))


@pytest.fixture(scope="module")
def usual() -> tuple[str, Any, int, str]:
    return run({})[0]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_no_choice_of_parts_changes_a_bit(settings: dict[str, Any], usual: tuple[str, Any, int, str]) -> None:
    results = run(settings, network=Network(latency=0.0, bandwidth=1e7))
    assert {bits for bits, *_ in results} == {usual[0]}
    assert len({layout for *_, layout in results}) == 1 and len({choice for _, choice, *_ in results}) == 1
    assert usual[2] == 1 < results[0][2]


def test_parts_in_the_order_of_arrival_begin_with_the_last_layer() -> None:
    (_, choice, parts, _), *_ = run({**SMALL, "part_order": "arrival"})
    assert choice.part_order == "arrival" and parts > 3


def test_without_settings_nothing_is_added_to_a_step() -> None:
    assert run({}, steps=lambda rank: 2)[0][1] is None
    assert run(SMALL, steps=lambda rank: 2)[0][1] is None


def test_a_tuning_finds_what_a_slow_network_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_tuning, "STEPS", 80)
    results = run({"autotune": True}, network=Network(latency=0.0002, bandwidth=1e6), folder=tmp_path, steps=_ninety)
    assert results[0][1].part_layout == "measured" and results[0][2] > 2
    (row,) = [row for row in rows(records_of(tmp_path, 0)) if row["kind"] == "tuned"]
    assert row["steps"] <= 80 and row["latency"] > 0.0002 > row["gap"] and len(row["why"]) == 3
    (taken,) = [tried for tried in row["tried"] if tried["taken"]]
    assert taken["low"] > 1.05 and row["settings"]["part_layout"] == "measured"
    assert taken["measured"] == pytest.approx(taken["predicted"], rel=0.15)
    assert row["measured"] == pytest.approx(row["predicted"], rel=0.15)


def _ninety(rank: int) -> int:
    return 90


def test_workers_that_end_early_change_their_sums_with_the_others() -> None:
    uneven = {"steps": lambda rank: STEPS - 25 * rank}
    plain = run({}, **uneven)
    tuned = run({**SMALL, "autotune": True}, network=Network(latency=0.004), **uneven)
    assert {bits for bits, *_ in plain} == {bits for bits, *_ in tuned} and len({bits for bits, *_ in plain}) == 1


def test_evaluations_and_freezing_interrupt_a_tuning() -> None:
    def interrupted(step: int, model: Net, world: quorate.World) -> None:
        if step in (5, 23):
            with world.evaluate():
                pass
        if step == 30:
            model.layers[0].requires_grad_(False)

    plain, tuned = (run(settings, before=interrupted) for settings in ({}, {**SMALL, "autotune": True}))
    assert {bits for bits, *_ in plain} == {bits for bits, *_ in tuned}


def test_parts_are_tuned_again_where_the_network_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_tuning, "STEPS", 40)
    monkeypatch.setattr(part_tuning, "LOOKS_EVERY", 10)
    sampled, calls = part_tuning.sampled_costs, list[int]()

    def slower_at_third(wire: Any, device: torch.device) -> LinkCosts:
        calls.append(wire.rank)
        costs = sampled(wire, device)
        return costs if calls.count(wire.rank) < 3 else replace(costs, latency=5 * costs.latency)

    monkeypatch.setattr(part_tuning, "sampled_costs", slower_at_third)
    run({**SMALL, "autotune": True}, steps=lambda rank: 130, folder=tmp_path)
    tunings = [row for row in rows(records_of(tmp_path, 0)) if row["kind"] == "tuned"]
    assert len(tunings) == 2 and calls.count(0) >= 3
    assert tunings[1]["latency"] > 4 * tunings[0]["latency"]
