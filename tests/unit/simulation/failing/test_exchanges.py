"""The seconds that exchanges add to a step equal those of a simulation of every step."""

from __future__ import annotations

import pytest

from quorate.core.durations import Constant
from quorate.simulation.busy import Modelled
from quorate.simulation.failing.exchanges import Exchanges
from quorate.simulation.links import links_from
from quorate.simulation.played import Case
from quorate.simulation.together import every_so_many, in_every_step


def case(workers: int, links: str, parameters: int) -> Case:
    return Case(
        workers=workers,
        steps=4,
        parameters=parameters,
        busy=Modelled(compute=Constant(1.0)),
        links=links_from(links),
        seed=0,
        examples=None,
        watch=lambda share: None,
    )


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize(("links", "parameters"), [("1ms:1Gbit", 1000), ("1ms:1Gbit:halving", 30_000_000)])
def test_of_every_step(workers: int, links: str, parameters: int) -> None:
    played = in_every_step(case(workers, links, parameters))
    added = Exchanges(links_from(links), parameters).within(workers, 1.0)
    assert max(played.end) / 4 - 1.0 == pytest.approx(added, abs=1e-5)  # a few bytes go along


def test_of_a_meeting() -> None:
    played = every_so_many(case(3, "1ms:1Gbit", 10_000_000), 4, "steps", vectors=1)
    assert max(played.end) - 4.0 == pytest.approx(Exchanges(links_from("1ms:1Gbit"), 10_000_000).mean(3), abs=1e-5)


def test_without_a_network_they_cost_nothing() -> None:
    free = Exchanges()
    assert free.within(8, 1.0) == free.mean(8) == free.round(8) == 0.0
    assert Exchanges(links_from("1ms:1GB"), 250_000_000).round(3) == pytest.approx(4e-3 + 2 * 2 / 3)
    assert Exchanges(links_from("1ms:1GB:mesh"), 250_000_000).round(3) == pytest.approx(2.004)
