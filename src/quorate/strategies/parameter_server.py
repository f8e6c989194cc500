"""Parameter server: servers hold the parameters and update them as gradients arrive; workers push and pull.

Idea: The parameters are cut into parts, and each part lies on one server with its optimizer state, so neither exists
once per worker. A worker pushes its gradient and pulls parameters; the user's own optimizer class steps on each server.
`mode` sets how much workers wait for each other. In `async` they do not wait. In `bounded` a worker waits when it is
more than `max_staleness` steps ahead of another. In `sync` all but `backup` workers are waited for in every step. If a
step has k gradients of P workers, its learning rate is multiplied by k / P. So P gradients move the parameters as far
as one step of synchronous training does, with any optimizer. Under `sync` with b backups the factor is k / (P - b),
where k is less. The first server decides on the order and the others follow it, so a worker reads the same version of
all parts.

Cost: Per step and worker, d numbers to the servers and d back, through the links of the servers: P times the gradient
each way for a single server. With `servers="all"` each worker sends and gets 2 (P - 1) / P of d, as in a ring
all-reduce. A thread per server, which takes turns with its worker's training; with `quorate run --servers` a process.
In a pause of all workers (an evaluation, a checkpoint), every worker reads all parameters and the optimizer state.
With `replication=2` each gradient goes to two servers; both compute the step and keep the optimizer state.

When it loses: With equally fast workers and `sync`: an all-reduce adds in fewer passes. Without waiting gradients are
about P - 1 steps stale when they count. With momentum this acts like more momentum (Mitliagkas et al. 2016), and
training may diverge at learning rates at which synchronous training is stable.

Honesty:
- worker death: stops cleanly; with `on_death="continue"` the others go on; if it was a server, this needs
  `replication=2`. A gradient that it was pushing may count only in some parts or copies
- pause: goes on; under `sync` and `bounded` the others wait for it
- slow worker: goes on; under `sync` all wait for it, except with `backup`; under `bounded` workers that are too far
  ahead wait
- corrupt gradient: goes on; a gradient with NaN or infinity is reported, skipped, or ends the training
  (`on_nonfinite`); any other one is in the parameters of all workers immediately
- resize: goes on; parameters and optimizer state are divided again; workers join with `on_death="continue"`
- resume: goes on; the servers keep their state, and every clock starts at zero

Paper: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014; Dean et al., "Large scale
distributed deep networks", NIPS 2012 (Downpour SGD); Ho et al., "More effective distributed ML via a stale synchronous
parallel parameter server", NIPS 2013; Chen et al., "Revisiting distributed synchronous SGD", 2016; Zhang, Gupta, Lian,
Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016; Zheng et al., "Asynchronous stochastic
gradient descent with delay compensation", ICML 2017; Hakimi, Barkai, Gabel, Schuster, "DANA: taming momentum in a
distributed asynchronous environment", 2019; Barkai, Hakimi, Schuster, "Gap-aware mitigation of gradient staleness",
ICLR 2020 (its running mean of steps from secondary sources). The factor k / P, and steps of all that has come between
two reads, are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts.servers import PlacedOnServers, Pushing, ServerSettings


@register("parameter-server")
@dataclass(frozen=True, kw_only=True)
class ParameterServer(ServerSettings, PlacedOnServers):
    """Servers hold the parameters; workers push gradients and pull parameters; `mode` says who waits."""

    meets = "servers"
    replicas = "meet"
    compresses = "gradients"
    may_be_own = True
    _sparse_gradients = "rows"

    servers: int | Literal["all", "own"] = "all"
    """Number of workers that hold the parameters, from rank 0 on, and also train. "own": separate servers, which
    `quorate run --servers` starts and which do not train."""

    @property
    def waits(self) -> bool:
        return self.in_order or (self.mode == "sync" and self.backup == 0)

    def start(self, worker: Worker) -> Pushing:
        worker.agree_on_servers(self.terms(self.placed(worker.size, worker.own_servers), self.replication))
        return Pushing(shown=worker.parameters)

    def step(self, worker: Worker) -> None:
        s: Pushing = worker.state
        s.take_in(worker)
        reads = s.steps % self.pull_every == 0
        if s.unpushed == self.push_every:
            s.push(worker, reads=reads)
        elif reads:
            s.ask(worker)
        if reads:
            s.read(worker, ahead=int(self.overlap))
        else:
            worker.update()
            s.shown = worker.parameters

    def drain(self, worker: Worker) -> None:
        worker.state.drain(worker)

    def pause(self, worker: Worker) -> None:
        s: Pushing = worker.state
        s.shown, s.left_out, s.momenta = worker.parameters, worker.servers.left_out, worker.servers.momenta

    def restored(self, worker: Worker, at: Flat | None) -> None:
        s: Pushing = worker.state
        worker.servers.set_out()
        s.shown, worker.servers.left_out, worker.servers.momenta = worker.parameters, s.left_out, s.momenta
