"""The costs of the layouts of a plan in words: columns of a table, and whether to buy or to rent."""

from __future__ import annotations

from collections.abc import Iterator

from quorate.cli.planner.prices import Pricing
from quorate.cli.simulate.results import NOTHING, Columns
from quorate.planning.money import DAY, Cost
from quorate.report.wording import counted, number_in_words, seconds_in_words

_FROM_DAYS, _FROM_YEARS = 2 * DAY, 2 * 365.25 * DAY


def columns() -> Columns[tuple[int, Cost]]:
    """Return the columns of a table of places and costs; `show` leaves out those without figures."""
    return (
        ("#", lambda row: str(row[0])),
        ("the training", lambda row: long_in_words(row[1].seconds)),
        ("rented", lambda row: _money(row[1].rented)),
        ("bought", lambda row: _money(row[1].bought)),
        ("rented, each PFLOP", lambda row: _money(row[1].each_petaflop(row[1].rented))),
        ("bought, each PFLOP", lambda row: _money(row[1].each_petaflop(row[1].bought))),
        ("energy", lambda row: _amount(row[1].kwh, "kWh")),
        ("CO2", lambda row: _amount(row[1].carbon, "kg")),
    )


def long_in_words(seconds: float) -> str:
    """`33.9 days`, `288 years`; shorter times as elsewhere."""
    if seconds >= _FROM_YEARS:
        return f"{number_in_words(seconds / (365.25 * DAY))} years"
    return f"{number_in_words(seconds / DAY)} days" if seconds >= _FROM_DAYS else seconds_in_words(seconds)


def _money(amount: float | None) -> str:
    return NOTHING if amount is None else number_in_words(amount)


def _amount(amount: float | None, unit: str) -> str:
    return NOTHING if amount is None else f"{number_in_words(amount)} {unit}"


def sentences(pricing: Pricing) -> Iterator[str]:
    """Yield whose prices they are, and whether to buy or to rent."""
    host, occupancy = pricing.host, pricing.occupancy
    kind = f"a host of {counted(pricing.workers, 'worker')}"
    yield f"Costs of {number_in_words(pricing.examples)} examples on {counted(pricing.hosts, 'host')}; each is {kind}."
    if host.price:
        yield f"Rented: {host.price:,.6g} for an hour of a host, only while it is used."
    if host.buy:
        upkeep = f", and {host.upkeep:,.6g} a year" if host.upkeep else ""
        yield (
            f"Bought: {host.buy:,.6g} for a host, over {host.years:g} years{upkeep}; it computes "
            f"{100 * occupancy:.3g}% of all hours."
        )
    if host.price and host.buy:
        even = host.even_occupancy
        if even is None:
            yield "Renting is cheaper, even of hosts that compute at all hours."
        else:
            choice = "buy" if occupancy >= even else "rent"
            yield (f"Buying is cheaper from an occupancy of {100 * even:.1f}% on; at {100 * occupancy:.3g}%, {choice}.")
