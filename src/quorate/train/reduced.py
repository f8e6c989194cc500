"""A strategy and how its means are formed, out of one set of settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quorate.codecs.error_feedback import ErrorFeedback
from quorate.core.codec import Codec
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.settings import settings_for
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat, Layout
from quorate.means.edge_coding import EdgeCoding
from quorate.means.reducer import Reducer
from quorate.means.reduction import AUTO, NAMES, Reduction, reduction_of
from quorate.rounds.coding import Coding
from quorate.rounds.combining import ByRule
from quorate.rounds.terms import Agreed

_RULED = (("rounds", "gradients"), ("all", "ways"))
"""Whom strategies meet, and with what, beside means of gradients, that a rule may have in the place of a mean."""


def with_reduction(
    kind: type[Strategy], raw: Mapping[str, object], label: str, given: Strategy | None = None
) -> tuple[Strategy, Reduction]:
    """The strategy of that kind (or as `given`) with those of the settings that it has, and what the others say.

    Raises `ConfigurationError` for settings that nobody has, and where the strategy's means cannot be compressed.
    """
    own = {field.name for field in dataclasses.fields(kind)}
    others = {name: value for name, value in raw.items() if name not in own}
    if "compress" not in others or "compress" not in kind.reduction:
        others = {**kind.reduction, **others}
    if not others.keys() & set(NAMES):
        own, others = set(raw), {}  # one that is not known is refused with the strategy's settings in the sentence
    mine = settings_for(kind, {name: value for name, value in raw.items() if name in own}, label)
    if given is not None:  # its constructor has not looked at types
        settings_for(kind, {one.name: getattr(given, one.name) for one in dataclasses.fields(kind) if one.init}, label)
    reduction = reduction_of(others)
    made: Any = kind(**mine) if given is None else dataclasses.replace(given, **mine)
    if reduction.settings.attack and (made.meets != "all" or made.compresses not in ("gradients", "ways")):
        raise ConfigurationError(
            f'attack="{reduction.settings.attack}" cannot be combined with {label}: attacks change gradients '
            "(all-reduce, "
            "robust), and how far workers went (diloco)"
        )
    if reduction.settings.on_anomaly != "ignore":
        _check_watched(made, reduction, label)
    if made.redundancy is not None and made.meets == "all":
        reduction = _with_redundancy(made, reduction, label)
    if reduction.codec is not None:
        _check(made, reduction, label)
        if made.compresses == "differences":
            reduction = _without_feedback(reduction, label)
    elif reduction.rule is not None and (made.meets, made.compresses) in _RULED:
        if reduction.rule.has_centre:
            raise ConfigurationError(
                f'reduce="{reduction.settings.reduce}" cannot be combined with {label}: it starts from its '
                "latest result, which exists only where all workers form means of gradients (all-reduce); "
                "choose another rule"
            )
    elif reduction.settings.reduce != AUTO and made.meets != "all":
        raise ConfigurationError(
            f'reduce="{reduction.settings.reduce}" cannot be combined with {label}: it selects how sums over all '
            "workers are formed, and its steps form none"
        )
    elif reduction.is_adaptive and made.compresses != "gradients":
        raise ConfigurationError(
            f'reduce="{reduction.settings.reduce}" is for gradients (all-reduce); {label} does not average gradients'
        )
    return made, reduction


def _check_watched(strategy: Strategy, reduction: Reduction, label: str) -> None:
    asked = f'on_anomaly="{reduction.settings.on_anomaly}"'
    if strategy.meets != "all" or strategy.compresses != "gradients":
        raise ConfigurationError(
            f"{asked} cannot be combined with {label}: it compares the gradients in a mean of all workers (all-reduce)"
        )
    if not reduction.forms_means:
        raise ConfigurationError(
            f"{asked} watches plain means; with compress={reduction.settings.compress!r} and "
            f"reduce={reduction.settings.reduce!r} leave it out: a rule finds what is wrong by itself, and codes of "
            "gradients are no gradients"
        )


def _with_redundancy(strategy: Strategy, reduction: Reduction, label: str) -> Reduction:
    if reduction.rule is None or reduction.codec is not None:
        asked = "compress" if reduction.codec is not None else "reduce"
        raise ConfigurationError(
            f'{asked}="{getattr(reduction.settings, asked)}" cannot be combined with {label}, which compares '
            "gradients, or "
            f"decodes them, as they are; leave {asked} out"
        )
    return dataclasses.replace(reduction, redundancy=strategy.redundancy)


def by_rule(
    reduction: Reduction, settings: Mapping[str, Any], size: int, seed: int, strategy: Strategy
) -> Mapping[str, Any]:
    """The settings of rounds whose vectors become one by a rule, where one was chosen; else as they are.

    Raises `ConfigurationError` where the rule does not bear f in a round of no more workers than have to call.
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
    """What forms the means of all; under rounds those are of evaluations, and dense."""
    return (reduction if strategy.meets == "all" else Reduction()).reducer(layout, wire, seed)


def coding_of(
    reduction: Reduction, layout: Layout, seed: int, rank: int, size: int, units: Callable[[Flat, int], Sequence[float]]
) -> Coding | None:
    """What makes a worker's contributions to rounds small; None where they are dense. `units`: as of `Coding`."""
    codec = reduction.codec
    if codec is None:
        return None
    assert isinstance(codec, Codec)
    feeds_back = isinstance(codec, ErrorFeedback)
    return Coding(codec.bare, layout, seed, rank, feeds_back=feeds_back, units=lambda given: units(given, size))


def edge_coding_of(reduction: Reduction, strategy: Strategy, seed: int) -> EdgeCoding | None:
    """What makes small what goes to neighbours; None where that is dense."""
    if reduction.codec is None or strategy.compresses != "differences":
        return None
    assert isinstance(reduction.codec, Codec)
    return EdgeCoding(reduction.codec, seed)


def served_coding_of(reduction: Reduction, seed: int) -> tuple[EdgeCoding | None, bool]:
    """What makes small what goes to servers (None: it is dense), and whether what it leaves out is remembered."""
    codec = reduction.codec
    if codec is None:
        return None, False
    assert isinstance(codec, Codec)
    return EdgeCoding(codec.bare, seed), isinstance(codec, ErrorFeedback)


def _without_feedback(reduction: Reduction, label: str) -> Reduction:
    """What a code leaves out of a difference is in the next one anyhow."""
    asked = f'compress="{reduction.settings.compress}"'
    if reduction.is_of_gradients or reduction.keeps_more:
        raise ConfigurationError(
            f"{asked} cannot be combined with {label}: it is for gradients, and {label} writes differences small; "
            "choose a "
            "codec that remembers nothing"
        )
    if reduction.settings.error_feedback:
        raise ConfigurationError(
            f"error_feedback=True cannot be combined with {label}: what is left out of a difference is in the "
            "next one; leave "
            "it out"
        )
    if reduction.settings.reduce != AUTO:
        raise ConfigurationError(
            f'reduce="{reduction.settings.reduce}" cannot be combined with {label}: it selects how the codes of '
            "all workers are summed, but here codes go to neighbours"
        )
    assert isinstance(reduction.codec, Codec)
    return dataclasses.replace(reduction, codec=reduction.codec.bare)


def _check(strategy: Strategy, reduction: Reduction, label: str) -> None:
    asked = f'compress="{reduction.settings.compress}"'
    if reduction.rule is not None and (strategy.meets, strategy.compresses) != ("all", "gradients"):
        raise ConfigurationError(
            f'reduce="{reduction.settings.reduce}" beside {asked} cannot be combined with {label}: a rule needs the '
            "codes of all workers in each step, which only all-reduce and robust exchange; leave out reduce or compress"
        )
    if strategy.compresses == "nothing":
        raise ConfigurationError(
            f"{asked} cannot be combined with {label}: codecs write small gradients (all-reduce, quorum), how far "
            "workers "
            "went (diloco, decoupled-diloco; diloco with outer_rate=1 and outer_momentum=0 is local-sgd), and "
            "differences between neighbours (choco-sgd, dcd-psgd, ecd-psgd)"
        )
    sums = strategy.meets if strategy.meets in ("rounds", "servers") else None
    if sums is not None and (reduction.is_of_gradients or reduction.settings.reduce != AUTO):
        raise ConfigurationError(
            f"{asked} with reduce={reduction.settings.reduce!r} is for sums of all workers (all-reduce); under {label} "
            f"{sums} form the sums: choose a codec, and leave reduce out"
        )
    if sums is not None and reduction.settings.error_decay != 1:
        raise ConfigurationError(
            f"error_decay={reduction.settings.error_decay} cannot be combined with {label}: what a codec leaves "
            "out there is "
            "kept as it is; leave it out"
        )
    if sums is not None and reduction.keeps_more:
        raise ConfigurationError(
            f"{asked} remembers more than what it leaves out, which {sums} do not support; under {label} choose "
            "another codec"
        )
    if strategy.compresses == "ways" and reduction.is_of_gradients:
        raise ConfigurationError(f"{asked} is for gradients (all-reduce); use a codec with {label}")
    if getattr(strategy, "after", 0):
        raise ConfigurationError(
            f"{asked} cannot be combined with synchronous steps before the local ones; leave after=0"
        )
