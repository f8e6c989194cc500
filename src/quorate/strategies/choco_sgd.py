"""CHOCO-SGD: gossip that sends, in few bytes, how a replica differs from the copies its neighbours keep of it.

Idea: Every worker and its neighbours keep the same copy x^_i of its parameters x_i. In each step the worker compresses
the difference by any codec (`compress`) and sends Q(x_i - x^_i), which all add to the copy. Numbers that the codec
leaves out are in the next difference. Then each worker moves part of the way to its neighbours, as measured between the
copies: x_i <- x_i + gamma sum_j W_ij (x^_j - x^_i). The copies are equal everywhere, so the mean of all replicas is
conserved up to rounding, whatever the codec. gamma is `consensus_rate`. Copies scale the codes of unbiased codecs by 1
/ (1 + their error), as in the paper, so codecs of few levels also work. Momenta stay each worker's own.

Cost: Per step one code to each neighbour, sent while the gradient is computed (with `overlap`); one encoding, and one
decoding per neighbour. Memory holds a copy of the worker's own replica and of each neighbour's, and two more during a
step. The paper's sum of all copies would need less memory, but could not remove a neighbour that dies. Without
`compress` parameters are sent uncompressed, and it is `d-psgd`.

When it loses: On fast networks, where encoding takes longer than sending. The fewer numbers a code holds, the smaller
gamma has to be, and the slower the replicas converge to each other. With 1 % of the numbers they are far apart if data
differ. After a death, or an evaluation that only some workers reach at the same step, whole copies are sent once.

Honesty:
- worker death: goes on; its edges no longer count at either end. Once all remaining workers know of the death, they
  form a new graph, and new neighbours receive the full copy once; with `on_death="stop"` all stop
- pause: goes on; its neighbours wait until it wakes up, and then everyone else
- slow worker: goes on; all wait for it, a few steps later
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica, and within some rounds all replicas
- resize: goes on; every new worker starts at the mean of the old replicas, and sends its copy in full once
- resume: goes on; every worker with its own replica and copies, bitwise

Paper: Koloskova, Stich, Jaggi, "Decentralized stochastic optimization and gossip algorithms with compressed
communication", ICML 2019, Algorithm 2; with `overlap` as in Koloskova, Lin, Stich, Jaggi, "Decentralized deep learning
with arbitrary communication compression", ICLR 2020, Algorithm 1. Copies begin at the common start, not at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Worker
from quorate.core.vectors import Flat
from quorate.strategies import register
from quorate.strategies.parts import neighbour_copies
from quorate.strategies.parts.gossip import GossipSettings, unchanging_graph


@dataclass(kw_only=True)
class State(neighbour_copies.NeighbourCopies):
    """The copies, and the rates that hold for this codec."""

    rates: tuple[float, float] = kept("drop")
    """gamma, of what is coded and of what is dense."""
    share: float = kept("drop")
    """The share of a decoded difference by which copies advance."""


@register("choco-sgd")
@dataclass(frozen=True, kw_only=True)
class ChocoSGD(GossipSettings):
    """Neighbours keep copies of each other and exchange compressed differences."""

    compresses = "differences"

    consensus_rate: float | None = None
    """gamma, above 0 and at most 1: how far each step moves towards the neighbours' copies. By default 1 without a
    codec, and s / (2 - s) with a codec.

    Here s is the share of the squared norm of a normally distributed matrix that it keeps (0.04 for top-k of 1 %).
    """
    overlap: bool = True
    """Whether codes are sent while the next gradient is computed and are used in the next step; otherwise they are used
    in the same step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.consensus_rate is not None and not 0 < self.consensus_rate <= 1:
            raise ConfigurationError(
                f"consensus_rate is {self.consensus_rate}; it must be a number above 0 and at most 1, or left out"
            )

    def start(self, worker: Worker) -> State:
        graph = unchanging_graph(
            self.topology, worker.size, "choco-sgd keeps a copy of each neighbour, which must stay"
        )
        share, held = neighbour_copies.held_by(worker.neighbours.codec)
        rates = (held / (2 - held), 1.0) if self.consensus_rate is None else (self.consensus_rate,) * 2
        return State(graph=graph, rates=rates, share=share, **neighbour_copies.equal_copies(worker))

    def step(self, worker: Worker) -> None:
        s: State = worker.state
        self.drain(worker)  # of the step before
        worker.update()  # x_i^(t+1/2)
        if not self.overlap:
            self._tell(worker)
            self.drain(worker)
        if s.pull is not None:
            worker.replica.shift(neighbour_copies.by_coding(s.pull, *s.rates))
            s.pull = None
        if self.overlap:
            self._tell(worker)

    def _tell(self, worker: Worker) -> None:
        x = worker.parameters.bare()
        neighbour_copies.tell(worker, x, lambda: x - worker.state.own, self._advanced(worker))

    def drain(self, worker: Worker) -> None:
        neighbour_copies.take_in(worker, self._advanced(worker))

    def _advanced(self, worker: Worker) -> neighbour_copies.Advance:
        return lambda copy, q, number: copy.add_(neighbour_copies.by_coding(q, worker.state.share))  # x^_j

    def consensus(self, worker: Worker) -> tuple[Flat, float]:
        s: State = worker.state
        return neighbour_copies.pulled(worker, None if s.pull is None else neighbour_copies.by_coding(s.pull, *s.rates))
