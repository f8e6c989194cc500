"""Settings of strategies whose workers are drawn to a centre, and the centre to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy, Worker
from quorate.core.telling import tell


@dataclass(frozen=True, kw_only=True)
class ElasticSettings(Strategy):
    """How often, and how strongly."""

    wants_momentum: ClassVar[bool] = False
    """Whether local steps are meant to have momentum."""

    sync_every: int = 10
    """tau: number of local steps of a worker between two exchanges with the centre. The first step includes an
    exchange."""
    beta: float = 0.9
    """P alpha: share of the distance to the mean of all P workers that the centre moves while each worker exchanges
    once."""
    alpha: float | None = None
    """Share of their distance that worker and centre each move in an exchange. By default `beta` / P."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "mean"
    """Buffers (such as BatchNorm statistics) used at an evaluation and at the end: those of each worker, their mean, or
    those of rank 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sync_every < 1:
            raise ConfigurationError(f"sync_every is {self.sync_every!r}; it must be a number of steps (at least 1)")
        if not 0 < self.beta <= 1:
            raise ConfigurationError(f"beta is {self.beta!r}; it must be a number above 0 and at most 1")
        if self.alpha is not None and not 0 < self.alpha < 1:
            raise ConfigurationError(
                f"alpha is {self.alpha!r}; it must be a number above 0 and below 1, or None: beta / P"
            )

    def strength(self, worker: Worker) -> float:
        """alpha."""
        return self.beta / worker.size if self.alpha is None else self.alpha

    def tell_of_momentum(self, worker: Worker) -> None:
        """Say so where local steps are meant to have momentum, and have none."""
        if self.wants_momentum and worker.rank == 0 and not worker.replica.has_moments:
            tell(
                "quorate: eamsgd is easgd whose local steps have momentum, and this optimizer has none; give SGD a "
                "momentum (0.99 in the paper) and nesterov=True, or take easgd\n"
            )
