"""A quorum that chooses itself: measurements decide how many workers a round waits for.

Idea: The strategy `quorum` with a `wait_for` that changes during training. With each gradient a worker reports how long
it computed, how long it had waited, its loss, and the squared norm of its gradient. After every `window` steps of all
workers the strategy replays the measured compute times under each possible quorum. The replay gives the number of
gradients per second and their staleness; the squared norms give the share of noise in a gradient, and staleness of
noise costs nothing. The new quorum is the largest one whose seconds per progress are within `margin` of the lowest: if
all workers are equally fast, it is all of them. If the training loss is significantly higher after a window than before
it, or oscillates significantly, the quorum is doubled and not lowered again for a while, longer each time. Each worker
keeps the momentum of its own gradients, as in `quorum`. Every replica computes the same quorum from the same rounds and
requests it; the leading worker decides from which round on it applies, and the records give the reason.

Cost: As `quorum`; two more passes over each gradient, a few more numbers sent with it, and a few milliseconds after
every window.

When it loses: Against the best fixed quorum: it loses the first windows, before it has measured anything, and a
training of a few dozen steps has no others. If progress depends on a quantity that it does not measure. At a learning
rate near the limit of stability staleness costs more than it assumes, and it notices this only when the loss has risen.
With an optimizer such as Adam small rounds may be worth more than their share. If compute times change faster than a
window. If one worker is always far slower: `backup-workers`, which drops its gradients, was 7 % faster to a loss. If
workers are equally fast and the model is large: the exchange goes through one worker and does not overlap
with the backward pass, so `all-reduce` is faster.

Honesty:
- worker death: goes on; with a quorum of the remaining workers; with `on_death="stop"` all stop
- pause: goes on; after `grace` the others go on without it, and it catches up from the log or from a copy of a replica
- slow worker: goes on; a round does not wait for it if waiting costs more than its gradient is worth
- corrupt gradient: goes on; a gradient with NaN or infinity is reported with its worker, or ends the training
  (`on_nonfinite`); any other one is added like a correct one
- resize: goes on; pending gradients are distributed over the new workers, and the quorum starts again from its initial
  value
- resume: goes on; with the quorum in effect at the time, and every gradient counts once

Paper: The rule is ours (`rounds.choice.choosing`). The noise scale is that of McCandlish et al., "An empirical model
of large-batch training", 2018; that staleness costs the signal and not the noise is a result of Agarwal and Duchi,
"Distributed delayed stochastic optimization", NIPS 2011. Rounds: see `quorum`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.strategy import Worker
from quorate.rounds.choice.choosing import Chooser, Rule
from quorate.strategies import register
from quorate.strategies.parts.round_settings import RoundSettings


@register("adaptive")
@dataclass(frozen=True, kw_only=True)
class Adaptive(RoundSettings):
    """A quorum that adapts to who is late, how long exchanges take, and how noisy gradients are."""

    meets = "rounds"
    compresses = "gradients"

    wait_for: int | float | Literal["all", "majority", "designated"] = "majority"
    """The initial quorum, as in `quorum`."""
    window: int = 16
    """Steps of each worker, on average, between two choices of the quorum."""
    lateness: float = 0.1
    """Cost of one step of staleness if gradients have no noise, as a share of the progress of a step."""
    margin: float = 0.02
    """How far above the lowest cost the chosen quorum may be, as a share of that cost."""
    max_staleness: int = 16
    """Maximum number of rounds by which the others may be ahead of a live worker."""
    divide_by: Literal["world", "arrived"] = "world"
    """Divisor of the sum of a round: the number of live workers, or the total weight that has arrived."""
    clip_norm: float | None = None
    """Maximum norm of the mean of a round; larger means are clipped. By default means are not clipped."""
    momentum: Literal["auto", "worker", "common"] = "auto"
    """Place of the momentum, as in `quorum`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window < 1 or self.lateness < 0 or self.margin < 0:
            settings = f"window={self.window}, lateness={self.lateness}, margin={self.margin}"
            raise ConfigurationError(f"{settings}: window must be at least 1, lateness and margin at least 0")

    def start(self, worker: Worker) -> Chooser:
        names = ("wait_for", "max_staleness", "divide_by", "clip_norm", "momentum")
        settings: dict[str, Any] = {name: getattr(self, name) for name in names}
        worker.agree_on_rounds(measures=True, **settings, **self.bounds)
        return Chooser()

    def step(self, worker: Worker) -> None:
        worker.rounds.contribute().wait()
        for result in worker.rounds.completed():
            self.apply(worker, result)

    def apply(self, worker: Worker, result: Mean) -> None:
        worker.update(result.mean, options=result.options)
        assert result.measured is not None
        rule = Rule(window=self.window, lateness=self.lateness, margin=self.margin)
        choice = worker.state.saw(result.measured, worker.size, rule)
        if choice is not None:
            worker.rounds.agree(wait_for=choice.wait_for, why=choice.why)
