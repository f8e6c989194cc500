"""The user's settings of how means of gradients are formed: `compress`, `reduce`, and which parameters stay dense."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.attacks import attack_from
from quorate.codecs import codecs
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Codec, Shapes, numel_of, shapes_in
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.redundancy import Redundancy
from quorate.core.settings import settings_for, written_settings
from quorate.core.vectors import Layout
from quorate.means import WITHOUT_CODEC, reducers
from quorate.means.coded import Coded
from quorate.means.hierarchical import Hierarchical
from quorate.means.power_sgd import PowerSGD, PowerSGDSettings
from quorate.means.reducer import Reducer
from quorate.means.two_phase import TwoPhase

if TYPE_CHECKING:
    from quorate.aggregation.rule import Rule

NONE, POWER_SGD = "none", "power-sgd"
AUTO, GATHER, TWO_PHASE, HIERARCHICAL = "auto", "gather", "two-phase", "hierarchical"
ADASUM = "adasum"


@dataclass(frozen=True, kw_only=True)
class ReductionSettings:
    """The settings of `distribute` beside the strategy's and the codec's."""

    compress: str = NONE
    """By which codec gradients are written small: its name, or with settings `dgc:momentum=0.9,density=0.01`."""
    reduce: str = AUTO
    """How their sum is formed. Of codes: `gather` (every code to everyone), `two-phase`, `hierarchical` (codes between
    hosts only), or `auto`, which is one of the first two by what they cost. Without a codec: `auto`, which is the
    wire's own all-reduce, an algorithm over messages (`ring`, `tree` ...: `quorate list reducers`), or `adasum`, which
    forms an adaptive sum in place of the mean. With or without one: an aggregation rule, which takes some wrong
    gradients, with its settings: `trimmed-mean`, `krum:f=2` (`quorate list rules`)."""
    error_feedback: bool | None = None
    """Whether what a codec leaves out is added to the next gradient; None: where it would be lost for good."""
    error_decay: float = 1.0
    """The factor by which the error of a codec is multiplied before it is added to the next gradient."""
    dense: tuple[str, ...] = ()
    """Patterns of names (`*.embedding.*`) of parameters that are never compressed."""
    attack: str = ""
    """For tests and teaching, what the last workers send in the place of their gradients: `sign-flip:2` (two workers),
    `noise`, `little-is-enough` ...; empty: nothing else."""
    on_anomaly: Literal["ignore", "warn", "skip"] = "ignore"
    """How a gradient that is out of all proportion to those of the others is treated: "warn" names its worker, "skip"
    leaves it out of the mean as well."""
    dense_below: int = 1024
    """Parameters of fewer numbers than that are never compressed, nor are those of one dimension (biases, norms)."""

    def __post_init__(self) -> None:
        if not 0 < self.error_decay <= 1:
            raise ConfigurationError(f"error_decay is {self.error_decay}; it must be a factor above 0 and at most 1")
        if self.dense_below < 0:
            raise ConfigurationError(f"dense_below is {self.dense_below}; it must be a count of numbers (at least 0)")


NAMES = tuple(entry.name for entry in dataclasses.fields(ReductionSettings))


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How the means of one optimizer's gradients are formed."""

    settings: ReductionSettings = field(default_factory=ReductionSettings)
    codec: Codec | PowerSGDSettings | None = None
    rule: Rule | None = None
    """The rule whose results take the place of means."""
    is_bound: bool = True
    """Whether the user has set `f` of the rule; else it is smaller among few workers."""
    redundancy: Callable[[int], Redundancy] | None = None
    """Returns how a number of workers compute the same batches; None: each has its own."""

    @property
    def is_of_gradients(self) -> bool:
        """Whether it applies to gradients only."""
        return isinstance(self.codec, PowerSGDSettings)

    @property
    def is_adaptive(self) -> bool:
        """Whether the result is not the mean of gradients, but an adaptive sum or a rule's."""
        return self.settings.reduce == ADASUM or self.rule is not None

    @property
    def forms_means(self) -> bool:
        """Whether the result is the mean of the gradients, up to rounding."""
        return self.codec is None and not self.is_adaptive

    @property
    def codes_sums(self) -> bool:
        """Whether sums of several workers are encoded by a codec with settings in units of a gradient."""
        has_unit = isinstance(self.codec, Codec) and self.codec.bare.has_unit
        return has_unit and self.settings.reduce in (TWO_PHASE, HIERARCHICAL)

    @property
    def keeps_more(self) -> bool:
        """Whether the codec remembers more than what it leaves out."""
        return isinstance(self.codec, Codec) and _keeps_more(self.codec)

    def is_coded(self, name: str, x: Tensor) -> bool:
        """Return whether the parameter `name` is compressed."""
        is_large = x.dim() > 1 and x.numel() >= self.settings.dense_below
        is_dense = any(fnmatchcase(name, pattern) for pattern in self.settings.dense)
        return is_large and x.is_floating_point() and not is_dense

    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        """Return a reducer for vectors of `layout`; `seed` is that of the run."""
        made = self._reducer(layout, wire, seed)
        if self.settings.on_anomaly != "ignore":
            from quorate.means.guarded import Guarded

            made = Guarded(made, seed, skips=self.settings.on_anomaly == "skip")
        if not self.settings.attack:
            return made
        from quorate.means.attacked import Attacked

        return Attacked(made, attack_from(self.settings.attack), seed)

    def _reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        if self.rule is not None:
            from quorate.means.robust import Robust

            rule, redundancy = self.rule, Redundancy() if self.redundancy is None else self.redundancy(wire.size)
            if redundancy.batches > 1:
                if rule.name != "Mean":
                    raise ConfigurationError(
                        f'reduce="{self.settings.reduce}" cannot be combined with a cyclic code, which decodes the '
                        "mean; leave reduce out"
                    )
                from quorate.means.cyclic import Cyclic

                return Cyclic(layout, wire, seed, redundancy)
            count = redundancy.groups or wire.size
            if not self.is_bound:
                rule = rule.with_f(min(rule.f, max(0, rule.most_of(count))))
            rule.check(count)
            if self.codec is not None:
                from quorate.means.robust_codes import RobustCodes

                assert isinstance(self.codec, Codec)
                codec = self.codec.rescaled(1 / wire.size)
                return RobustCodes(layout, wire, codec, rule, seed, divisor=wire.size)
            return Robust(layout, wire, rule, seed, redundancy)
        if self.codec is None:
            kind = reducers.get("dense" if self.settings.reduce == AUTO else self.settings.reduce)
            made: Reducer = kind(layout, wire)
            return made
        if isinstance(self.codec, PowerSGDSettings):
            return PowerSGD(layout, wire, self.codec, seed)
        of_shares = self.codec.rescaled(1 / wire.size)
        coded: type[Coded] = Coded
        if self.settings.reduce == HIERARCHICAL:
            coded = Hierarchical
        elif self.way(shapes_in(layout).values(), wire.size) == TWO_PHASE:
            coded = TwoPhase
        return coded(layout, wire, of_shares, seed)

    def way(self, parts: Iterable[Shapes], size: int) -> Literal["sum", "gather", "two-phase", "hierarchical"]:
        """Return how `size` workers sum the codes of those parts. "sum": codes add up, as dense vectors do.

        As `reduce` says; "auto" chooses "two-phase" where "gather" would be more bytes than a dense sum, 2 numbers for
        each.
        """
        codec = self.codec
        assert isinstance(codec, Codec)
        if self.settings.reduce == HIERARCHICAL:
            return "hierarchical"
        everywhere: Literal["sum", "gather"] = "sum" if codec.is_linear else "gather"
        if self.settings.reduce != AUTO or codec.is_linear or _keeps_more(codec) or self.settings.error_decay != 1:
            return "two-phase" if self.settings.reduce == TWO_PHASE else everywhere
        sizes = [(numel_of(shapes), codec.wire_bytes(shapes)) for shapes in parts]
        return "two-phase" if sum(size * (nbytes or 0) - 8 * numel for numel, nbytes in sizes) > 0 else everywhere

    @property
    def said(self) -> dict[str, Any]:
        """Every setting that matters here, by name: for records, and to be compared among workers."""
        attack = {"attack": self.settings.attack} if self.settings.attack else {}
        if self.settings.on_anomaly != "ignore":
            attack["on_anomaly"] = self.settings.on_anomaly
        if self.rule is not None:
            of_rule = {"reduce": self.settings.reduce, **dataclasses.asdict(self.rule), **attack}
            return of_rule if self.codec is None else dataclasses.replace(self, rule=None).said | of_rule
        if self.codec is None:
            return attack if self.settings.reduce == AUTO else {"reduce": self.settings.reduce, **attack}
        inner: Any = self.codec.bare if isinstance(self.codec, Codec) else self.codec
        own = {entry.name: getattr(inner, entry.name) for entry in dataclasses.fields(inner)}
        feeds_back = isinstance(self.codec, ErrorFeedback | PowerSGDSettings)
        return dataclasses.asdict(self.settings) | {"error_feedback": feeds_back} | own


def reduction_of(raw: Mapping[str, object]) -> Reduction:
    """Return the reduction of these settings. Raises `ConfigurationError` for an unknown codec or setting."""
    settings = ReductionSettings(**settings_for(ReductionSettings, {k: v for k, v in raw.items() if k in NAMES}))
    if settings.attack:
        attack_from(settings.attack)
    name, own = written_settings(settings.compress, "codec")
    settings = dataclasses.replace(settings, compress=name)
    rest = own | {k: v for k, v in raw.items() if k not in NAMES}
    reduce, of_rule = written_settings(settings.reduce, "way to reduce")
    if reduce in rules:
        return _by_rule(dataclasses.replace(settings, reduce=reduce), of_rule | rest, raw.keys())
    if settings.compress == NONE:
        others = raw.keys() - {"compress", "reduce", "attack", "on_anomaly"}
        if others:
            raise ConfigurationError(
                f"{', '.join(sorted(others))}: these are settings of a codec, but there is none; {_how()}"
            )
        if settings.reduce in (GATHER, TWO_PHASE, HIERARCHICAL):
            raise ConfigurationError(f'reduce="{settings.reduce}" says how codes are summed; {_how()}')
        if settings.reduce not in (AUTO, *WITHOUT_CODEC):
            raise unknown("way to reduce", settings.reduce, (AUTO, *WITHOUT_CODEC, *rules))
        return Reduction(settings=settings)
    if settings.reduce == ADASUM:
        raise ConfigurationError(
            f'reduce="{ADASUM}" needs gradients as they are, for their scalar products; leave out '
            f'compress="{settings.compress}"'
        )
    if settings.compress == POWER_SGD:
        if settings.error_decay != 1:
            raise ConfigurationError(f"{POWER_SGD} keeps its errors undiminished; leave error_decay out")
        if settings.error_feedback is False:
            raise ConfigurationError(f"{POWER_SGD} does not work without error feedback; leave error_feedback out")
        if settings.reduce != AUTO:
            raise ConfigurationError(f'{POWER_SGD} forms its sums in its own way; leave out reduce="{settings.reduce}"')
        return Reduction(settings=settings, codec=PowerSGDSettings(**settings_for(PowerSGDSettings, rest, POWER_SGD)))
    if settings.compress not in codecs:
        raise unknown("codec", settings.compress, compressing())
    kind: Any = codecs.get(settings.compress)
    codec: Codec = kind(**settings_for(kind, rest, settings.compress))
    ways = (AUTO, GATHER, TWO_PHASE, HIERARCHICAL)
    if settings.reduce not in ways:
        raise unknown("way to reduce", settings.reduce, ways)
    if settings.reduce in (TWO_PHASE, HIERARCHICAL) and _keeps_more(codec):
        raise ConfigurationError(
            f"{settings.compress} remembers more than what it leaves out, and owners of pieces cannot; leave out "
            f'reduce="{settings.reduce}"'
        )
    needed = codec.needs_feedback if settings.error_feedback is None else settings.error_feedback
    if settings.error_decay != 1:
        _check_decay(settings, needed=needed)
    return Reduction(settings=settings, codec=ErrorFeedback(codec, settings.error_decay) if needed else codec)


def _by_rule(settings: ReductionSettings, own: Mapping[str, object], passed: Collection[str]) -> Reduction:
    """Return the reduction of a rule; beside a codec the settings in `own` are of the one that knows them."""
    kind: Any = rules.get(settings.reduce)
    if settings.compress == NONE:
        others = set(passed) & set(NAMES) - {"compress", "reduce", "attack", "on_anomaly"}
        if others:
            raise ConfigurationError(
                f"{', '.join(sorted(others))}: these are settings of a codec, but there is none; {_how()}"
            )
        return Reduction(settings=settings, rule=kind(**settings_for(kind, own, settings.reduce)), is_bound="f" in own)
    if settings.compress == POWER_SGD:
        raise ConfigurationError(
            f'reduce="{settings.reduce}" needs the vector of each worker, and {POWER_SGD} forms only their sum; choose '
            "another codec, or leave out reduce"
        )
    of_rule = {entry.name for entry in dataclasses.fields(kind)}
    rule: Rule = kind(**settings_for(kind, {k: v for k, v in own.items() if k in of_rule}, settings.reduce))
    names = {k: v for k, v in dataclasses.asdict(settings).items() if k in passed or k == "compress"}
    coded = reduction_of({**names, "reduce": AUTO} | {k: v for k, v in own.items() if k not in of_rule})
    assert isinstance(coded.codec, Codec)
    if coded.codec.bare.keeps_few and not rule.is_linear:
        raise ConfigurationError(
            f'reduce="{settings.reduce}" works on each coordinate by itself, and compress="{settings.compress}" leaves '
            "most coordinates of each worker 0, different ones for each: the result would be 0 nearly everywhere; "
            "choose a rule on whole vectors (krum, multi-krum, geometric-median, centered-clipping), or another codec"
        )
    return dataclasses.replace(coded, settings=settings, rule=rule, is_bound="f" in own)


def _check_decay(settings: ReductionSettings, *, needed: bool) -> None:
    if not needed:
        raise ConfigurationError(f"{settings.compress} keeps no errors that could decay; leave error_decay out")
    if settings.reduce in (TWO_PHASE, HIERARCHICAL):
        raise ConfigurationError(
            f'reduce="{settings.reduce}" hands errors on from worker to worker, and they are not to fade on the way; '
            "leave out error_decay, or reduce"
        )


def _keeps_more(codec: Codec) -> bool:
    return bool(set(codec.memories) - {ERROR})


def _how() -> str:
    return f'choose one with compress="..." ({", ".join(compressing())})'


def compressing() -> list[str]:
    """Return the values of `compress`."""
    return sorted((*codecs.names(), POWER_SGD, NONE))
