"""The cost of a training: its hosts rented or bought, their energy, and the emissions of that. Pure.

Money is in the currency of the inputs. A rented host costs its price for each hour of use, with energy included. A
bought host costs its price over the years in which it is written off, its upkeep at all times, and its energy while it
computes. With an occupancy o it computes in o x 8,760 hours of a year, and those hours bear all of its cost.

A rented and a bought host cost the same at the occupancy o = (buy / years + upkeep) / (8,760 (price - energy)).
"""

from __future__ import annotations

from dataclasses import dataclass

HOURS = 8760
"""Hours of a year."""
DAY = 86400.0
PETA = 1e15
_JULIAN = 365.25 * DAY


@dataclass(frozen=True, kw_only=True)
class Host:
    """The costs of one host with all of its workers; 0: not given."""

    price: float = 0.0
    """Rent for an hour of use."""
    buy: float = 0.0
    """Price of buying it."""
    years: float = 4.0
    """Years in which that is written off."""
    upkeep: float = 0.0
    """Costs of a year, used or not: space, cooling, administration."""
    watts: float = 0.0
    """Power while it computes."""
    energy: float = 0.0
    """Price of a kWh."""
    carbon: float = 0.0
    """Grams of CO2 for each kWh."""

    @property
    def energy_of_an_hour(self) -> float:
        """Cost of the energy of an hour of use."""
        return self.watts / 1e3 * self.energy

    @property
    def kept_a_year(self) -> float:
        """Cost of a bought host in a year, used or not."""
        return self.buy / self.years + self.upkeep

    def bought_hour(self, occupancy: float) -> float:
        """Return the cost of an hour of use of a bought host that computes in a share `occupancy` of all hours."""
        return self.kept_a_year / (HOURS * occupancy) + self.energy_of_an_hour

    @property
    def even_occupancy(self) -> float | None:
        """The occupancy from which on buying is cheaper than renting; None: renting is cheaper at any."""
        saved = HOURS * (self.price - self.energy_of_an_hour)
        occupancy = self.kept_a_year / saved if saved > 0 else 2.0
        return occupancy if occupancy <= 1 else None


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of one training; None: what is needed for it was not given."""

    seconds: float
    rented: float | None
    bought: float | None
    kwh: float | None
    carbon: float | None
    """Kilograms of CO2."""
    petaflop: float | None
    """Operations, in 1e15."""

    def each_petaflop(self, cost: float | None) -> float | None:
        """Return `cost` for each 1e15 operations."""
        return cost / self.petaflop if cost is not None and self.petaflop else None


def cost_of(seconds: float, hosts: float, host: Host, occupancy: float = 1.0, flops: float = 0.0) -> Cost:
    """Return the cost of a training.

    Args:
        seconds: duration of the training.
        hosts: number of hosts that it uses all the time.
        host: costs of each.
        occupancy: share of all hours, above 0 and at most 1, in which bought hosts compute.
        flops: operations of the training on all hosts; 0: not known.
    """
    hours = hosts * seconds / 3600
    kwh = hours * host.watts / 1e3 if host.watts else None
    return Cost(
        seconds=seconds,
        rented=hours * host.price if host.price else None,
        bought=hours * host.bought_hour(occupancy) if host.buy else None,
        kwh=kwh,
        carbon=kwh * host.carbon / 1e3 if kwh is not None and host.carbon else None,
        petaflop=flops / PETA or None,
    )


def petaflop_of_a_year(workers: int, flops: float, share: float) -> float:
    """Return the operations of a year, in 1e15, of workers that make `flops` a second in a `share` of its hours."""
    return workers * flops * share * HOURS * 3600 / PETA


def training_seconds(parameters: float, tokens: float, workers: int, flops: float, each: float = 8.0) -> float:
    """Return the seconds of a training of a transformer: `each` x tokens x parameters / (workers x flops).

    `flops` are those that a worker achieves in a second. `each` operations of a parameter and token: 6, and 8 where
    layers are computed again in the backward pass. Source: Narayanan et al. 2021, arXiv 2104.04473, section 5.1,
    equation 4.
    """
    return each * tokens * parameters / (workers * flops)


def achieved_flops(parameters: float, tokens: float, worker_years: float, each: float = 8.0) -> float:
    """Return the operations a second of a worker whose training takes so many years of 365.25 days."""
    return training_seconds(parameters, tokens, 1, 1.0, each) / (worker_years * _JULIAN)
