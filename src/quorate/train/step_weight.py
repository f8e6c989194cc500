"""What a worker's gradient counts in a mean: as much as any other's, or the examples or tokens it was computed on."""

from __future__ import annotations

from typing import Literal, get_args

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.strategy import Strategy, steps_apart
from quorate.data.consumption import consumed
from quorate.wire.current import Place

Weight = Literal["equal", "examples", "tokens"]

_COUNTS_INSTEAD = {
    "neighbours": "what neighbours count is said by the topology",
    "asks": "two workers that meet count the same",
    "servers": "what a worker counts on servers is said by the strategy's settings",
    "nobody": "each worker takes its own steps, and nothing is averaged",
}
"""By whom the strategy meets, where it forms no means of all."""


def check_weight(weight: str) -> None:
    """Raise `ConfigurationError` for an unknown setting."""
    if weight not in get_args(Weight):
        raise unknown("weight", str(weight), get_args(Weight))


def check_weighable(weight: Weight, strategy: Strategy, label: str) -> None:
    """Raise `ConfigurationError` where amounts are to count under a strategy that forms no mean of all workers."""
    if weight != "equal" and steps_apart(strategy):
        raise ConfigurationError(
            f'weight="{weight}" weighs the means of all workers, and {label} forms no means: '
            + _COUNTS_INSTEAD[strategy.meets]
        )


class StepWeight:
    """The weight of one worker's steps, under the setting `weight` of `distribute`."""

    def __init__(self, place: Place, weight: Weight) -> None:
        self._place, self._weight = place, weight
        self._until = self._loaded
        self._newest = self._largest = 1.0

    def of_step(self) -> float:
        """The examples, or tokens, that were loaded since the step before, or 1 where all count the same.

        A step without a new batch counts as much as the one before. Raises `ConfigurationError` where nobody counts
        them.
        """
        if self._weight == "equal":
            return 1.0
        loaded = self._loaded
        if loaded == 0 and self._weight == "tokens":
            raise ConfigurationError(
                'weight="tokens" needs the loader of quorate.shard, and batches that say how many tokens they hold, in '
                "an attribute `tokens`"
            )
        if loaded == 0:
            raise ConfigurationError('weight="examples" needs the loader of quorate.shard, which counts the examples')
        if loaded > self._until:
            self._newest = float(loaded - self._until)
            self._largest = max(self._largest, self._newest)
        return self._newest

    @property
    def _loaded(self) -> int:
        taken = consumed(self._place)
        return taken.all_tokens if self._weight == "tokens" else taken.all_examples

    @property
    def full(self) -> float:
        """What a step without short batches counts; under rounds a gradient counts as a share of it.

        Raises `ConfigurationError` for tokens: there is no full batch of them.
        """
        if self._weight == "tokens":
            raise ConfigurationError(
                "in rounds each gradient counts as a share of a full batch, which tokens do not have; use "
                'weight="examples" or "equal"'
            )
        return max(self._largest, float(consumed(self._place).full_batch)) if self._weight == "examples" else 1.0

    def step_ended(self) -> None:
        """What is loaded from now on is of the next step."""
        self._until = self._loaded
