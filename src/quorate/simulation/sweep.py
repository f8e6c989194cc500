"""The best strategy of each cell of a sweep: of each network, imbalance and number of workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quorate.simulation.grid import Row

NEAR = 1.02
"""Strategies whose rates differ by less are equally good; the first of them counts as the best."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One cell: where strategies are compared."""

    network: str
    imbalance: str | None
    workers: int


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best strategy of one cell."""

    place: Place
    strategy: str
    gain: float
    """Its rate over that of the first strategy."""
    rates: Mapping[str, float]
    """Steps per second of each strategy, divided by the passes that it needs."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """All cells, and the strategies in the order in which they were given."""

    strategies: Sequence[str]
    best: Sequence[Best]
    passes: Mapping[str, float] = field(default_factory=dict)
    """By strategy, the measured passes over the data to equal loss, over those of the first one."""

    def at(self, network: str, imbalance: str | None, workers: int) -> Best | None:
        """Return the best of a cell; None for one that was not simulated."""
        place = Place(network=network, imbalance=imbalance, workers=workers)
        return next((best for best in self.best if best.place == place), None)

    @property
    def winners(self) -> Sequence[str]:
        """The strategies that are best somewhere, in the order in which they were given."""
        names = {best.strategy for best in self.best}
        return [name for name in self.strategies if name in names]

    def as_json(self) -> dict[str, Any]:
        """Return the entry of `simulate.json`."""
        cells = [
            {
                "network": best.place.network,
                "imbalance": best.place.imbalance,
                "workers": best.place.workers,
                "best": best.strategy,
                "gain": round(best.gain, 6),
                "rates": {name: round(rate, 6) for name, rate in best.rates.items()},
            }
            for best in self.best
        ]
        return {"cells": cells, "passes": dict(self.passes)}


def swept(rows: Sequence[Row], strategies: Sequence[str], passes: Mapping[str, float]) -> Sweep:
    """Return the best strategy of each cell of simulated `rows`.

    A rate is that of steps, divided by the strategy's `passes`, which are 1 where they were not measured.
    """
    rates: dict[Place, dict[str, float]] = {}
    for row in rows:
        if not row.is_recorded:
            place = Place(network=row.network, imbalance=row.imbalance, workers=row.workers)
            rates.setdefault(place, {})[row.strategy] = row.figures.steps_per_second / passes.get(row.strategy, 1.0)
    return Sweep(strategies=list(strategies), best=best_in_places(rates, strategies), passes=passes)


def best_in_places(rates: Mapping[Place, Mapping[str, float]], strategies: Sequence[str]) -> list[Best]:
    """Return the best strategy of each place by the `rates` of all, from the first of `strategies` on."""
    best = []
    for place, of_place in rates.items():
        most = max(of_place.values())
        name = next(name for name in strategies if name in of_place and of_place[name] * NEAR >= most)
        first = of_place.get(strategies[0])
        best.append(Best(place=place, strategy=name, gain=of_place[name] / first if first else 1.0, rates=of_place))
    return best
