"""One replica as its strategy sees it, and what happens around the strategy: backward, step, finish."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from quorate.agreement.means import Agreement
from quorate.agreement.neighbours import NeighboursOf
from quorate.agreement.rounds import WorkerRounds
from quorate.buckets.flat import pack, unpack
from quorate.checkpoint.saving import saving
from quorate.core.errors import ConfigurationError
from quorate.core.own_replica import OwnReplica
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat
from quorate.data.context import data_context
from quorate.membership.same_call import call_of
from quorate.membership.survivors import Losses, agree_on_buffers, level, outlive
from quorate.observe.backward import listeners
from quorate.observe.pacing import injected
from quorate.observe.step_times import StepTimer
from quorate.replica.options import put_options
from quorate.replica.outer_optimizer import updater
from quorate.replica.plain_step import agreed_closure, check_closure, plain_step
from quorate.replica.replica import Own
from quorate.replica.updating import has_gradient, standing_at, with_gradient
from quorate.rounds.rounds import Rounds
from quorate.rounds.terms import Agreed
from quorate.train.edits import Edits
from quorate.train.joining import admit, begin, compare, connect, enter, met
from quorate.train.relayout import arrange_anew, group_came, leaves_out_own, trained_in_order
from quorate.train.safeguards import Safeguards, Watched
from quorate.train.step_weight import StepWeight
from quorate.wire.current import Place
from quorate.wire.metered import Meter, Metered


class OptimizerWorker:
    """Implements `core.strategy.Worker` for one optimizer of one process (or virtual worker)."""

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        model: Module,
        strategy: Strategy,
        place: Place,
        name: str,
        watched: Watched,
    ) -> None:
        meter = Meter()
        wire = Metered(place.wire.channel(f"optimizer/{name}"), meter)
        self.timer = StepTimer(place, name, meter)
        self._pacing = injected(place).pacing
        self.rank, self.size, self.step, self.weight = wire.rank, wire.size, 0, 1.0
        self.wire, self.clock, self.strategy = wire, wire.clock, strategy
        self.optimizer, self.plain, self._model, self._listeners = optimizer, plain, model, listeners(place)
        self._place, self.seed = place, data_context(place).seed
        self.differs = strategy.replicas != "equal"
        self.step_weight = StepWeight(place, watched.weight)
        self.neighbours = NeighboursOf(self, place)
        self._rounds: WorkerRounds | None = None
        self.agrees_in_backward = type(strategy).backward is not Strategy.backward
        self._agreed = self.finished = self.has_ended = self._leaves_out = False
        self._closure: Callable[[], Any] | None = None
        self._loss: Any = None
        self.came_with: Flat | None = None  # of its replica, as long as all rest at the mean of all
        self.safeguards, self.saving = Safeguards(self, place, watched), saving(place)
        self.replica: OwnReplica = Own(self, plain, place)
        self.updater, self.losses, self.edits = updater, Losses(self), Edits(self)
        self.arrange()
        self.call = call_of(self, plain, model, watched)
        compare(self)
        begin(self, model)
        self.state = strategy.start(self)
        connect(self)
        outlive(self.wire, place, name, strategy)
        enter(self, model, place)
        self._listeners.all.append(self)
        self.timer.set_out_again()

    def arrange(self) -> None:
        """Lay out the parameters that are trained now, in the same order on every worker."""
        self.every = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.is_trained = [p.requires_grad for p in self.every]
        named = trained_in_order(self.every, self._model)
        self.trained = [p for _, p in named]
        spending, overlap = self._listeners.spending, self.agrees_in_backward
        self.peers = Agreement(named, self.wire, spending, self.timer, self.safeguards, overlap=overlap)
        self.peers.marks.follow(self.saving, self)
        self.peers.met = partial(met, self, self._place)
        self.peers.contribution = partial(self.strategy.contribution, self)
        self.peers.apply = partial(self.strategy.apply, self)

    def grown(self, group: dict[str, Any]) -> None:
        """A parameter group was added: every worker gets rank 0's numbers, before anything is computed with them."""
        group_came(self, group["params"], self._place)

    def backward_begins(self) -> None:
        """The outermost backward pass begins: parameters that came, froze or thawed meanwhile are seen here."""
        if self._closure is None:
            self.safeguards.step_begins()
        arrange_anew(self, self._place, in_backward=True)
        self._gradient_begins()
        self.neighbours.goes_on()

    def _gradient_begins(self) -> None:
        self.weight = self.step_weight.of_step()
        self.peers.ready.scale = self.weight / self.size
        self.peers.ready.begin()

    def forward_ended(self, losses: Any) -> None:
        """What backward was called on; a worker that is to be late is late here."""
        self.timer.saw(losses)
        if self._pacing is not None:
            self._pacing.hold(self.timer)

    @property
    def gradient(self) -> Flat:
        return self.peers.local

    @gradient.setter
    def gradient(self, value: Flat) -> None:
        with self.timer.spending("decode"):
            self.peers.write_gradient(value)

    @property
    def parameters(self) -> Flat:
        copy = Flat.zeros(self.peers.layout)
        pack(self.trained, copy)
        return copy

    @parameters.setter
    def parameters(self, value: Flat) -> None:
        unpack(value, self.trained)

    @property
    def rounds(self) -> WorkerRounds:
        assert self._rounds is not None, "a strategy agrees on its rounds in start()"
        return self._rounds

    def agree_on_rounds(self, *, clip_norm: float | None = None, measures: bool = False, **settings: Any) -> None:
        check_closure(self.plain, "a strategy of rounds", can_agree=False)
        if self._rounds is not None:
            return  # other parameters are trained than before
        nbytes = sum(p.numel() * p.element_size() for p in self.every)
        known: dict[str, Any] = {"size": self.size, "most": self.wire.most, "seed": self.seed, "vector_bytes": nbytes}
        agreed = Agreed(**known, outlives=self.safeguards.outlives, **settings)
        self._rounds = WorkerRounds(self, self._model, self._place, agreed, clip_norm, measures=measures)

    def update(self, gradient: Flat, *, at: Flat | None = None, options: Any = None) -> None:
        if self._rounds is None or not self.differs:
            self.timer.rounds += 1
        if self._leaves_out:
            return
        with self.timer.spending("update"), standing_at(self.trained, at):
            if options is None:
                self._update(gradient)
                return
            before = put_options(self.optimizer, options)
            try:
                self._update(gradient, is_mine=False)
            finally:
                put_options(self.optimizer, before)

    def _update(self, gradient: Flat, *, is_mine: bool = True) -> None:
        if gradient is self.peers.local:
            self._loss = plain_step(self.optimizer, self.plain, self._closure)
            return
        used = [True] * len(self.trained) if is_mine else self.peers.used
        with with_gradient(self.trained, gradient, used):
            self._loss = plain_step(self.optimizer, self.plain, self._closure, is_scaled=is_mine)

    def everyone(self) -> list[OptimizerWorker]:
        """This worker's part in every optimizer that is distributed, in order."""
        return [w for w in self._listeners.all if isinstance(w, OptimizerWorker)]

    @property
    def has_rounds(self) -> bool:
        """Whether its strategy has agreed on rounds."""
        return self._rounds is not None

    def rest(self) -> None:
        """Wait until no worker steps any more, and be where the one is that has come furthest."""
        if not self.finished:
            arrange_anew(self, self._place, in_backward=False)  # where this worker made no step since
            self.come_to_rest()

    def come_to_rest(self) -> None:
        """The same, with the parameters that have been trained up to here."""
        if self.finished:
            return
        self._wait_for_all(self.peers.rest)
        stays = self.differs and (self.peers.has_vectors or self.strategy.replicas == "differ")
        if self._rounds is None and not (self.peers.some_ended or stays):
            self._level()

    def _wait_for_all(self, in_means: Callable[[Sequence[Agreement]], None]) -> None:
        """Until each worker rests or has ended, and what was under way is taken in."""
        self.strategy.drain(self)
        if self._rounds is not None:
            self._rounds.settle(ended=self.has_ended)
        else:
            self.neighbours.until_all(in_means, ended=self.has_ended)
        self.strategy.settle(self)

    def _level(self, *, always: bool = False) -> None:
        """Be where the one is that has made the most updates."""
        made = self.timer.rounds
        self.timer.rounds = level(self.trained, self.optimizer, self.wire, made, self._place, always=always)

    @property
    def running_rounds(self) -> Rounds | None:
        """Those of this worker, as long as it trains."""
        return None if self._rounds is None or self.finished else self._rounds.rounds

    def rested(self) -> None:
        """All optimizers of all workers rest: training may go on."""
        self.peers.rested()

    def agree_on_buffers(self) -> None:
        """Every worker's buffers become what the strategy says: rank 0's (as under DDP), or the mean."""
        if not self.finished:
            agree_on_buffers(list(self._model.buffers()), self.strategy.buffers, self.wire, self._place)

    def backward_ended(self) -> None:
        """The outermost backward pass of this thread has ended (see `train.backward`)."""
        ready = self.peers.ready
        if not ready.fired or ready.paused or not self.agrees_in_backward:
            return
        self.strategy.backward(self)
        self._agreed = True

    def run_step(self, closure: Callable[[], Any] | None) -> Any:
        """One `optimizer.step()`; returns what the plain step returned."""
        if self.finished:
            raise ConfigurationError("step() was called after optimizer.finish(), the last call of a training")
        self.saving.boundary(is_forward_done=True)
        self.edits.step_begins()
        self.step, self.came_with, of_closure = self.step + 1, None, None
        if closure is not None and (self._rounds is not None or self.differs):
            with torch.enable_grad():
                of_closure = closure()
        elif closure is not None:
            self._closure = agreed_closure(closure, self.peers.mean_of)
        if self.agrees_in_backward and not self._agreed and closure is None and has_gradient(self.trained):
            self._gradient_begins()  # these came without a backward
            self.peers.ready.touched = [p.grad is not None for p in self.trained]
            self.strategy.backward(self)
        self._loss = None
        bad, self.peers.bad = self.peers.bad, []
        arrange_anew(self, self._place, in_backward=False)
        self._leaves_out = leaves_out_own(self)
        if not self.safeguards.leaves_out(bad, self.timer.rounds + 1):
            self.strategy.step(self)
        if self._rounds is None and not self.differs:
            self.safeguards.digests.look(self.timer.rounds)
        self._agreed, self._closure = False, None
        loss, self._loss = self._loss if of_closure is None else of_closure, None
        self.edits.step_ended()
        self.step_weight.step_ended()
        self.timer.ended(is_scaled="found_inf" in self.optimizer.__dict__)
        self.saving.stepped()
        self.losses.look()
        admit(self, self._model, self._place)
        return loss

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only add to `.grad`; the first one outside agrees on the sum."""
        return self.peers.ready.pausing()

    def finish(self) -> None:
        """Wait until all workers have ended, and leave equal replicas, buffers as the strategy says."""
        if self.finished:
            return
        self.saving.boundary()
        arrange_anew(self, self._place, in_backward=False)
        self.has_ended = True
        self._wait_for_all(self.peers.keep_company)
        if self.strategy.replicas == "differ":
            x, weight = self.strategy.consensus(self)
            self.parameters = self.peers.mean(x, weight=weight).wait()
        self.strategy.finish(self)
        self.peers.close()
        self.neighbours.close()
        if self._rounds is not None:
            self._rounds.rounds.close()
        if self._rounds is None or self.differs:
            self._level(always=self.differs)
        self.agree_on_buffers()
        self.finished = True
        self.safeguards.finished(self.timer.rounds)
