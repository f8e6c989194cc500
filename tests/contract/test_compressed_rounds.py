"""What is learnt from contributions to rounds that codecs write small: late workers, deaths, joins, checkpoints."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.rounds import forming
from quorate.rounds.forming import Forming
from quorate.strategies import strategies
from quorate.train.reduced import with_reduction
from quorate.wire.virtual.network import Network
from tests.contract.test_compressed import CODED, Loop, scene
from tests.support.counted_world import CountedWorld
from tests.support.joined import joined
from tests.support.scene import Scene, squares
from tests.unit.rounds.test_joining import Plan, check

UNDER: dict[str, dict[str, Any]] = {
    "all": {"strategy": "quorum", "wait_for": "all", "momentum": "common"},
    "majority": {"strategy": "eager-majority"},
    "solo": {"strategy": "eager-solo"},
    "adaptive": {"strategy": "adaptive"},
}
SOME = ("half", "top-k", "random-k", "blocks", "sign")


@cache
def dense(under: str) -> float:
    return Loop(UNDER[under]).run()[0]


@pytest.mark.covering(("name", "under"), product(SOME, UNDER))
def test_an_ordinary_loop_learns_nearly_as_much(name: str, under: str) -> None:
    loss, replicas = Loop(UNDER[under] | CODED[name]).run()
    assert all(torch.equal(replica, replicas[0]) for replica in replicas)
    assert loss <= 1.6 * dense(under) + 0.02, f"{loss:.4f}, dense {dense(under):.4f}"


@pytest.mark.parametrize("uneven", [False, True])
def test_a_quorum_of_all_is_all_reduce(uneven: bool) -> None:
    """Of a codec that draws nothing; both give each contribution with what was left out of the one before."""
    (_, rounds), (_, sums) = (
        Loop(settings | CODED["top-k"], uneven=uneven).run() for settings in (UNDER["all"], {"strategy": "all-reduce"})
    )
    if not uneven:
        torch.testing.assert_close(rounds[0], sums[0], rtol=1e-4, atol=1e-5)
    assert all(torch.equal(replica, rounds[0]) for replica in rounds)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.seeds(2, 8)
def test_they_die_and_join_at_any_time(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    size = draw.choice([2, 3, 5])
    hosts = draw.choice([None, [0, 0, 1, 1, 2, 2]])
    if hosts is not None:
        monkeypatch.setattr(forming, "HUB_BYTES", 0)  # so that hosts form rounds, however small they are
    plan = Plan(
        size=size,
        settings={"wait_for": draw.choice(["all", "majority", 1]), **CODED[name]},
        joins={size: draw.uniform(0.0, 0.5)} if draw.random() < 0.6 else {},
        deaths={rank: draw.randint(1, 150) for rank in draw.sample(range(size), draw.choice([0, 1]))},
        width=draw.choice([4, 4000]),
        seed=seed,
        network=None if hosts is None else Network(hosts=hosts),
        pace=lambda rank: 0.01 * (1 + rank),
    )
    check(plan, plan.run())


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("size", [2, 3])
def test_it_goes_on_to_the_bit_from_a_checkpoint(tmp_path: Path, size: int, name: str) -> None:
    whole, again = scene(name, size, **UNDER["all"]).resumed(tmp_path, 5, 8)
    assert all(map(torch.equal, again, whole))


@pytest.mark.parametrize("size", [2, 4])
def test_it_goes_on_with_other_workers(tmp_path: Path, size: int) -> None:
    """What was left out is kept, in units of the new world's contributions."""
    scene("top-k", steps=8, root=tmp_path, saves=[5], **UNDER["all"]).run()
    scene("top-k", size, root=tmp_path, loads=True, **UNDER["all"]).end()


@pytest.mark.parametrize("hosts", [[0, 1, 2], [0, 0, 1, 1, 2]])
@pytest.mark.parametrize("name", ["half", "random-k", "blocks", "sign"])
def test_codes_and_pieces_make_the_same_sums(name: str, hosts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: whether hosts send each other codes, or pieces of what these stand for."""
    monkeypatch.setattr(forming, "HUB_BYTES", 0)
    found, plans = [], []

    for codes in (True, False):
        monkeypatch.setattr(Forming, "is_less_in_codes", choosing(plans, codes=codes))
        found.append(between_hosts(hosts, 10, 40, **CODED[name]).ends())
    assert {True, False} == set(plans)
    for mine, other in zip(*found, strict=True):
        assert torch.equal(mine, other)


def choosing(plans: list[bool], *, codes: bool) -> Callable[[Forming, Any], bool]:
    """Codes, where all that give have them."""

    def is_less_in_codes(one: Forming, sizes: Any) -> bool:
        plans.append(codes and all(sizes[rank] is not None for rank in one.contributors))
        return plans[-1]

    return is_less_in_codes


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"compress": "top-k", "density": 0.01}, 0.1),
        ({"compress": "half"}, 0.8),
        ({"compress": "blocks", "bits": 4}, 0.25),
        ({"compress": "sign"}, 0.1),
    ],
)
def test_contributions_are_short_messages_between_hosts(settings: dict[str, Any], share: float) -> None:
    def sent(**settings: Any) -> int:
        return sum(between_hosts([0, 1, 2], 10, **settings).act(lambda trainer: trainer.train(10).bytes_out))

    assert sent(**settings) < share * sent()


def test_where_many_give_codes_sums_go_in_pieces() -> None:
    """A code for each of eight workers is more than the sum of all; what a host gets is bounded as without a codec."""
    network = Network(hosts=[0, 0, 1, 1, 2, 2, 3, 3])

    def sent(**settings: Any) -> int:
        world = CountedWorld(8, network=network)
        world.run(joined(between_hosts([], 4, **settings).play))
        return max(world.traffic.into_hosts().values()) // (8 * 4)

    assert sent(compress="half") < 1.02 * sent()


def between_hosts(hosts: list[int], steps: int, width: int = 300, **settings: Any) -> Scene:
    """Rounds of workers on these hosts."""
    fields: dict[str, Any] = {"model": (width, width), "rate": 0.01, "steps": steps, "loss": squares, **UNDER["all"]}
    return Scene(size=len(hosts), world={"network": Network(hosts=hosts)} if hosts else {}, **fields, **settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"compress": "power-sgd"}, "is for sums of all workers (all-reduce); under quorum rounds form the sums"),
        ({"compress": "top-k", "reduce": "two-phase"}, "is for sums of all workers (all-reduce); under quorum"),
        (
            {"compress": "dgc"},
            "remembers more than what it leaves out, which rounds do not support",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        with_reduction(strategies.get("quorum"), settings, "quorum")
    assert sentence in str(refused.value)
