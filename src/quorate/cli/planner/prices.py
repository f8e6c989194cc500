"""The options of `quorate plan` about money: prices of hosts, their energy, and the length of the training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from quorate.cli.options import NUMBER, SHARE, flags_given, option
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import (
    count_from,
    grams_per_kwh_from,
    number_from,
    per_from,
    share_from,
    watts_from,
)
from quorate.planning.money import Cost, Host, cost_of
from quorate.report.wording import listed

if TYPE_CHECKING:
    from quorate.planning.cluster import Cluster
    from quorate.planning.model import Model

_OF_BOUGHT = ("years", "upkeep", "occupancy")


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """The options of money; prices are of a host, or of a worker where hosts are not distinguished."""

    examples: float | None = option(
        "Length of the training: examples of all workers, such as 90M; sequences of gpt:.",
        reads=count_from,
        metavar=NUMBER,
    )
    tokens: float | None = option("With gpt: the same in tokens, such as 300G.", reads=count_from, metavar=NUMBER)
    price: float | None = option(
        "Rent of a host, such as 20/h; of a worker without --per-host.", reads=per_from("h"), metavar="MONEY/h"
    )
    buy: float | None = option(
        "Price of a host that is bought, such as 140000; of a worker without --per-host.",
        reads=number_from,
        metavar="MONEY",
    )
    years: float | None = option("With --buy: years in which it is written off (default: 4).", metavar=NUMBER)
    upkeep: float | None = option(
        "With --buy: costs of a host in a year, used or not, without energy, such as 20000/y.",
        reads=per_from("y"),
        metavar="MONEY/y",
    )
    occupancy: float | None = option(
        "With --buy: share of all hours in which a host computes (default: 100%).", reads=share_from, metavar=SHARE
    )
    power: float | None = option("Power of a host while it computes, such as 6.5kW.", reads=watts_from, metavar="POWER")
    energy: float | None = option(
        "With --power: price of energy, such as 0.15/kWh.",
        reads=per_from("kWh"),
        metavar="MONEY/kWh",
    )
    carbon: float | None = option(
        "With --power: CO2 of energy, such as 400g/kWh.", reads=grams_per_kwh_from, metavar="MASS/kWh"
    )


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """The prices of the hosts of a plan, and the length of its training."""

    host: Host
    hosts: int
    workers: int
    """Workers of a host."""
    occupancy: float
    examples: float
    """Examples of the training, of all workers together."""

    def cost(self, seconds: float, model: Model) -> Cost:
        """Return the cost of the training whose steps take so many seconds."""
        return cost_of(
            seconds * self.examples / model.batch, self.hosts, self.host, self.occupancy, model.flops * self.examples
        )

    def as_json(self) -> dict[str, Any]:
        """Return it with the occupancy from which on buying is cheaper."""
        even = self.host.even_occupancy if self.host.price and self.host.buy else None
        return {**asdict(self), "even_occupancy": even}


def pricing_from(options: PriceOptions, cluster: Cluster, sequence: int) -> Pricing | None:
    """Return the prices that the options say; None without any.

    `sequence`: the tokens of an example of `gpt:`, 0 for a script. Raises `ConfigurationError` for prices without a
    length of the training, impossible numbers, and options without those that they need.
    """
    _check_together(options)
    priced = flags_given(options, "price", "buy", "power")
    examples = _examples(options, sequence)
    if examples is None:
        if priced:
            tokens = "--examples or --tokens" if sequence else "--examples"
            raise ConfigurationError(f"{listed(priced)}: say with {tokens} how long the training is")
        return None
    occupancy = 1.0 if options.occupancy is None else options.occupancy
    years = 4.0 if options.years is None else options.years
    for name, value in (("years", years), ("occupancy", occupancy)):
        if not value > 0 or (name == "occupancy" and value > 1):
            limit = "above 0% and at most 100%" if name == "occupancy" else "above 0"
            raise ConfigurationError(f"--{name} must be {limit}")
    host = Host(
        price=options.price or 0.0, buy=options.buy or 0.0, years=years, upkeep=options.upkeep or 0.0,
        watts=options.power or 0.0, energy=options.energy or 0.0, carbon=options.carbon or 0.0,
    )  # fmt: skip
    here = cluster.on_host if cluster.per_host else 1
    return Pricing(
        host=host, hosts=cluster.workers // here, workers=here, occupancy=occupancy, examples=examples,
    )  # fmt: skip


def _check_together(options: PriceOptions) -> None:
    """Raise `ConfigurationError` for an option that says nothing without another."""
    for needed, names in (("buy", _OF_BOUGHT), ("power", ("energy", "carbon"))):
        flags = flags_given(options, *names)
        if flags and getattr(options, needed) is None:
            raise ConfigurationError(f"{listed(flags)} can be given with --{needed} only")


def _examples(options: PriceOptions, sequence: int) -> float | None:
    if options.tokens is not None and not sequence:
        raise ConfigurationError("--tokens can be given with gpt: only; say --examples for a script")
    if options.tokens is not None and options.examples is not None:
        raise ConfigurationError("--examples and --tokens both say how long the training is; leave one of them out")
    examples = options.examples if options.tokens is None else options.tokens / sequence
    if examples is not None and not examples > 0:
        raise ConfigurationError("--examples and --tokens must be above 0")
    return examples
