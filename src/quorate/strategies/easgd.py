"""EASGD: workers take steps alone, and each is pulled towards a centre on servers, and the centre towards it.

Idea: Every worker takes steps of its own optimizer. Before every tau-th step (`sync_every`) it sends its parameters x
to the servers, which hold a centre c. The centre moves a part alpha = beta / P of the way to x, and the worker moves
the same distance towards the previous centre. Workers explore around the centre; a worker waits only for the answer,
and an exchange leaves the sum of all workers and the centre unchanged. The centre is evaluated and saved, and is the
result.

Cost: In every tau-th step a worker sends d numbers to the servers and gets d back, 2 d / tau per step, while the
optimizer's step is computed. A single server has P times that on its link; with `servers="all"` each has (P - 1) / P of
it in each direction. A thread and two passes over its part per server. Each worker keeps the centre as of the last time
all workers paused, and two vectors for an exchange. At an evaluation and at the end all workers read the centre,
and there is a mean.

When it loses: Against `local-sgd` where replicas have little to explore. The centre is some tau / beta steps behind
them, and a worker needs P / beta exchanges to follow it, so more workers stray further. Where one worker is slow: the
centre is nearer to what the others have seen. In float16 and bfloat16 the centre has the same type, and small
differences are lost to rounding.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; if it was a server (with `servers=1` only
  rank 0 is one), this needs `replication=2`
- pause: goes on; if the sleeping worker holds a part of the centre, the exchanges of all wait for it
- slow worker: goes on; no worker waits for it, and it pulls the centre less often
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some exchanges the centre
- resize: goes on; the centre stays, and every worker starts at the mean of the old replicas
- resume: goes on; the centre, and every worker with its own replica

Paper: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, Algorithm 1. x~ is `centre`,
and g_t(x) is the update of the user's optimizer. The paper's step is plain SGD; here weight decay and the like use x
from before the exchange, as the gradient does. `overlap` is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.resize import kept
from quorate.core.servers import ServerTerms
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.edits import WithPoint
from quorate.strategies.parts.elastic import ElasticSettings
from quorate.strategies.parts.servers import PlacedOnServers


@dataclass(kw_only=True)
class State(WithPoint):
    """The centre as it was when all paused last, and where this worker was when it asked for the newest one."""

    centre: Flat = kept("same")
    asked: Flat | None = kept("drop", default=None)


@register("easgd")
@dataclass(frozen=True, kw_only=True)
class EASGD(ElasticSettings, PlacedOnServers):
    """Every `sync_every` steps a worker and a centre on servers pull each other closer; no worker waits."""

    meets = "servers"
    replicas = "differ"

    servers: int | Literal["all"] = "all"
    """Number of workers that hold the centre, from rank 0 on; they also train."""
    overlap: bool = False
    """Whether a worker uses the answer one step later, so that it does not wait for it."""
    in_order: bool = False
    """Whether exchanges are applied in the order of their number and rank: runs are bitwise reproducible, and all
    workers wait for the slowest."""

    @property
    def waits(self) -> bool:
        return self.in_order

    def start(self, worker: Worker) -> State:
        self.tell_of_momentum(worker)
        terms = ServerTerms(
            servers=self.placed(worker.size, ()),
            mode="async",
            replication=self.replication,
            in_order=self.in_order,
            elastic=self.strength(worker),
        )
        worker.agree_on_servers(terms)
        return State(centre=worker.servers.centre)

    def step(self, worker: Worker) -> None:
        self.drain(worker)  # what was asked a step before
        if (worker.step - 1) % self.sync_every == 0:  # tau divides t
            worker.state.asked = worker.servers.exchange()  # b) x~ <- x~ + alpha (x - x~), on the servers
        worker.update()  # x <- x - eta g_t(x)
        if not self.overlap:
            self.drain(worker)

    def drain(self, worker: Worker) -> None:
        s: State = worker.state
        if s.asked is not None:
            x, s.asked = s.asked, None
            centre = worker.servers.pull().wait().x
            worker.replica.shift((centre - x) * self.strength(worker))  # a) x <- x - alpha (x - x~)

    def pause(self, worker: Worker) -> None:
        worker.state.centre = worker.servers.centre

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return worker.parameters.copy_(worker.state.centre), 1.0

    def restored(self, worker: Worker, at: Flat | None) -> None:
        s: State = worker.state
        s.centre = worker.servers.centre = s.centre if at is None else at
        worker.servers.set_out()
