"""A strategy and how its means are formed, out of one set of settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorate.core.codec import Codec
from quorate.core.contracts import Wire
from quorate.core.settings import settings_for
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat, Layout
from quorate.means.edge_coding import EdgeCoding
from quorate.means.reducer import Reducer
from quorate.means.reduction import NAMES, Reduction, reduction_of, with_defaults
from quorate.rounds.coding import Coding
from quorate.rounds.combining import ByRule
from quorate.rounds.terms import Agreed
from quorate.train.combination import Combination
from quorate.train.compatibility import check


def with_reduction(
    kind: type[Strategy], raw: Mapping[str, object], label: str, chosen: Strategy | None = None
) -> tuple[Strategy, Reduction]:
    """Return the strategy of the class `kind`, or `chosen` with other settings, and how its means are formed.

    `raw` has settings of the strategy, of `ReductionSettings`, and of the codec or the rule. Raises
    `ConfigurationError` for settings that are unknown, and for those that do not go together.
    """
    own = {field.name for field in dataclasses.fields(kind)}
    others = with_defaults(kind.reduction, {name: value for name, value in raw.items() if name not in own})
    if not others.keys() & set(NAMES):
        own, others = set(raw), {}  # an unknown setting is refused with the strategy's settings in the sentence
    settings = settings_for(kind, {name: value for name, value in raw.items() if name in own}, label)
    if chosen is None:
        strategy = kind(**settings)
    else:  # its constructor has not looked at types
        fields = [field.name for field in dataclasses.fields(kind) if field.init]
        settings_for(kind, {name: getattr(chosen, name) for name in fields}, label)
        strategy = dataclasses.replace(chosen, **settings)
    reduction = reduction_of(others)
    check(Combination(label=label, strategy=strategy, reduction=reduction))
    return strategy, _as_used(reduction, strategy)


def _as_used(reduction: Reduction, strategy: Strategy) -> Reduction:
    if strategy.redundancy is not None and strategy.meets == "all":
        return dataclasses.replace(reduction, redundancy=strategy.redundancy)
    if reduction.codec is not None and strategy.compresses == "momenta":
        return dataclasses.replace(reduction, is_on_demand=True)
    if isinstance(reduction.codec, Codec) and strategy.compresses == "differences":
        return dataclasses.replace(reduction, codec=reduction.codec.bare)  # errors are in the next difference
    return reduction


def by_rule(
    reduction: Reduction, settings: Mapping[str, Any], size: int, seed: int, strategy: Strategy
) -> Mapping[str, Any]:
    """Return the settings of rounds, with the rule that takes the place of the mean if one was chosen.

    Raises `ConfigurationError` where the rule does not bear f wrong vectors in the smallest round.
    """
    rule = reduction.rule
    if rule is None or strategy.meets != "rounds":
        return settings
    quorum = Agreed(size=size, **settings).quorum
    if not reduction.is_bound:
        rule = rule.with_f(min(rule.f, max(0, rule.most_of(quorum))))
    rule.check(quorum)
    return {**settings, "divide_by": "arrived", "combine": ByRule(rule, size, seed)}


def reducer_of(reduction: Reduction, strategy: Strategy, layout: Layout, wire: Wire, seed: int) -> Reducer:
    """Return the reducer of the means of all workers; under rounds these are of evaluations, and dense."""
    return (reduction if strategy.meets == "all" else Reduction()).reducer(layout, wire, seed)


def coding_of(
    reduction: Reduction, layout: Layout, seed: int, rank: int, size: int, units: Callable[[Flat, int], Sequence[float]]
) -> Coding | None:
    """Return the compression of contributions to rounds, with the `units` of `Coding`; None where they are dense."""
    codec = reduction.codec
    if not isinstance(codec, Codec):
        return None
    how: dict[str, Any] = {"feeds_back": reduction.feeds_back, "units": lambda vector: units(vector, size)}
    return Coding(codec.bare, layout, seed, rank, **how)


def edge_coding_of(reduction: Reduction, strategy: Strategy, seed: int) -> EdgeCoding | None:
    """Return the compression of exchanges with neighbours; None where they are dense."""
    codec = reduction.codec
    return EdgeCoding(codec, seed) if isinstance(codec, Codec) and strategy.compresses == "differences" else None


def served_coding_of(reduction: Reduction, seed: int) -> tuple[EdgeCoding | None, bool]:
    """Return the compression of messages to servers (None: dense), and whether its errors are remembered."""
    codec = reduction.codec
    if not isinstance(codec, Codec):
        return None, False
    return EdgeCoding(codec.bare, seed), reduction.feeds_back
