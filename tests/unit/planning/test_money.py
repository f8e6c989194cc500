"""Costs of trainings, against published figures to the digit."""

from __future__ import annotations

import pytest

from quorate.planning.money import (
    HOURS,
    Host,
    achieved_flops,
    cost_of,
    petaflop_of_a_year,
    training_seconds,
)
from quorate.planning.published import TABLE

DAY, YEAR_SECONDS = 86400.0, HOURS * 3600.0
HYPERPLANE = {"buy": 140_000, "upkeep": 20_534}
SCALAR = {"buy": 122_000, "upkeep": 16_779}
ON_DEMAND = 32.7726
"""Dollars for an hour of a p4d.24xlarge."""
YEARLY_FLOPS = 8 * 19.5e12 * 0.5 * YEAR_SECONDS


def test_the_operations_of_eight_gpus_in_a_year() -> None:
    """8 A100 at half of 19.5 TFLOP/s."""
    assert petaflop_of_a_year(8, 19.5e12, 0.5) == pytest.approx(2_459_808, abs=0.5)


@pytest.mark.parametrize(
    ("host", "years", "a_year", "petaflop_for_1"),
    [
        (HYPERPLANE, 4, "55,534", "44.29"),
        (HYPERPLANE, 1, "160,534", "15.32"),
        (SCALAR, 4, "47,279", "52.03"),
        (SCALAR, 1, "138,779", "17.72"),
    ],
)
def test_eight_gpus_that_are_bought(host: dict[str, float], years: float, a_year: str, petaflop_for_1: str) -> None:
    cost = cost_of(YEAR_SECONDS, 1, Host(**host, years=years), flops=YEARLY_FLOPS)
    assert cost.bought is not None and f"{cost.bought:,.0f}" == a_year
    each = cost.each_petaflop(cost.bought)
    assert each is not None and f"{1 / each:.2f}" == petaflop_for_1
    assert cost.rented is None and cost.kwh is None and cost.carbon is None


def test_eight_gpus_that_are_rented() -> None:
    """On demand only hours of use are paid, so operations for a dollar do not depend on the occupancy."""
    for share in (1.0, 0.5):
        cost = cost_of(YEAR_SECONDS * share, 1, Host(price=ON_DEMAND), flops=YEARLY_FLOPS * share)
        each = cost.each_petaflop(cost.rented)
        assert each is not None and f"{1 / each:.3f}" == "8.568"
        assert cost.rented == pytest.approx(287_088 * share, abs=0.5) and cost.bought is None


@pytest.mark.parametrize(("years", "percent"), [(4, "19.3"), (1, "55.9")])
def test_the_occupancy_where_buying_and_renting_meet(years: float, percent: str) -> None:
    host = Host(**HYPERPLANE, years=years, price=ON_DEMAND)
    even = host.even_occupancy
    assert even is not None and f"{100 * even:.1f}" == percent
    assert host.bought_hour(even) == pytest.approx(host.price)
    assert host.bought_hour(2 * even) < host.price < host.bought_hour(even / 2)


def test_energy_moves_that_occupancy() -> None:
    """Rent includes it."""
    host = Host(**HYPERPLANE, price=ON_DEMAND, watts=6500, energy=0.15)
    even = host.even_occupancy
    assert even == pytest.approx(55_534 / (HOURS * (ON_DEMAND - 0.975)))
    assert host.bought_hour(even) == pytest.approx(host.price)
    assert Host(buy=1000, price=0.5, watts=6500, energy=0.15).even_occupancy is None, "energy alone costs more"
    assert Host(buy=1e6, price=1.0).even_occupancy is None, "even if it is used at all hours"


def test_energy_and_emissions() -> None:
    cost = cost_of(10 * 3600, 4, Host(watts=6500, energy=0.15, carbon=400, buy=8760, years=1), occupancy=0.5)
    assert (cost.kwh, cost.carbon) == (pytest.approx(260), pytest.approx(104))
    assert cost.bought == pytest.approx(40 * 2.0 + 260 * 0.15)
    assert cost.petaflop is None and cost.each_petaflop(cost.bought) is None


@pytest.mark.parametrize(
    ("parameters", "tokens", "gpus", "flops", "days", "published"),
    [(175e9, 300e9, 1024, 140e12, "33.9", 34), (1008e9, 450e9, 3072, 163e12, "83.9", 84)],
)
def test_days_of_large_models(
    parameters: float, tokens: float, gpus: int, flops: float, days: str, published: int
) -> None:
    """Narayanan et al. 2021, section 5.1."""
    measured = training_seconds(parameters, tokens, gpus, flops) / DAY
    assert f"{measured:.1f}" == days and round(measured) == published


def test_years_of_one_gpu() -> None:
    """288 years on a V100, of 125 TFLOP/s, with layers that are computed again; 6 operations without."""
    achieved = achieved_flops(175e9, 300e9, 288)
    assert f"{achieved / 1e12:.1f}" == "46.2" and f"{achieved / 125e12:.0%}" == "37%"
    assert f"{achieved_flops(175e9, 300e9, 288, 6.0) / 1e12:.1f}" == "34.7"


def test_the_formula_is_near_the_exact_operations() -> None:
    """8 operations for each token and parameter are most of what the blocks of a transformer compute."""
    row = TABLE[-1]
    tokens = row.batch * row.sizes.sequence
    exact = row.sizes.flops * row.batch / row.gpus / (row.teraflops * 1e12)
    assert training_seconds(row.sizes.numbers, tokens, row.gpus, row.teraflops * 1e12) == pytest.approx(exact, rel=0.04)
