"""The weight of a worker's gradient in a mean: equal, or the examples or tokens that it was computed on."""

from __future__ import annotations

from typing import Literal, get_args

from quorate.core.errors import ConfigurationError, unknown
from quorate.data.consumption import Consumed
from quorate.observe.step_observer import Phase, StepObserver

Weight = Literal["equal", "examples", "tokens"]


def check_weight(weight: str) -> None:
    """Raise `ConfigurationError` for an unknown setting."""
    if weight not in get_args(Weight):
        raise unknown("weight", str(weight), get_args(Weight))


class StepWeight(StepObserver):
    """The weight of one worker's steps, under the setting `weight` of `distribute`."""

    phase = Phase.MEASURE

    def __init__(self, consumed: Consumed, optimizer: str, weight: Weight) -> None:
        self._consumed, self.optimizer, self._weight = consumed, optimizer, weight
        self.varies = weight != "equal"
        """Whether steps count differently: else nothing is to be observed."""
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
                'weight="tokens" needs quorate.loader, and batches that say how many tokens they hold, in '
                "an attribute `tokens`"
            )
        if loaded == 0:
            raise ConfigurationError('weight="examples" needs quorate.loader, which counts the examples')
        if loaded > self._until:
            self._newest = float(loaded - self._until)
            self._largest = max(self._largest, self._newest)
        return self._newest

    @property
    def _loaded(self) -> int:
        taken = self._consumed
        return taken.all_tokens if self._weight == "tokens" else taken.all_examples

    @property
    def full(self) -> float:
        """The weight of a step of full batches; under rounds a gradient counts as a share of it.

        Raises `ConfigurationError` for tokens, which have no full batch.
        """
        if self._weight == "tokens":
            raise ConfigurationError(
                "in rounds each gradient counts as a share of a full batch, which tokens do not have; use "
                'weight="examples" or "equal"'
            )
        return max(self._largest, float(self._consumed.full_batch)) if self._weight == "examples" else 1.0

    def step_ended(self) -> None:
        """Count all that is loaded from now on for the next step."""
        self._until = self._loaded
