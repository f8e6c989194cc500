"""Replicas that only meet their neighbours: gradients that are not finite; parameters that freeze, thaw and come."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import NotFinite, PeerFailed
from quorate.wire.virtual.world import VirtualWorld
from tests.support.gossip import Told, assert_nothing_is_lost, run, train
from tests.support.joined import joined

GOSSIP = ["d-psgd", "sgp", "osgp", "ad-psgd", "d2", "choco-sgd", "relay", "dcd-psgd", "ecd-psgd"]
CONSERVING = GOSSIP[:6]


@pytest.mark.parametrize("name", GOSSIP)
def test_who_brings_no_number_leaves_its_own_update_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(3, lambda w: train(w, 7, strategy=name, spoils=(1, 3), on_nonfinite="skip"))
    if name in CONSERVING:
        assert_nothing_is_lost(results)
    for result in results:
        assert bool(torch.isfinite(result.end).all())
        assert torch.equal(result.end, results[0].end)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith(f"quorate: rank 1 (host virtual) brought a gradient that is not finite to round 4 of {name}")
    assert "first in 0.weight; its update is left out" in said


@pytest.mark.parametrize("name", GOSSIP)
def test_it_can_end_the_run(name: str) -> None:
    @joined
    def live(world: quorate.World) -> Told:
        return train(world, 30, strategy=name, spoils=(1, 3), on_nonfinite="raise")

    errors = [outcome.error for outcome in VirtualWorld(3, timeout=60.0).outcomes(live)]
    assert isinstance(errors[1], NotFinite)
    assert errors[1].ranks == (1,)
    for rank in (0, 2):
        error = errors[rank]
        assert isinstance(error, PeerFailed), error
        assert 1 in error.ranks


@pytest.mark.parametrize(("policy", "lines"), [("warn", 1), ("ignore", 0)])
def test_it_counts_unless_told_otherwise(policy: str, lines: int, capsys: pytest.CaptureFixture[str]) -> None:
    results = run(2, lambda w: train(w, 4, strategy="sgp", spoils=(1, 3), on_nonfinite=policy))
    assert not any(bool(torch.isfinite(result.end).all()) for result in results)
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize("name", GOSSIP)
def test_layers_freeze_and_thaw(name: str) -> None:
    def task(world: Any) -> Told:
        return train(world, 12, strategy=name, trains={3: False, 8: True}, pauses=lambda rank, step: 0.01 * rank)

    results = run(3, task)
    weights = slice(0, 12)
    for result in results:
        assert torch.equal(result.end, results[0].end)
        moved = [bool(step[weights].any()) for step in result.steps]
        assert moved == [True] * 3 + [False] * 5 + [True] * 4
    if name in CONSERVING:
        assert_nothing_is_lost(results)


@pytest.mark.parametrize("name", GOSSIP)
def test_what_freezes_is_equal_at_the_end_though_nobody_trains_it_any_more(name: str) -> None:
    results = run(3, lambda w: train(w, 6, strategy=name, trains={3: False}))
    assert all(torch.equal(result.end, results[0].end) for result in results)


@pytest.mark.parametrize("name", GOSSIP)
def test_groups_may_come(name: str) -> None:
    results = run(3, lambda w: train(w, 9, strategy=name, adds=4))
    assert all(torch.equal(result.end, results[0].end) for result in results)
    assert not torch.equal(results[0].end[-5:], results[0].begin[-5:]), "it was trained"
    if name in CONSERVING:
        assert_nothing_is_lost(results)


@pytest.mark.parametrize("name", ["d-psgd", "sgp"])
def test_averaged_momenta_freeze_and_come_along(name: str) -> None:
    settings = {"strategy": name, "momentum": "average", "heavy": 0.5}
    results = run(3, lambda w: train(w, 10, trains={3: False, 6: True}, **settings))
    assert all(torch.equal(result.end, results[0].end) for result in results)
    assert bool(torch.isfinite(results[0].end).all())
