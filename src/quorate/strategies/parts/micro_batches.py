"""The setting of strategies that can keep the batch of a step after a death."""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class MicroBatches(Strategy):
    """The number of batches of a worker in a step, where the batch is kept."""

    micro_batches: int = 1
    """With batch="kept": the batches of the loader that each worker of the start computes in a step. `step()` updates
    after the last one of this worker; after a death survivors compute more."""

    def __post_init__(self) -> None:
        super().__post_init__()
        count: object = self.micro_batches
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"micro_batches is {count!r}; it must be a whole number of at least 1")
        if count > 1 and self.batch != "kept":
            raise ConfigurationError(
                'micro_batches is for batch="kept"; otherwise use optimizer.accumulate() for all batches of a step but '
                "the last"
            )
