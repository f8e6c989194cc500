"""One replica as its strategy sees it, and what happens around the strategy: backward, step, finish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from quorate.buckets.flat import pack, unpack
from quorate.core.errors import ConfigurationError
from quorate.core.strategy import Strategy
from quorate.core.vectors import Flat
from quorate.data.sharding import RUN_SEED
from quorate.rounds.terms import Agreed
from quorate.train.agreement import Agreement
from quorate.train.backward import listeners
from quorate.train.pacing import PACING, Pacing
from quorate.train.plain_step import plain_step
from quorate.train.replicas import average_tensors, compare_layouts, copy_optimizer, copy_tensors
from quorate.train.rounds import WorkerRounds, put_options
from quorate.train.step_times import StepTimer
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
    ) -> None:
        meter = Meter()
        wire = Metered(place.wire.channel(f"optimizer/{name}"), meter)
        self.timer = StepTimer(place, name, meter)
        self._pacing: Pacing | None = place.kept.get(PACING)
        self.rank, self.size, self.step, self.weight = wire.rank, wire.size, 0, 1.0
        self.wire, self.clock, self.strategy = wire, wire.clock, strategy
        self.optimizer, self._plain, self._model, self._listeners = optimizer, plain, model, listeners(place)
        self._place = place
        self._rounds: WorkerRounds | None = None
        self._agrees_in_backward = type(strategy).backward is not Strategy.backward
        self._agreed = self.finished = False
        self._closure: Callable[[], Any] | None = None
        self._loss: Any = None
        self._arrange()
        known = {id(p) for p in self.every}
        rest = [p for p in model.parameters() if id(p) not in known]
        copy_tensors([*self.every, *rest, *model.buffers()], wire)
        copy_optimizer(optimizer, wire)
        self.state = strategy.start(self)
        self._listeners.all.append(self)
        self.timer.set_out_again()

    def _arrange(self) -> None:
        """Lay out the parameters that are trained now, in the same order on every worker."""
        names = {id(p): name for name, p in self._model.named_parameters()}
        order = {key: place for place, key in enumerate(names)}
        self.every = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._is_trained = [p.requires_grad for p in self.every]
        chosen = sorted(
            (p for p in self.every if p.requires_grad), key=lambda p: order.get(id(p), len(order))
        )  # the model's order; stable, so that parameters the model does not know keep the optimizer's
        named = [(names.get(id(p), f"parameter {place}"), p) for place, p in enumerate(chosen)]
        self.trained = chosen
        self.peers = Agreement(named, self.wire, self._listeners.spending, self.timer, overlap=self._agrees_in_backward)
        compare_layouts(self.peers.layout, self.wire)

    def grown(self, group: dict[str, Any]) -> None:
        """A parameter group was added: every worker gets rank 0's numbers, before anything is computed with them."""
        copy_tensors(group["params"], self.wire)

    def backward_begins(self) -> None:
        """The outermost backward pass begins: parameters that came, froze or thawed meanwhile are seen here."""
        now = [p for group in self.optimizer.param_groups for p in group["params"]]
        if [p.requires_grad for p in now] != self._is_trained:
            self.peers.close()
            self._arrange()
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

    def agree_on_rounds(self, *, clip_norm: float | None = None, **settings: Any) -> None:
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise ConfigurationError("LBFGS asks for the loss several times a step, and rounds for one gradient a step")
        seed = self._place.kept.get(RUN_SEED, 0)
        nbytes = sum(part.numel * part.dtype.itemsize for part in self.peers.layout.parts)
        agreed = Agreed(size=self.size, seed=seed, vector_bytes=nbytes, **settings)
        self._rounds = WorkerRounds(self, agreed, clip_norm)

    def update(self, gradient: Flat, *, options: Any = None) -> None:
        self.timer.rounds += 1
        with self.timer.spending("update"):
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
            self._loss = plain_step(self.optimizer, self._plain, self._closure)
            return
        kept = [p.grad for p in self.trained]
        try:
            for p, numbers, used in zip(self.trained, gradient.segments(), self._used(is_mine), strict=True):
                p.grad = numbers.to(p.dtype) if used else None
            self._loss = plain_step(self.optimizer, self._plain, self._closure, is_scaled=is_mine)
        finally:
            for p, grad in zip(self.trained, kept, strict=True):
                p.grad = grad

    def _used(self, is_mine: bool) -> list[bool]:
        return [True] * len(self.trained) if is_mine else self.peers.used

    def keep_company(self) -> None:
        self.peers.keep_company(self._everyone())

    def _everyone(self) -> list[Agreement]:
        return [w.peers for w in self._listeners.all if isinstance(w, OptimizerWorker)]

    def rest(self) -> None:
        """Wait until no worker steps any more, and be where the one is that has come furthest."""
        if self.finished:
            return
        if self._rounds is not None:
            self._rounds.settle(ended=False)
            return
        self.peers.rest(self._everyone())
        if not self.peers.some_ended:
            self._level()

    def goes_away(self) -> None:
        """This worker pauses, and the others go on without it. Raises where they would have to wait."""
        if self._rounds is None:
            raise ConfigurationError(
                "under a strategy that waits for all workers none can evaluate alone: call world.evaluate() on all"
            )
        self._rounds.goes_away()

    def is_back(self) -> None:
        """It goes on, from where the others are."""
        if self._rounds is not None:
            self._rounds.is_back()

    def rested(self) -> None:
        """All optimizers of all workers rest: training may go on."""
        self.peers.rested()

    def agree_on_buffers(self) -> None:
        """Every worker's buffers become what the strategy says: rank 0's (as under DDP), or the mean."""
        kind = self.strategy.which_buffers()
        if not self.finished and kind != "none":
            buffers = list(self._model.buffers())
            if kind == "mean":
                average_tensors([x for x in buffers if x.is_floating_point()], self.wire)
                buffers = [x for x in buffers if not x.is_floating_point()]
            copy_tensors(buffers, self.wire)

    def _level(self) -> None:
        """Copy parameters and optimizer state from the worker that has made the most updates, where they differ."""
        rounds = [int(x) for x in self.wire.all_gather(torch.tensor([self.timer.rounds])).wait()]
        if len(set(rounds)) > 1:
            ahead = rounds.index(max(rounds))
            copy_tensors(self.trained, self.wire, ahead)
            copy_optimizer(self.optimizer, self.wire, ahead)
            self.timer.rounds = max(rounds)

    def backward_ended(self) -> None:
        """The outermost backward pass of this thread has ended (see `train.backward`)."""
        ready = self.peers.ready
        if not ready.fired or ready.paused or not self._agrees_in_backward:
            return
        self.strategy.backward(self)
        self._agreed = True

    def run_step(self, closure: Callable[[], Any] | None) -> Any:
        """One `optimizer.step()`; returns what the plain step returned."""
        if self.finished:
            raise ConfigurationError(
                "step() was called after optimizer.finish(); finish() is the last call of a training"
            )
        self.step += 1
        of_closure = None
        if closure is not None and self._rounds is not None:
            with torch.enable_grad():
                of_closure = closure()
        elif closure is not None:
            self._closure = self._agreed_closure(closure)
        if self._agrees_in_backward and not self._agreed and closure is None and self._has_gradient():
            self.peers.ready.begin()  # these gradients came without a backward
            self.peers.ready.touched = [p.grad is not None for p in self.trained]
            self.strategy.backward(self)
        self._loss = None
        self.strategy.step(self)
        self._agreed = False
        self._closure = None
        loss, self._loss = self._loss if of_closure is None else of_closure, None
        self.timer.ended(is_scaled="found_inf" in self.optimizer.__dict__)
        return loss

    def _has_gradient(self) -> bool:
        """Whether there is a gradient, be it zeros: the numbers differ between workers, and must not decide."""
        return any(p.grad is not None for p in self.trained)

    def _agreed_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """`closure` with its loss averaged over all workers, so that all take the same decisions from it."""

        def agreed() -> Any:
            with torch.enable_grad():
                loss = closure()
            value = torch.as_tensor(loss).detach().to(torch.float64).reshape(1) / self.size
            mean = self.wire.all_reduce(value.clone()).wait()
            return mean[0].to(loss.dtype) if isinstance(loss, Tensor) else float(mean)

        return agreed

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Backward passes inside only add to `.grad`; the first one outside agrees on the sum."""
        ready = self.peers.ready
        ready.paused, before = True, ready.paused
        try:
            yield
        finally:
            ready.paused = before

    def finish(self) -> None:
        """Wait until all workers have ended, and leave equal replicas, buffers as the strategy says."""
        if self.finished:
            return
        self.strategy.finish(self)
        self.peers.close()
        if self._rounds is not None:
            self._rounds.rounds.close()
        if self._rounds is None:
            self._level()
        self.agree_on_buffers()
        self.finished = True
