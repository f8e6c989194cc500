"""The training of one optimizer around its strategy: backward, step, pauses, the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from quorate.checkpoint.participants import Trained, by_name
from quorate.checkpoint.saving import saving
from quorate.core.autocast import without_autocast
from quorate.core.errors import ConfigurationError
from quorate.core.neighbours import keep_round
from quorate.core.strategy import Strategy, buffers_at_pauses, sparse_gradients_of, steps_apart
from quorate.core.vectors import Flat
from quorate.data.context import DataContext
from quorate.hogwild.common_parameters import CommonParameters
from quorate.means.headers import header_length
from quorate.means.means import MeansOfAll
from quorate.means.table_changes import can_exchange_changes
from quorate.observe.backward import observe_backward
from quorate.observe.ends import Ends
from quorate.observe.pacing import Injected
from quorate.observe.step_observer import Phase, StepObserver
from quorate.observe.stopping import Stop
from quorate.replica import plain_step
from quorate.replica.replica import Replica
from quorate.rounds.of_worker import AnyRounds
from quorate.train import counted_steps
from quorate.train.combination import Combination
from quorate.train.compatibility import check
from quorate.train.in_common import common_of
from quorate.train.joining import OpenTraining, admit, admit_openly, begin, close_admission, connect, enter
from quorate.train.kept_batch import KeptInRounds
from quorate.train.leaving import leaving_of
from quorate.train.loss_counts import LossCounts
from quorate.train.methods_beside import check_arguments, check_step_in_evaluation, check_switched
from quorate.train.part_tuning import begin_part_tuning
from quorate.train.pieces import check_in_shards
from quorate.train.relayout import Relayout, without_new_gradients
from quorate.train.several_rounds import Beside, run_beside_each_other
from quorate.train.step_watches import accumulating, evaluating, leaves_out_own, meet_pieces, note_end, watches_of
from quorate.train.survivors import agree_on_buffers_of, level, tolerate_deaths
from quorate.train.watched import Watched
from quorate.train.worker import StrategyWorker
from quorate.wire.current import Place
from quorate.wire.survivors import DeathTolerance


class Loop(StepObserver):
    """Calls the strategy of one optimizer of one process (or virtual worker); observers observe it as the training."""

    phase = Phase.TRAIN

    def __init__(
        self,
        optimizer: Optimizer,
        plain: type[Optimizer],
        model: Module,
        strategy: Strategy,
        place: Place,
        name: str,
        watched: Watched,
        may_count: Callable[[], None] = lambda: None,
    ) -> None:
        """`may_count` raises `ConfigurationError` where steps cannot have weights."""
        self._place, self._observers, self.optimizer = place, observe_backward(place), name
        self._pacing, self._may_count = place.context(Injected).pacing, may_count
        wire = place.wire if watched.coordinates is None else watched.coordinates.across
        header = partial(header_length, max_size=wire.max_size)
        is_coded = None if watched.reduction.codec is None else watched.reduction.is_coded
        self.strategy, exchanged = strategy, sparse_gradients_of(strategy)
        has_own = getattr(strategy, "momentum", "") != "average" and can_exchange_changes(optimizer, plain)
        how: dict[str, Any] = {"exchanges_rows": exchanged in ("rows", "both"), "fusion": watched.reduction.fusion}
        how["exchanges_changes"] = exchanged == "both" or (exchanged == "changes" and has_own)
        of_model = optimizer, plain, model, header, is_coded, watched.host, watched.reduction.narrow
        self.replica = Replica(*of_model, **how)
        self.worker = StrategyWorker(name, self.replica, strategy, place, watched)
        self._trained = place.context(Trained)
        self.common: CommonParameters | None = common_of(self.worker, watched.strategy, loops_of(place))
        """The parameters in memory that all workers share, under strategies with such memory."""
        tolerance = self._tolerance = place.context(DeathTolerance)
        self.relayout = Relayout(self.worker, tolerance, self._synchronize, self.common)
        self.leaving = leaving_of(place, lambda: loops_of(place))
        self.leaving.begins()
        self._has_agreed = False
        """Whether the strategy has agreed in the newest backward pass."""
        self._has_stepped_inside = False
        """Whether a hook of the script has called `step` inside the current backward pass."""
        self.counts: LossCounts | None = None
        """The counts of losses, once the script has given one."""
        self.is_paused = False
        """Whether it has paused, and training has not gone on: it takes part in no exchange."""
        self.beside: Beside | None = None
        """The rounds of this worker's other optimizers, where this one has rounds as well."""
        self.parameters_before: Flat | None = None
        """The replica before the pause, while all workers are paused at the mean."""
        begin(self.worker)
        self.worker.buffers.seen(reads=True)
        if self.common is not None and not self.worker.wire.is_newcomer:
            self.common.take_in()
        if getattr(strategy, "momentum", None) == "average":
            self.replica.check_moments()
        self.worker.state = strategy.start(self.worker)
        connect(self.worker)
        tolerate_deaths(place.wire, tolerance, name, strategy, watched.coordinates)
        enter(self.worker, self._open, place.context(Trained), [loop.worker for loop in loops_of(place)])
        self.worker.begins()
        self._may_differ = self.worker.has_rounds or self.worker.differs
        """Whether replicas may differ between two steps, or rounds be under way."""
        self._looks_at_own = self.worker.finite.looks and steps_apart(strategy)
        """Whether no exchange says which gradients are not finite, so that this worker looks at its own."""
        self._observers.add(self, *watches_of(self.worker, place))
        place.context(DataContext).boundaries.append(self._admit)
        if isinstance(self.worker.kept, KeptInRounds):
            self.worker.kept.takes_part_by(self.run_step)
        place.context(_Loops).all.append(self)
        run_beside_each_other(loops_of(place))
        begin_part_tuning(
            self.worker, self._observers, place.context(Stop), place.context(DataContext), watched.reduction
        )
        self.worker.timer.set_out_again()

    # -- observe.step_observer.StepObserver

    def backward_begins(self) -> None:
        """Begin the outermost backward pass; parameters that were added, froze or thawed are laid out here."""
        self._has_stepped_inside = False
        self._admit()
        if not self.replica.is_laid_out:
            self.relayout.look(in_backward=True)
        if self.worker.kept is not None:
            self.worker.kept.pass_begins()
        self._gradient_begins()
        if self.counts is not None:
            counted_steps.begin_counted(self.counts, self.worker, self._observers)
        if self.worker.neighbours.answers is not None:
            self.worker.neighbours.resume()

    def _gradient_begins(self) -> None:
        worker, counts = self.worker, self.counts or self.worker.kept
        worker.weight = worker.next_weight
        if not worker.has_rounds:  # contributions to rounds are made of `.grad`
            worker.means.gradient_begins(worker.weight, None if counts is None else counts.unit)

    def forward_ended(self, losses: Any) -> None:
        """Note the losses, and hold the worker back if it is to be late."""
        self.worker.timer.saw(losses)
        if self._pacing is not None:
            self._pacing.hold(self.worker.timer)

    def backward_ended(self) -> None:
        """Agree on the gradient at the end of the outermost backward pass (see `observe.backward`)."""
        if self.worker.kept is not None and not self.worker.kept.pass_ended():
            return
        ready, has_stepped, self._has_stepped_inside = self.worker.means.ready, self._has_stepped_inside, False
        if self.counts is not None:
            counted_steps.end_counted(self.counts, self.worker)
        elif self._observers.loss_factor != 1.0 and ready.fired:
            raise ConfigurationError(counted_steps.NOT_COUNTED)
        if not ready.fired or ready.paused or not self.worker.agrees_in_backward:
            return
        if has_stepped:  # steps inside have agreed; the next step agrees on the remaining gradients
            ready.put_off()
            return
        if (kept := self.worker.kept) is None:
            self._agree_on_gradient()
        else:
            kept.agree(self._agree_on_gradient)
        self._has_agreed = kept is None or kept.is_complete

    def _agree_on_gradient(self) -> None:
        without_autocast(self.strategy.backward, self.worker)
        if self.counts is not None and counted_steps.agrees_on_means(self.worker):
            self.counts.agreed()
        if self.worker.changes.samples_step:
            self.worker.changes.gradient_agreed()

    def accumulate(self) -> AbstractContextManager[None]:
        """Backward passes inside only add to `.grad`; the first one outside agrees on the sum."""
        return accumulating(self.worker)

    def count(self, count: object, full: object) -> None:
        """Take the count of the next backward pass: see `DistributedOptimizer.weight`."""
        if self.counts is None:
            self._may_count()
            self.counts = counted_steps.counting(self.worker)
        self.counts.note(count, full)

    def evaluating(self) -> AbstractContextManager[None]:
        """Exclude backward passes inside from training: see `step_watches.evaluating`."""
        return evaluating(self.worker, lambda: self._has_agreed)

    # -- steps

    def run_step(
        self, closure: Callable[[], Any] | None, arguments: plain_step.StepArguments = plain_step.NO_ARGUMENTS
    ) -> Any:
        """Make one `optimizer.step()`, and return the return value of the plain step."""
        worker = self.worker
        if worker.finished:
            raise ConfigurationError("step() was called after optimizer.finish(), which ends a training")
        if worker.kept is not None and not worker.kept.steps(closure):
            return None
        if worker.is_served and self._place.context(DataContext).is_evaluating:
            check_step_in_evaluation(worker)
        if torch._C._current_graph_task_id() != -1:
            self._has_stepped_inside = worker.means.ready.holds_parts = True
        if arguments is not plain_step.NO_ARGUMENTS:
            check_arguments(worker)
        if self.replica.switch is not None:
            check_switched(worker)
        if self.replica.is_scaled and self.strategy.compresses == "momenta":
            check(Combination(label=worker.label, strategy=self.strategy, has_grad_scaler=True))
        worker.arguments = arguments
        if self._trained.missing:
            self._trained.check_entered()
        self._observers.step_begins(worker.name, worker.step + 1)
        worker.step, worker.begun, self.parameters_before, of_closure = worker.step + 1, worker.begun + 1, None, None
        exchanges_later = not worker.agrees_in_backward or worker.has_rounds or self.strategy.compresses == "momenta"
        if closure is not None and (exchanges_later or worker.differs):
            with torch.enable_grad():
                of_closure = closure()
        elif closure is not None:
            weight = None if self.counts is None else lambda: worker.weight
            agreed = plain_step.agreed_closure(closure, lambda: worker.means, self.replica.plain, weight)
            worker.arguments = replace(arguments, closure=agreed)
        if worker.agrees_in_backward and not self._has_agreed and closure is None:
            self._admit()
            self._agree_without_backward()
        if worker.changes.samples_step and worker.arguments.closure is None:  # else the gradient comes inside
            worker.changes.step_begins()
        worker.loss, headers = None, worker.means.headers
        bad, headers.bad, is_late, headers.is_bad_late = headers.bad, [], headers.is_bad_late, False
        if self._may_differ and (worker.step >= self.relayout.due or not self.replica.is_laid_out):
            self.relayout.look(in_backward=False)
        if self.counts is not None:
            counted_steps.settle_counted(self.counts, worker)
        worker.leaves_out = self._looks_at_own and leaves_out_own(worker)
        if worker.means.ready.has_graph:
            worker.means.ready.drop_graphs()
        number = worker.updates + (0 if is_late else 1)
        if not (bad and worker.finite.leaves_out(bad, number, is_scaled=self.replica.is_scaled)):
            with_hooks(worker)
        self._has_agreed, worker.arguments = False, plain_step.NO_ARGUMENTS
        if self.counts is not None:
            self.counts.restart()
        loss, worker.loss = worker.loss if of_closure is None else of_closure, None
        self._observers.step_ended(worker.name, worker.step)
        if self.common is not None:
            self.common.look()
        if (self.common is not None or worker.is_served) and (training := self._open) is not None:
            admit_openly(worker, training)
        return loss

    def _admit(self) -> None:
        """Admit the newcomers of the newest sum once schedulers have stepped: with the next batch or backward pass."""
        if self.worker.means.headers.admission.entering:
            admit(self.worker)

    def step_ended(self) -> None:
        self.worker.timer.ended(is_scaled="found_inf" in self.replica.optimizer.__dict__)

    def _agree_without_backward(self) -> None:
        """Agree on a gradient written by hand. Without one, take part with weight 0 in a step on a mean of all."""
        worker, trained = self.worker, self.replica.all_trained
        has_any = plain_step.has_gradient(trained)
        if not has_any and (worker.differs or not trained):
            return
        if self.counts is not None:
            self.counts.check_given()
        self._gradient_begins()
        if not has_any:
            worker.means.gradient_begins(0.0)
        worker.means.ready.touched = [p.grad is not None for p in self.replica.trained]
        worker.means.ready.touched_tables = [p.grad is not None for p in self.replica.sparse_tables]
        self._agree_on_gradient()

    @property
    def _open(self) -> OpenTraining | None:
        """The state for newcomers, where no step brings all workers together."""
        return self.worker.servers if self.worker.is_served else self.common

    def group_added(self, group: dict[str, Any]) -> None:
        """Lay out a new parameter group."""
        if self.worker.coordinates is not None:
            check_in_shards(self.replica.model, self.worker.coordinates, group["params"])
        self.relayout.group_added(group["params"])

    # -- pauses

    def pause(self) -> None:
        """Wait until no worker steps any more, and level replicas with the most advanced worker."""
        if not self.worker.finished:
            with self.replica.in_training():
                meet_pieces(self.worker, self._trained, "a pause of training")
                self._admit()
                self.relayout.look(in_backward=False, is_pause=True)  # where this worker has made no step since
                self._quiesce()
                if self.common is not None:
                    self.common.detach()

    def resume(self) -> None:
        """Continue, as all optimizers of all workers are paused."""
        if self.common is not None and not self.worker.finished:
            self.common.reattach()
        self.worker.means.resume()
        if self.worker.is_served and not self.worker.finished:
            self.worker.servers.set_out()
        self.is_paused = False

    def _quiesce(self) -> None:
        worker = self.worker
        if worker.finished:
            return
        self._wait_for_all(worker.means.shadow_until_paused)
        stays = worker.differs and (worker.means.headers.has_vectors or self.strategy.replicas in ("differ", "shared"))
        if not (worker.has_rounds or worker.means.some_ended or worker.is_served or stays):
            self._level()
        worker.edits.pause_ended()

    def _wait_for_all(self, in_means: Callable[[Sequence[MeansOfAll]], None]) -> None:
        """Wait until each worker is paused or has ended, and all messages under way are applied."""
        worker = self.worker
        for loop in loops_of(self._place):
            if not loop.worker.finished:
                loop.worker.edits.pause_begins()
        self.strategy.drain(worker)
        if (training := self._open) is not None:
            close_admission(worker, training)
        if worker.has_rounds:
            with nullcontext() if self.beside is None else self.beside.pausing():
                worker.rounds.pause(ended=worker.has_ended)
            worker.edits.average()
            self.relayout.all_have_paused()
            worker.schedules.has_paused(ended=worker.has_ended)
        else:
            everyone = loops_of(self._place)
            for loop in everyone:
                if worker.has_ended or not loop.is_paused:
                    for single in loop.worker.with_single_ones:
                        single.go_away(ended=worker.has_ended)
            in_means([loop.worker.means for loop in everyone if not loop.worker.has_rounds])
            self._report_late()
            self.relayout.all_have_paused()
            for single in worker.with_single_ones:
                single.quiesce()
        self.is_paused = True
        self.strategy.pause(worker)
        if not worker.has_rounds:
            worker.edits.average()
        keep_round(worker.state, worker.neighbours)

    def _report_late(self) -> None:
        """Report the gradient of the newest step, if a GPU has shown only now that it was not finite."""
        worker, headers = self.worker, self.worker.means.headers
        bad, headers.bad, headers.is_bad_late = headers.bad, [], False
        if bad:
            worker.finite.leaves_out(bad, worker.updates, is_scaled=self.replica.is_scaled)

    def _synchronize(self) -> None:
        """Pause all workers, make every replica the mean, and continue."""
        everyone = loops_of(self._place)
        with without_new_gradients([loop.replica for loop in everyone]):
            for loop in everyone:
                loop._quiesce()
        for loop in everyone:
            loop.resume()
        if self.strategy.replicas == "differ":
            with self.worker.timer.elsewhere():
                self.worker.parameters = self.mean_of_all()

    def mean_of_all(self) -> Flat:
        """Return the weighted mean of the parameters of each worker, as the strategy defines them."""
        x, weight = self.strategy.consensus(self.worker)
        return self.worker.means.of(x, weight=weight).wait()

    def _level(self, *, always: bool = False) -> None:
        worker, replica = self.worker, self.replica
        updates, own = worker.updates, plain_step.options_of(replica.optimizer)
        group = self._tolerance.surviving_replicas
        worker.updates = level(replica.all_trained, replica.optimizer, worker.wire, updates, group, always=always)
        if worker.updates > updates and not worker.has_ended:
            worker.schedules.catch_up(replica.optimizer, worker.updates - updates, own)

    def agree_on_buffers(self) -> None:
        """Make the buffers of all workers equal as the strategy says: rank 0's (as under DDP), or the mean."""
        if not self.worker.finished:
            row = None if self.worker.coordinates is None else self.worker.coordinates.abreast
            of_model = self.worker.buffers, self.worker.wire, self._tolerance.surviving_replicas
            agree_on_buffers_of(*of_model, kind=buffers_at_pauses(self.strategy), row=row)
            self.worker.buffers.seen(reads=True)

    # -- the end

    def finish(self) -> None:
        """Wait until all workers have ended, and leave equal replicas, with buffers as the strategy says."""
        if not self.worker.finished:
            with self.replica.in_training():
                self._end()

    def _end(self) -> None:
        worker = self.worker
        meet_pieces(worker, self._trained, "the end of training")
        self._admit()
        saving(self._place).boundary()
        note_end(worker, self._place)
        self.relayout.look(in_backward=False, is_pause=True)
        worker.has_ended = True
        if self.common is not None:
            self.common.ends()
        self._wait_for_all(worker.means.shadow_until_ended)
        if self.strategy.replicas == "differ":
            worker.parameters = self.mean_of_all()
        if self.common is not None:
            self.common.leave()
        self.strategy.finish(worker)
        for part in (worker.means, *worker.with_single_ones):
            part.close()
        if worker.has_rounds:
            worker.rounds.rounds.close()
        is_whole = worker.is_served and self.strategy.replicas == "meet"  # servers have sent the state of the optimizer
        if not is_whole and (worker.differs or not worker.has_rounds):
            self._level(always=worker.differs)
        self.agree_on_buffers()
        worker.finished, self.counts = True, None
        self.leaving.finished()
        worker.digests.look_at_end(worker.updates)
        if worker.wire.size > 1:
            self._place.context(Ends).look(self._place)

    @property
    def running_rounds(self) -> AnyRounds | None:
        return self.worker.rounds.rounds if self.worker.has_rounds and not self.worker.finished else None

    # -- train.leaving.Training

    @property
    def step(self) -> int:
        return self.worker.step

    @property
    def is_stepping(self) -> bool:
        closure, kept = self.worker.arguments.closure, self.worker.kept
        return closure is not None or (kept is not None and kept.is_inside)

    @property
    def is_finished(self) -> bool:
        return self.worker.finished

    @property
    def meets_at_pauses(self) -> bool:
        return self.worker.meets_at_pauses


def with_hooks(worker: StrategyWorker) -> None:
    """Make a step of the strategy; where servers make the updates, hooks of the optimizer see it instead."""
    try:
        _make_step(worker)
    except RuntimeError:
        worker.replica.check_shapes()
        raise


def _make_step(worker: StrategyWorker) -> None:
    if isinstance(worker.kept, KeptInRounds):
        worker.kept.agree(lambda: without_autocast(worker.strategy.step, worker))
        if not worker.kept.is_step:
            worker.step, worker.begun = worker.step - 1, worker.begun - 1
    elif worker.is_served:
        plain_step.seen_as_a_step(worker.replica.optimizer, lambda: without_autocast(worker.strategy.step, worker))
    else:
        without_autocast(worker.strategy.step, worker)


@dataclass
class _Loops:
    all: list[Loop] = field(default_factory=list)


def loops_of(place: Place) -> list[Loop]:
    """Return a worker's loops, one for each distributed optimizer, in the same order on all workers."""
    loops = place.context(_Loops).all
    return loops if len(loops) < 2 else sorted(loops, key=lambda loop: by_name(loop.worker.name))
