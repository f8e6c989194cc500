"""A strategy that measures the run, and proposes another one: all-reduce, local steps, or a quorum.

Idea: It begins as `all-reduce`. Every worker measures how long its steps compute and how long it waits for the others,
and the squared norms of its gradient and of the mean, every eighth step. At each pause (an evaluation, the end of an
epoch, the end) all workers gather these measures. Unequal steps are the skew, the shortest wait is the network, and the
norms give the noise of gradients. From these all compute the seconds for the progress of one gradient under
`all-reduce`, under `local-sgd` and under a quorum of each size. If one of these needs at least `margin` less than the
present one, it is proposed, with the numbers. With `act=True` the training changes between `all-reduce` and local steps
at that pause, where all replicas are equal, and back. It goes back too if local steps take longer than expected. A
quorum is only proposed: it has other exchanges from the start, so resume a checkpoint with `--strategy`. The records
have every proposal and every change, with its reason.

Cost: As `all-reduce`, or as `local-sgd`. Two passes over the gradient in every eighth step, and a hundred numbers per
worker at each pause. Back from local steps there is one more mean, of the parameters with the optimizer's vectors.

When it loses: Without pauses, it never proposes. Against the best strategy by the time until the first pause. It
measures seconds and noise, and not what a training learns: the cost of staleness is a rule (`lateness`).

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the next mean is over the remaining workers, and local steps
  of the dead worker since the last mean are lost
- pause: goes on; all wait at the next exchange until the worker wakes up, or stop when the time limit of waits is over
- slow worker: goes on; everyone waits for it, until other steps are proposed and chosen
- corrupt gradient: untested; it reaches all workers in the next mean
- resize: goes on; from the mean of the old replicas, with the measures of the new workers
- resume: goes on; with local steps or synchronous ones, as they were

Paper: The rule is ours (`strategies.parts.proposal`). Noise: McCandlish et al., "An empirical model of large-batch
training", 2018. Staleness costs the signal and not the noise: Agarwal and Duchi, "Distributed delayed stochastic
optimization", NIPS 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import proposal
from quorate.strategies.parts.local_steps import LocalStepSettings, SynchronousPhase, mean_of_all, take_mean


@dataclass(kw_only=True)
class State(SynchronousPhase):
    """Whether steps are local, and what was measured."""

    measures: proposal.Measures = kept("drop", default_factory=proposal.Measures)
    synchronous_step: float = kept("same", default=0.0)
    """Seconds of a synchronous step, when they were measured last."""
    noise: float = kept("same", default=0.0)


@register("auto")
@dataclass(frozen=True, kw_only=True)
class Auto(LocalStepSettings):
    """All-reduce that measures the run and proposes another strategy, or with `act` changes to local steps and back."""

    on_death: Literal["stop", "continue"] = "stop"
    """Whether the others continue without a dead worker, or all workers stop."""
    act: bool = False
    """Whether the training changes between all-reduce and local steps at a pause; by default it only proposes."""
    lateness: float = 0.1
    """Cost of one step of staleness if gradients have no noise, as a share of the progress of a step."""
    margin: float = 0.1
    """The share of its seconds that another strategy has to save."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period.unit != "steps" or self.lateness < 0 or not 0 <= self.margin < 1:
            settings = f"sync_every={self.sync_every!r}, lateness={self.lateness}, margin={self.margin}"
            raise ConfigurationError(
                f"{settings}: sync_every must be a number of steps, lateness at least 0, and margin from 0 to 1"
            )

    @property
    def acts_on_pieces(self) -> bool:
        return False

    def start(self, worker: Worker) -> State:
        worker.means.step_alone(False)
        return State()

    def restored(self, worker: Worker, at: Flat | None) -> None:
        worker.means.step_alone(worker.state.is_local)

    def backward(self, worker: Worker) -> None:
        state: State = worker.state
        measures, begin = state.measures, worker.step_seconds
        measures.work.append(begin)
        if not state.is_local:
            own = proposal.square_of(worker.gradient) if measures.is_sample else None
            begin = worker.step_seconds
            worker.gradient = mean = worker.means.of_gradient().wait()
            measures.waited.append(worker.step_seconds - begin)
            if own is not None:
                measures.squares.append((own, proposal.square_of(mean)))

    def step(self, worker: Worker) -> None:
        state: State = worker.state
        worker.update()
        if state.is_local:
            state.count(worker, self.period)
            if state.is_due(worker, self.period):
                begin = worker.step_seconds
                self.apply(worker, mean_of_all(worker, *self.contribution(worker)))
                state.measures.waited.append(worker.step_seconds - begin)

    def contribution(self, worker: Worker) -> tuple[Flat, float]:
        return worker.replica.read(moments=self.momentum == "average"), worker.state.weight(self.period)

    def apply(self, worker: Worker, result: Mean) -> None:
        take_mean(worker, result.mean, self.momentum)
        worker.state.restart()

    def pause(self, worker: Worker) -> None:
        """Propose, and change, while all replicas are equal."""
        state: State = worker.state
        measures, state.measures = state.measures, proposal.Measures()
        rows = worker.means.gather(measures.row)
        if rows is None or not all(row[0] for row in rows):  # a worker has made too few steps
            return
        if not state.is_local:
            state.noise, state.synchronous_step = proposal.noise_in(rows), proposal.step_in(rows)
        work, exchange = proposal.work_in(rows), proposal.exchange_in(rows)
        seen = proposal.Seen(work=work, exchange=exchange, step=state.synchronous_step, noise=state.noise)
        now, steps = proposal.LOCAL if state.is_local else proposal.ALL_REDUCE, int(self.period.count)
        proposed = proposal.propose(seen, now, local_steps=steps, lateness=self.lateness, margin=self.margin)
        if proposed.strategy.partition(":")[0] == now:
            return
        acts = self.act and not proposed.strategy.startswith("quorum")
        if worker.propose(proposed.strategy, proposed.why, acts=acts):
            self._change(worker)

    def _change(self, worker: Worker) -> None:
        state: State = worker.state
        if state.is_local:  # each has momenta of its own
            x = worker.replica.read(moments=True)
            worker.replica.write(mean_of_all(worker, x, 1.0).mean, moments=True)
        state.restart()
        state.is_local = not state.is_local
        worker.means.step_alone(state.is_local)
