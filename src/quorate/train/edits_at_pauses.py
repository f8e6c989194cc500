"""Edits of a script behind a mean of all, by workers that have made no step since."""

from __future__ import annotations

from typing import Protocol
from zlib import crc32

from torch import Tensor

from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.means.means import MeansOfAll
from quorate.observe.digests import bits_of
from quorate.observe.step_observer import StepObserver
from quorate.replica.replica import Replica
from quorate.strategies.parts.local_steps import LocalSteps, LocalStepSettings
from quorate.strategies.parts.outer_steps import OuterState


class EditedWorker(Worker, Protocol):
    """A worker, with the parts that show whether its parameters were edited."""

    name: str
    strategy: Strategy
    agrees_in_backward: bool

    @property
    def replica(self) -> Replica: ...

    @property
    def means(self) -> MeansOfAll: ...


class EditsAtPauses(StepObserver):
    """Detects edits of parameters that a mean of all has made, by the script of a worker without a step since.

    Cost: a pass over the parameters after each mean, and before each mean of a pause.
    """

    def __init__(self, worker: EditedWorker) -> None:
        self.optimizer, self._worker = worker.name, worker
        self._vectors = 0
        self._bits: list[Tensor] | None = None
        """Digests of the parameters after the newest mean; None after a step without one."""

    @property
    def looks(self) -> bool:
        """Whether replicas meet in means of parameters, and neither points nor sums that are hidden detect edits."""
        strategy, terms = self._worker.strategy, self._worker.strategy.client_terms
        is_hidden = terms is not None and terms.is_hidden
        return meets_in_means(strategy) and not is_hidden and not isinstance(self._worker.state, OuterState)

    def step_ended(self) -> None:
        vectors = self._worker.means.vectors
        if vectors == self._vectors:
            self._bits = None
        else:
            self._vectors = vectors
            self.note()

    def note(self) -> None:
        """Note the parameters that a mean has made."""
        if self.looks:
            self._bits = self._bits_now()

    def _bits_now(self) -> list[Tensor]:
        return [bits_of(p) for p in self._worker.replica.trained]

    def resumed(self) -> None:
        """Go on from a checkpoint, which does not say whether its replicas were edited."""
        self._bits = [] if self.looks else None

    def _edited(self) -> int | None:
        """Return the checksum of the parameters if the script may have edited them since the newest mean, else None."""
        if self._bits is None:
            return None
        now, before = ([int(x) for x in bits] for bits in (self._bits_now(), self._bits))
        is_edited = self._worker.means.headers.most_of_pieces(float(now != before))
        return crc32(repr(now).encode()) if is_edited else None

    def contribution(self) -> tuple[tuple[Flat, float] | None, int | None]:
        """Return the contribution of the strategy, and the checksum of edited parameters, or None.

        An edit without a step weighs as much as one step beside local steps of others.
        """
        worker, edited = self._worker, self._edited()
        contribution = worker.strategy.contribution(worker)
        if edited is None or contribution is None or contribution[1]:
            return contribution, None if contribution is not None and contribution[1] else edited
        exchanges_gradients = worker.agrees_in_backward and not worker.means.ready.is_alone
        if self._bits and isinstance(worker.state, LocalSteps) and not exchanges_gradients:
            contribution = contribution[0], weight_of_a_step(worker.strategy)
        return contribution, edited

    def average(self) -> None:
        """Go on from the mean of the edited parameters, if there are any; called by all workers in a pause of all."""
        worker = self._worker
        if not self.looks or worker.means.edits == "none":
            return
        at = worker.parameters
        if worker.means.edits == "unlike":
            at = worker.parameters = worker.means.of(at).wait()
        worker.means.edits = "none"
        worker.strategy.restored(worker, at)
        self.note()


def weight_of_a_step(strategy: Strategy) -> float:
    """Return the weight of one local step in a mean."""
    if isinstance(strategy, LocalStepSettings) and strategy.period.unit == "steps":
        return 1 / strategy.period.count
    return 1.0


def meets_in_means(strategy: Strategy) -> bool:
    """Return whether replicas become equal in means of all."""
    return strategy.meets == "all" and strategy.replicas == "meet"
