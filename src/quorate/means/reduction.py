"""How means of gradients are formed, as the user chooses: `compress`, `reduce`, and which parameters stay dense."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.attacks import attack_from
from quorate.buckets.flat import Fusion
from quorate.codecs import codecs
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Codec, Shapes, numel_of, shapes_in
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.redundancy import Redundancy
from quorate.core.settings import settings_for, written_settings
from quorate.core.vectors import Layout, layout_on_cpu
from quorate.means import OF_GRADIENTS, WITHOUT_CODEC, reducers
from quorate.means.coded import ClippedCodes, Coded
from quorate.means.hierarchical import Hierarchical
from quorate.means.reducer import Reducer, ReducerSettings
from quorate.means.two_phase import OnDemand, TwoPhase

if TYPE_CHECKING:
    from quorate.aggregation.rule import Rule

NONE = "none"
AUTO, GATHER, TWO_PHASE, HIERARCHICAL = "auto", "gather", "two-phase", "hierarchical"
ADASUM = "adasum"


@dataclass(frozen=True, kw_only=True)
class ReductionSettings:
    """The settings of `distribute` beside the strategy's and the codec's."""

    compress: str = NONE
    """The codec that compresses gradients: its name, or with settings `dgc:momentum=0.9,density=0.01`."""
    reduce: str = AUTO
    """How sums are formed. Of codes: `gather` (every code to everyone), `two-phase`, `hierarchical` (codes between
    hosts only), or `auto`, which is one of the first two by what they cost. Without a codec: `auto`, which is the
    wire's own all-reduce, an algorithm over messages (`ring`, `tree` ...: `quorate list reducers`), or `adasum`, which
    forms an adaptive sum in place of the mean. With or without one: an aggregation rule, which takes some wrong
    gradients, with its settings: `trimmed-mean`, `krum:f=2` (`quorate list rules`)."""
    error_feedback: bool | None = None
    """Whether what a codec leaves out is added to the next gradient; None: where it would be lost for good."""
    error_decay: float = 1.0
    """The factor of an error when it is added to the next gradient; below 1 errors fade, as a momentum does."""
    clip_codes: bool = False
    """Whether a worker's decoded tensor that is longer than the median of all workers' is shortened to it."""
    dense: tuple[str, ...] = ()
    """Patterns of names (`*.embedding.*`) of parameters that are never compressed."""
    attack: str = ""
    """For tests and teaching, the vectors that the last workers send in place of their gradients: `sign-flip:2` (two
    workers), `noise`, `little-is-enough` ...; empty: none."""
    on_anomaly: Literal["ignore", "warn", "skip"] = "ignore"
    """The treatment of a gradient that is out of all proportion to those of the others: "warn" names its worker,
    "skip" leaves it out of the mean as well."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """The dtype in which gradients of bfloat16 parameters are sent and summed; those of others are summed in float32,
    or in their own dtype where it is wider. "bfloat16" sends half, and rounds the mean (on a GPU each addition)."""
    dense_below: int = 1024
    """Parameters of fewer numbers than that are never compressed, nor are those of one dimension (biases, norms)."""
    part_bytes: int | None = None
    """Bytes at which a part of the gradient is full, and is sent; None: 8 MiB, on GPUs 25 MiB."""
    first_part_bytes: int | None = None
    """Bytes at which the first part is full; None: 1 MiB."""
    part_order: Literal["registration", "arrival"] = "registration"
    """The order in which parts are filled: from the last parameter to the first, or as gradients become ready."""
    part_layout: Literal["sizes", "measured"] = "sizes"
    """The ends of parts: where they are full, or so that the exchange ends earliest by the times of the first steps."""
    part_overlap: bool = True
    """Whether parts are sent during the backward pass, or all of them after it."""
    part_channels: int = 1
    """The number of parts that are under way at once."""
    autotune: bool | Literal["only"] = False
    """Whether parts are tuned while training; "only" ends the training with the tuning."""

    def __post_init__(self) -> None:
        for name in ("part_bytes", "first_part_bytes", "part_channels"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ConfigurationError(f"{name} is {count}; it must be at least 1")
        if self.autotune and (self.part_order, self.part_layout) != ("registration", "sizes"):
            raise ConfigurationError("autotune tries orders and layouts of parts; leave out part_order and part_layout")
        if not 0 < self.error_decay <= 1:
            raise ConfigurationError(f"error_decay is {self.error_decay}; it must be a factor above 0 and at most 1")
        if self.dense_below < 0:
            raise ConfigurationError(f"dense_below is {self.dense_below}; it must be a count of numbers (at least 0)")


NAMES = tuple(setting.name for setting in dataclasses.fields(ReductionSettings))
_OF_PARTS = (
    *("part_bytes", "first_part_bytes", "part_order", "part_layout", "part_overlap", "part_channels"),
    "autotune",
)
_USUAL = {name: getattr(ReductionSettings(), name) for name in ("attack", "on_anomaly", "reduce_dtype", *_OF_PARTS)}
"""Settings that have an effect without a codec, with their defaults."""


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How the means of one optimizer's gradients are formed."""

    settings: ReductionSettings = field(default_factory=ReductionSettings)
    codec: Codec | ReducerSettings | None = None
    rule: Rule | None = None
    """The aggregation rule that takes the place of means."""
    is_bound: bool = True
    """Whether `f` of the rule was asked for; else it is less among few workers."""
    is_on_demand: bool = False
    """Whether sums are dense until the strategy asks for codes."""
    redundancy: Callable[[int], Redundancy] | None = None
    """How so many workers compute the same batches; None: each has its own."""

    @property
    def parts(self) -> dict[str, Any]:
        """The settings of parts that are not as usual, by name."""
        return {name: x for name in _OF_PARTS if (x := getattr(self.settings, name)) != _USUAL[name]}

    @property
    def fusion(self) -> Fusion:
        """How parts are filled by size."""
        return Fusion(self.settings.part_bytes, self.settings.first_part_bytes)

    @property
    def arranges(self) -> bool:
        """Whether parts are arranged while training, and not by size alone."""
        return bool(self.parts.keys() - {"part_bytes", "first_part_bytes"})

    @property
    def is_of_gradients(self) -> bool:
        """Whether it is for gradients only."""
        return isinstance(self.codec, ReducerSettings)

    @property
    def is_adaptive(self) -> bool:
        """Whether the result is no mean, but an adaptive sum or that of a rule."""
        return self.settings.reduce == ADASUM or self.rule is not None

    @property
    def forms_means(self) -> bool:
        """Whether the result is the mean of the gradients, but for rounding."""
        return self.codec is None and not self.is_adaptive

    @property
    def codes_sums(self) -> bool:
        """Whether sums of some workers are compressed by a codec that has settings in numbers of a gradient."""
        has_unit = isinstance(self.codec, Codec) and self.codec.bare.has_unit
        return has_unit and self.settings.reduce in (TWO_PHASE, HIERARCHICAL)

    @property
    def narrow(self) -> torch.dtype | None:
        """The small float that is summed as it is; None: all are summed in float32."""
        return torch.bfloat16 if self.settings.reduce_dtype == "bfloat16" else None

    @property
    def feeds_back(self) -> bool:
        """Whether what a codec leaves out is added to the next gradient."""
        return isinstance(self.codec, ErrorFeedback | ReducerSettings)

    @property
    def keeps_few(self) -> bool:
        """Whether codes leave most numbers 0, other ones on each worker."""
        return isinstance(self.codec, Codec) and self.codec.bare.keeps_few

    @property
    def crosses_tensors(self) -> bool:
        """Whether the code of a tensor depends on others that are sent with it."""
        return isinstance(self.codec, Codec) and self.codec.bare.crosses_tensors

    @property
    def keeps_more(self) -> bool:
        """Whether its codec remembers more than what it leaves out."""
        return isinstance(self.codec, Codec) and _keeps_more(self.codec)

    def is_coded(self, name: str, x: Tensor) -> bool:
        """Whether the parameter `name` is compressed."""
        is_large = x.dim() > 1 and x.numel() >= self.settings.dense_below
        is_dense = any(fnmatchcase(name, pattern) for pattern in self.settings.dense)
        return is_large and x.is_floating_point() and not is_dense

    def reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        """Return the reducer of vectors with this layout; `seed` is the run's."""
        device = layout.parts[-1].device
        is_by_host = all(part.device == device for part in layout.parts) and device.type != "cpu"
        is_by_host = is_by_host and not (wire.sums_on(device) and self._works_on_devices(layout, wire))
        made = self._guarded(layout_on_cpu(layout) if is_by_host else layout, wire, seed)
        if is_by_host:
            from quorate.means.on_host import OnHost

            made = OnHost(made, layout)
        if not self.settings.attack:
            return made
        from quorate.means.attacked import Attacked

        return Attacked(made, attack_from(self.settings.attack), seed)

    def _works_on_devices(self, layout: Layout, wire: Wire) -> bool:
        """Whether vectors on GPUs are summed or encoded there; all other ways exchange messages of the hosts."""
        if self.rule is not None or self.settings.on_anomaly != "ignore" or self.is_on_demand:
            return False
        if not isinstance(self.codec, Codec):
            return self.settings.compress == "power-sgd" or (self.codec is None and self.settings.reduce == AUTO)
        shapes = shapes_in(layout).values()
        has_length = None not in [self.codec.wire_bytes(shape) for shape in shapes]
        return has_length and self.way(shapes, wire.size) in ("sum", GATHER)

    def _guarded(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        made = self._reducer(layout, wire, seed)
        if self.settings.on_anomaly != "ignore":
            from quorate.means.guarded import Guarded

            made = Guarded(made, seed, skips=self.settings.on_anomaly == "skip")
        return made

    def _reducer(self, layout: Layout, wire: Wire, seed: int) -> Reducer:
        if self.rule is not None:
            from quorate.means.robust import Robust

            rule, redundancy = self.rule, Redundancy() if self.redundancy is None else self.redundancy(wire.size)
            if redundancy.batches > 1:
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
        if isinstance(self.codec, ReducerSettings):
            return self.codec.reducer(layout, wire, seed)
        of_shares = self.codec.rescaled(1 / wire.size)
        if self.is_on_demand:
            return OnDemand(TwoPhase(layout, wire, of_shares, seed))
        coded: type[Coded] = Coded
        if self.settings.reduce == HIERARCHICAL:
            coded = Hierarchical
        elif self.way(shapes_in(layout).values(), wire.size) == TWO_PHASE:
            coded = TwoPhase
        elif self.settings.clip_codes:
            coded = ClippedCodes
        return coded(layout, wire, of_shares, seed)

    def way(self, parts: Iterable[Shapes], size: int) -> Literal["sum", "gather", "two-phase", "hierarchical"]:
        """Return how `size` workers sum codes of parts.

        By default they sum them in two phases, if these send less than sending all codes to everyone would. "sum":
        codes add up, as dense vectors do.
        """
        codec = self.codec
        assert isinstance(codec, Codec)
        if self.settings.reduce == HIERARCHICAL:
            return "hierarchical"
        everywhere: Literal["sum", "gather"] = "sum" if codec.is_linear else "gather"
        is_gathered = self.settings.error_decay != 1 or self.settings.clip_codes
        if self.settings.reduce != AUTO or codec.is_linear or _keeps_more(codec) or is_gathered:
            return "two-phase" if self.settings.reduce == TWO_PHASE else everywhere
        sizes = [(numel_of(shapes), codec.wire_bytes(shapes)) for shapes in parts]
        return "two-phase" if sum(size * (nbytes or 0) - 8 * numel for numel, nbytes in sizes) > 0 else everywhere

    @property
    def said(self) -> dict[str, Any]:
        """The settings that have an effect, by name: for records, and to be compared among workers."""
        attack = {name: x for name, usual in _USUAL.items() if (x := getattr(self.settings, name)) != usual}
        if self.rule is not None:
            of_rule = {"reduce": self.settings.reduce, **dataclasses.asdict(self.rule), **attack}
            return of_rule if self.codec is None else dataclasses.replace(self, rule=None).said | of_rule
        if self.codec is None:
            return attack if self.settings.reduce == AUTO else {"reduce": self.settings.reduce, **attack}
        inner: Any = self.codec.bare if isinstance(self.codec, Codec) else self.codec
        own = {setting.name: getattr(inner, setting.name) for setting in dataclasses.fields(inner)}
        others = {name: x for name, x in dataclasses.asdict(self.settings).items() if name not in _OF_PARTS}
        return others | {"error_feedback": self.feeds_back} | own


def with_defaults(defaults: Mapping[str, object], raw: Mapping[str, object]) -> dict[str, object]:
    """Return the settings of a reduction, with those that the strategy has by default beside them."""
    return {**({} if "compress" in raw and "compress" in defaults else defaults), **raw}


def reduction_of(raw: Mapping[str, object]) -> Reduction:
    """Return the reduction that settings say, those of the codec and of the rule among them.

    Raises `ConfigurationError` for unknown codecs, rules and settings; not for those that do not go together, which
    `train.compatibility.check` does.
    """
    settings = ReductionSettings(**settings_for(ReductionSettings, {k: v for k, v in raw.items() if k in NAMES}))
    if settings.attack:
        attack_from(settings.attack)
    compress, of_codec = written_settings(settings.compress, "codec")
    reduce, of_rule = written_settings(settings.reduce, "way to reduce")
    of_codec |= {k: v for k, v in raw.items() if k not in NAMES}
    settings, rule, is_bound = dataclasses.replace(settings, compress=compress), None, True
    if reduce in rules:
        kind: Any = rules.get(reduce)
        of_codec = of_rule | of_codec
        names = of_codec.keys() if compress == NONE else {setting.name for setting in dataclasses.fields(kind)}
        of_rule = {k: of_codec.pop(k) for k in list(of_codec) if k in names}
        rule, is_bound = kind(**settings_for(kind, of_rule, reduce)), "f" in of_rule
        settings = dataclasses.replace(settings, reduce=reduce)
    ways = (AUTO, GATHER, TWO_PHASE, HIERARCHICAL)
    if compress == NONE:
        others = (raw.keys() & set(NAMES) | of_codec.keys()) - {"compress", "reduce", *_USUAL}
        if others:
            raise ConfigurationError(
                f"{', '.join(sorted(others))}: these are settings of a codec, but there is none; {_how()}"
            )
        if settings.reduce in ways[1:]:
            raise ConfigurationError(f'reduce="{settings.reduce}" says how codes are summed; {_how()}')
        if settings.reduce not in (AUTO, *WITHOUT_CODEC) and rule is None:
            raise unknown("way to reduce", settings.reduce, (AUTO, *WITHOUT_CODEC, *rules))
        return Reduction(settings=settings, rule=rule, is_bound=is_bound)
    if compress in OF_GRADIENTS:
        of_reducer: Any = reducers.get(compress)
        own = of_reducer(**settings_for(of_reducer, of_codec, compress))
        return Reduction(settings=settings, codec=own, rule=rule, is_bound=is_bound)
    if compress not in codecs:
        raise unknown("codec", compress, compressing())
    made: Any = codecs.get(compress)
    codec: Codec = made(**settings_for(made, of_codec, compress))
    if settings.reduce not in (*ways, ADASUM) and rule is None:
        raise unknown("way to reduce", settings.reduce, ways)
    if codec.needs_feedback if settings.error_feedback is None else settings.error_feedback:
        codec = ErrorFeedback(codec, settings.error_decay)
    return Reduction(settings=settings, codec=codec, rule=rule, is_bound=is_bound)


def _keeps_more(codec: Codec) -> bool:
    return bool(set(codec.memories) - {ERROR})


def _how() -> str:
    return f'choose one with compress="..." ({", ".join(compressing())})'


def compressing() -> list[str]:
    """Return the values of `compress`."""
    return sorted((*codecs.names(), *OF_GRADIENTS, NONE))
