"""ECD-PSGD: gossip in which neighbours estimate each other from compressed extrapolations.

Idea: As `d-psgd`, but each worker mixes estimates x~_j of itself and its neighbours. In step t it compresses
(`compress`) a point beyond the new parameters: z = x_t + t / 2 (x_{t+1} - x_t). Everyone updates the estimate as
x~_{t+1} = (1 - 2 / t) x~_t + 2 / t C(z), which is x_{t+1} if the code is exact. If the error of a code is equally large
in every step, the error of the estimate falls with t. What the code leaves out is lost, so codecs have to be unbiased.
Momenta stay each worker's own. t counts exchanges.

Cost: Per step one code to each neighbour, sent while the next gradient is computed; one encoding, and one decoding per
neighbour. In memory a copy of the worker's own replica, of each neighbour's and of the parameters, and three more
during a step. Without `compress` it is `d-psgd`.

When it loses: If the error of a code grows with its input, as with every codec here. z is as large as the parameters,
not only their step. So an error of one percent is one percent of the parameters, in every step. Then `dcd-psgd` and
`choco-sgd` are better; this strategy is here for comparison.

Honesty:
- worker death: goes on; once all remaining workers know of the death, they form a new graph, and new neighbours receive
  the full estimate once; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas, and sends its estimate in full once
- resume: goes on; every worker with its own replica and estimates, bitwise

Paper: Tang, Gan, Zhang, Zhang, Liu, "Communication compression for decentralized training", NeurIPS 2018, Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import neighbour_copies
from quorate.strategies.parts.gossip import GossipSettings, unchanging_graph


@dataclass(kw_only=True)
class State(neighbour_copies.NeighbourCopies):
    """The estimates, and x_t."""

    shown: Flat = kept("average")
    """x_t, as the newest step has left it: what the script has written since is no step."""


@register("ecd-psgd")
@dataclass(frozen=True, kw_only=True)
class ECDPSGD(GossipSettings):
    """Gossip as in d-psgd, with estimates of neighbours from compressed extrapolations."""

    compresses = "differences"

    def start(self, worker: Worker) -> State:
        graph = unchanging_graph(
            self.topology, worker.size, "ecd-psgd keeps an estimate of each neighbour, which must stay"
        )
        neighbour_copies.check_unbiased(worker.neighbours.codec, "ecd-psgd")
        return State(graph=graph, shown=worker.parameters.bare(), **neighbour_copies.equal_copies(worker))

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        self.drain(worker)
        worker.update()  # line 6: of the gradient at x_t
        if s.pull is not None:
            worker.replica.shift(s.pull.add_(s.own).add_(s.shown, -1.0))  # line 5
            s.pull = None
        x, before, t = worker.parameters.bare(), s.shown, worker.neighbours.round + 2
        neighbour_copies.tell(worker, x, lambda: (x - before) * (t / 2) + before, _estimated)  # line 7
        s.shown = x

    def drain(self, worker: Worker) -> None:
        neighbour_copies.take_in(worker, _estimated)

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        return neighbour_copies.pulled(worker, worker.state.pull)


def _estimated(estimate: Flat, z: Flat, number: int) -> Flat:
    """Line 8; exchanges are numbered from 0, steps from 1."""
    share = 2.0 / (number + 1)
    return estimate.mul_(1.0 - share).add_(z, share)
