"""The learning rate by examples seen: scaling by the batch, warm-up, and decay. Pure functions of numbers.

Sources: linear scaling and gradual warm-up, Goyal et al. 2017, arXiv 1706.02677, section 2; scaling by the square root,
Krizhevsky 2014, arXiv 1404.5997, section 5; polynomial decay with large batches, You et al. 2017, arXiv 1708.03888;
cosine, Loshchilov and Hutter 2017, arXiv 1608.03983; warm-up, stable, decay, Hu et al. 2024, arXiv 2404.06395.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from quorate.core.errors import ConfigurationError, unknown

Scaling = Literal["linear", "sqrt", "none"]
WarmUp = Literal["gradual", "constant", "none"]
Decay = Literal["constant", "step", "polynomial", "cosine", "warmup-stable-decay"]

_RULES: dict[str, Scaling] = {
    **dict.fromkeys(("SGD", "ASGD", "LARS"), "linear"),
    **dict.fromkeys(("Adam", "AdamW", "Adamax", "NAdam", "RAdam", "SparseAdam", "LAMB"), "sqrt"),
    **dict.fromkeys(("Adagrad", "Adadelta", "RMSprop", "Adafactor", "Muon"), "sqrt"),
    "AdaScale": "none",  # its gain is the scale
}
"""Rules by the name of a class."""


def scaling_of(names: Iterable[str]) -> Scaling:
    """Return the rule for an optimizer whose class, or first known base class, is among `names`.

    "linear" where a step is proportional to its gradient, "sqrt" where it does not depend on the gradient's scale.
    Raises `ConfigurationError` for an unknown one.
    """
    classes = list(names)
    rule = next((_RULES[name] for name in classes if name in _RULES), None)
    if rule is None:
        raise ConfigurationError(
            f'the scaling rule of {classes[0]} is not known; give scaling="linear", "sqrt" or "none"'
        )
    return rule


def scale_of(rule: Scaling, batch: float, base_batch: float) -> float:
    """Return the factor of the rate for `batch` examples a step, given the rate for `base_batch`."""
    ratio = batch / base_batch
    return {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[rule]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The factor by which the base rate is multiplied, as a function of the examples seen by all workers together.

    From the end of the warm-up on it is `scale` times the value of `decay`, where t goes from 0 to 1 until `total`:

        constant              1
        step                  factor^(number of milestones passed)
        polynomial            end + (1 - end) (1 - t)^power
        cosine                end + (1 - end) (1 + cos(pi t)) / 2
        warmup-stable-decay   1, and over the last `decay_examples` in a straight line down to `end`

    A gradual warm-up goes in a straight line from `begin` to `scale`, a constant one stays at `begin`. Raises
    `ConfigurationError` for numbers that do not fit together.
    """

    total: float
    scale: float = 1.0
    warm_up: WarmUp = "gradual"
    warm_up_examples: float = 0.0
    begin: float = 1.0
    decay: Decay = "cosine"
    end: float = 0.0
    power: float = 2.0
    milestones: Sequence[float] = ()
    factor: float = 0.1
    decay_examples: float | None = None

    def __post_init__(self) -> None:
        if self.warm_up not in get_args(WarmUp):
            raise unknown("warm_up", str(self.warm_up), get_args(WarmUp))
        if self.decay not in get_args(Decay):
            raise unknown("decay", str(self.decay), get_args(Decay))
        if not 0 < self.total < math.inf:
            raise ConfigurationError(f"total_examples must be above 0, not {self.total!r}")
        if not 0 <= self.warm_up_examples < self.total:
            raise ConfigurationError(
                f"warm_up_examples must be at least 0 and less than total_examples, not {self.warm_up_examples!r}"
            )
        for name, value in {"begin": self.begin, "end": self.end, "power": self.power, "factor": self.factor}.items():
            if not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} must be a number (at least 0), not {value!r}")
        if (self.decay == "step") != bool(self.milestones):
            raise ConfigurationError('milestones, in examples, go with decay="step", and that with some of them')
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ConfigurationError(
                f"milestones must be numbers of examples in ascending order, not {list(self.milestones)}"
            )
        if self.decay == "warmup-stable-decay" and not 0 < self._last <= self.total - self.warm_up_examples:
            raise ConfigurationError("decay_examples is above 0, and no more than what the warm-up leaves of the total")
        if self.decay != "warmup-stable-decay" and self.decay_examples is not None:
            raise ConfigurationError('decay_examples goes with decay="warmup-stable-decay"')

    @property
    def _last(self) -> float:
        left = self.total - self.warm_up_examples
        return min(left, self.total / 5) if self.decay_examples is None else self.decay_examples

    def at(self, examples: float) -> float:
        """Return the factor for a step that begins after so many examples."""
        warm = self.warm_up_examples if self.warm_up != "none" else 0.0
        if examples < warm:
            share = 0.0 if self.warm_up == "constant" else examples / warm
            return self.begin + (self.scale - self.begin) * share
        return self.scale * self._decayed(min(examples, self.total), warm)

    def _decayed(self, examples: float, warm: float) -> float:
        t = (examples - warm) / (self.total - warm)
        if self.decay == "step":
            return float(self.factor ** sum(place <= examples for place in self.milestones))
        if self.decay == "polynomial":
            return self.end + (1 - self.end) * math.pow(1 - t, self.power)
        if self.decay == "cosine":
            return self.end + (1 - self.end) * (1 + math.cos(math.pi * t)) / 2
        if self.decay == "warmup-stable-decay":
            left = min(1.0, (self.total - examples) / self._last)
            return self.end + (1 - self.end) * left
        return 1.0

    @property
    def in_words(self) -> str:
        """Warm-up and decay, in one line."""
        warm = f"{self.warm_up} warm-up over {self.warm_up_examples:g} examples from {self.begin:g} times the base rate"
        warm = "no warm-up" if self.warm_up == "none" or not self.warm_up_examples else warm
        ends = "" if self.decay in ("constant", "step") else f" to {self.end:g} of it at {self.total:g}"
        return f"{warm}, then {self.decay}{ends}"
