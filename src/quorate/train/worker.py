"""One worker of one optimizer as its strategy sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal

from quorate.checkpoint.participants import Participant, Trained
from quorate.checkpoint.saving import saving
from quorate.core.clients import ClientRound, Turn
from quorate.core.errors import ConfigurationError
from quorate.core.means import Mean
from quorate.core.moments import AgreedMomentum
from quorate.core.servers import OwnServers, ServerTerms
from quorate.core.strategy import Strategy, copies_buffers, is_gossip, steps_apart
from quorate.core.vectors import Flat, Layout, full_segments
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.data.growth import Growth
from quorate.gossip.neighbours import AmongNeighbours, NeighbourExchange
from quorate.means.fault_tolerant_sum import FaultTolerantSum, SumsOfWorker
from quorate.means.forward_buffers import BufferCopies, BuffersOfModels
from quorate.means.headers import Announced
from quorate.means.means import MeansOfAll
from quorate.means.table_changes import TableChanges
from quorate.means.watches import Shadow, Watches
from quorate.observe.backward import observe_backward
from quorate.observe.choices import ChoiceWatch
from quorate.observe.digests import Digests
from quorate.observe.exclusions import ExclusionWatch
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch
from quorate.observe.local_changes import LocalChanges
from quorate.observe.losses import Losses
from quorate.observe.seen_losses import OuterLosses
from quorate.observe.step_observer import Observers
from quorate.observe.step_times import StepTimer, note_distance, note_outer_step
from quorate.observe.stopping import Stop
from quorate.quorums.rounds import InRounds, WorkerRounds
from quorate.quorums.worker_group import WorkerGroup
from quorate.replica.masks import masks_of
from quorate.replica.outer_optimizer import updater
from quorate.replica.plain_step import NO_ARGUMENTS, second_order
from quorate.replica.replica import Replica
from quorate.replica.worker_momentum import MomentumChoice
from quorate.servers.servers import OnServers, ServedParameters
from quorate.strategies.parts.gossip import PushSum
from quorate.strategies.parts.outer_steps import forget_means
from quorate.train.begin_rounds import Onlookers, begin_rounds
from quorate.train.edits_at_pauses import EditsAtPauses
from quorate.train.kept_batch import KeptBatch, KeptInRounds, MicroBatches
from quorate.train.loss_counts import LossCounts
from quorate.train.reduced import edge_coding_of, reducer_of, served_coding_of
from quorate.train.replica_copy import ReplicaCopy
from quorate.train.same_call import call_of, tensors_of
from quorate.train.schedules import Schedules, ShrunkRate
from quorate.train.step_weight import StepWeight
from quorate.train.survivors import synchronize
from quorate.train.watched import Watched
from quorate.wire.current import Place
from quorate.wire.metered import Meter, Metered
from quorate.wire.survivors import DeathTolerance


class StrategyWorker:
    """The implementation of `core.strategy.Worker` for one optimizer, with parts for `train.loop`."""

    means: MeansOfAll

    def __init__(self, name: str, replica: Replica, strategy: Strategy, place: Place, watched: Watched) -> None:
        coordinates = self.coordinates = watched.coordinates
        own, meter = (place.wire, Meter()) if coordinates is None else (coordinates.across, coordinates.traffic.meter)
        wire = Metered(own.channel(f"optimizer/{name}"), meter)
        self._row = None if coordinates is None else coordinates.within.channel(f"optimizer/{name}")
        self.name, self.wire, self.replica, self.strategy, self._place = name, wire, replica, strategy, place
        self.label = watched.strategy
        self.timer = StepTimer(place, name, meter, None if coordinates is None else coordinates.traffic)
        self.rank, self.size, self.step, self.weight = wire.rank, wire.size, 0, 1.0
        self.seed, self.updater, self._reduction = place.context(DataContext).seed, updater, watched.reduction
        self.tolerates_death = strategy.on_death == "continue"
        self.agrees_in_backward, self.differs = strategy.agrees_in_backward, strategy.replicas != "equal"
        self.state: Any = None
        self.has_ended = self.finished = self.leaves_out = False
        self.arguments = NO_ARGUMENTS  # of the current step
        self.loss: Any = None  # that its plain step has returned
        division = place.context(DataContext).division
        kept: type[MicroBatches] = KeptInRounds if strategy.meets == "rounds" else KeptBatch
        self.kept: MicroBatches | None = None
        if division is not None:
            self.kept = kept(division, replica, lambda: self.means, lambda: self.rounds.progress)
        self.step_weight: StepWeight | LossCounts | MicroBatches = self.kept or StepWeight(
            place.context(Consumed), name, watched.weight
        )
        self.begun = 0
        """The number of steps that were begun, also before a checkpoint was loaded."""
        self.schedules = Schedules(
            name,
            replica.options,
            lambda: self.progress,
            lambda: self.begun,
            enters=wire.is_newcomer,
            waits=lambda: self.kept is not None and self.kept.is_inside,
        )
        self.finite = Finite(wire, watched.strategy, watched.on_nonfinite, watched.replicas)
        self.digests = Digests(
            wire, watched.strategy, watched.compare_every, lambda: (replica.all_names, replica.all_trained)
        )
        self.losses = Losses(wire if coordinates is None else place.wire, self.timer, lambda: self.version)
        is_exact = coordinates is None and watched.reduction.forms_means
        self.noise = NoiseWatch(self.timer, self.losses, self.size, is_on=is_exact, asked=place.context(Growth))
        is_scaled = getattr(strategy, "shrunk_rate", "kept") == "scaled"
        self._shrunk = ShrunkRate(replica.optimizer, replica.plain, wire) if is_scaled else None
        self.changes = LocalChanges(
            replica,
            wire,
            watched.strategy,
            timer=self.timer,
            clock=lambda: f"{self.step} {self.progress}",
            is_on=self.digests.compares and wire.max_size > 1 and strategy.client_terms is None,
            differ=self.differs,
            tells=steps_apart(strategy),
            whole_state=coordinates is None and watched.host is None,
        )
        self.has_rounds = self.is_served = False
        """Whether its strategy has agreed on rounds; whether its parameters are on servers."""
        self._rounds: WorkerRounds | None = None
        self._servers: ServedParameters | None = None
        self._group: WorkerGroup | None = None
        self.buffers, self.edits = place.context(BuffersOfModels).of(replica.model), EditsAtPauses(self)
        self._table_changes: TableChanges | None = None
        self.neighbours, self.means = self._new_neighbours(), self._new_means()
        self.call = call_of(replica, strategy, watched.choices)
        self.copies = ReplicaCopy(self, self.call, place)

    def _new_neighbours(self) -> NeighbourExchange:
        worker = AmongNeighbours(
            members=lambda: self.means.headers.admission.members.everyone,
            mass=lambda: self.strategy.consensus(self)[1],
            weighs=lambda: isinstance(self.state, PushSum),
            drain=partial(self.strategy.drain, self),
        )
        own = self.wire, self.timer, self.replica, self._place.context(DeathTolerance), self.losses, worker
        codec = edge_coding_of(self._reduction, self.strategy, self.seed)
        return NeighbourExchange(*own, is_gossip=is_gossip(self.strategy), codec=codec)

    def _new_means(self, before: MeansOfAll | None = None) -> MeansOfAll:
        copies = None
        if copies_buffers(self.strategy) and self.coordinates is None:
            copies = BufferCopies(
                self.buffers,
                self.wire,
                living=lambda: self.means.headers.admission.living,
                survivors=lambda: self.means.survivors,
            )
        place = self._place
        watches = Watches(
            announced=Announced(
                place.context(Stop), saving(place), self, self.finite, self.noise, self.changes, copies
            ),
            spending=observe_backward(self._place).spending,
            beside=self._place.context(SumsOfWorker).all if self.tolerates_death else None,
            exclusions=ExclusionWatch(self.timer, self.losses),
            away_changed=self._away_changed,
            choices=ChoiceWatch(self.timer, self.losses).codecs,
            within=self._row,
        )
        self._table_changes = None
        if self.replica.exchanges_changes and self.replica.sparse_tables:
            self._table_changes = TableChanges(
                self.replica,
                self.wire,
                lambda: self.means.survivors,
                is_known=before is None,
                steps_alone=lambda: self.means.ready.is_alone or not self.agrees_in_backward,
            )
        settles = {} if self._table_changes is None else {"settle": self._table_changes.settle}
        shadow = Shadow(
            contribution=self.edits.contribution,
            apply=self._apply,
            synchronized=lambda: synchronize(self.means, self._place.context(DeathTolerance).survivors),
            **settles,
        )
        reducer = reducer_of(self._reduction, self.strategy, self.replica.layout, self.wire, self.seed)
        of = self.replica, self.wire, self.timer, watches, shadow, reducer
        means = MeansOfAll(*of, overlaps=self.agrees_in_backward and self.strategy.meets == "all", before=before)
        if self.kept is not None:
            means.headers.admission.most = self.size
        if self.strategy.meets == "servers" or self.strategy.replicas == "shared":
            means.headers.admission.is_open = False  # the board admits newcomers: see `train.joining`
        return means

    def begins(self) -> None:
        """Note that all workers have the same parameters, before the first step."""
        self.edits.note()
        if self._table_changes is not None:
            self._table_changes.begin()

    def _away_changed(self, more: bool) -> None:
        """Keep what shows whether workers that pause steps behind have edited equal replicas."""
        if not more:
            self.digests.forget_left()
        elif self.edits.is_synchronous:
            self.digests.leave(self.updates)

    def _apply(self, result: Mean) -> None:
        self.strategy.apply(self, result)
        self.edits.applied()

    def resumed(self, *, is_edited: bool) -> None:
        saved = self.parameters if is_edited else None
        if self.reducer_state is not None:
            forget_means(self.state)
        self.strategy.restored(self, None)
        if saved is not None:
            self.parameters = saved
        self.edits.resumed(is_edited=is_edited)

    @property
    def updates_at_pause(self) -> int:
        return self.edits.updates

    @property
    def is_edited(self) -> bool:
        return self.edits.is_pending

    def as_edited(self) -> AbstractContextManager[None]:
        return self.edits.shown()

    def lay_out(self) -> None:
        """Continue with the parameters that are trained now; no message is under way."""
        self.means.close()
        self.replica.lay_out()
        self.means = self._new_means(self.means)
        if self._rounds is not None:
            self._rounds.lay_out(self.replica.layout)
        if self._servers is not None:
            self._servers.lay_out()

    def refresh_call(self) -> None:
        """Let newcomers be compared with the parameters of now, in place of those when this worker began."""
        self.call = self.copies.call = dataclasses.replace(self.call, tensors=tensors_of(self.replica))

    def masked_moments(self) -> None:
        """Set momenta of this worker's own gradients to zero where masks prune."""
        momentum = self.replica.momentum
        for p, mask in masks_of(self.replica.optimizer).by_tensor.items():
            if momentum is not None and p in momentum.own:
                mask.apply_(momentum.own[p].m)

    def masked(self) -> None:
        """Restart the strategy with the masks of the optimizer as they are now; no message is under way."""
        self.masked_moments()
        self.lay_out()
        if self.state is not None:
            self.state = self.strategy.start(self)

    # -- core.strategy.Worker

    def now(self) -> float:
        count = sum(kept.worker is not None for kept in self._place.context(Trained).optimizers.values())
        if count > 1:
            raise ConfigurationError(
                f"the strategy goes by the clock (as where sync_every is a time), and {count} optimizers are "
                "distributed: workers would come to their means in different orders; count steps here"
            )
        return self.wire.clock.now()

    @property
    def step_seconds(self) -> float:
        return self.timer.clock.now() - self.timer.begin

    @property
    def step_began(self) -> float:
        return self.timer.begin

    @property
    def examples(self) -> int:
        return self._place.context(Consumed).of_step

    @property
    def turn(self) -> Turn | None:
        return self._place.context(Consumed).turn

    @property
    def client_round(self) -> ClientRound | None:
        return self._place.context(Consumed).client_round

    @property
    def gradient(self) -> Flat:
        return self.replica.gradient

    @gradient.setter
    def gradient(self, value: Flat) -> None:
        if not isinstance(self.kept, KeptBatch) or self.kept.take_sum():
            with self.timer.spending("decode"):
                self.means.write_gradient(value)

    @property
    def parameters(self) -> Flat:
        return self.replica.parameters

    @parameters.setter
    def parameters(self, value: Flat) -> None:
        self.replica.parameters = value

    def measure_distance(self, mean: Flat, *, only: Sequence[int] | None = None) -> None:
        if self.timer.recorder is not None:
            chosen = self.replica.chosen(only)
            note_distance(self.timer, list(chosen), full_segments(mean)[: len(chosen)])

    def note_outer_step(self, fragment: int, measured: Mapping[str, Any] | None, *, reach: float | None) -> None:
        if measured is not None:
            note_outer_step(self.timer, fragment, measured)
        if reach is not None and self._outer_losses is not None:
            self._outer_losses.outer_step(reach)

    def propose(self, strategy: str, why: str, *, acts: bool) -> bool:
        acts &= not self.means.all_ended
        ChoiceWatch(self.timer, self.losses).strategy(strategy, why, acts=acts)
        return acts

    @cached_property
    def _outer_losses(self) -> OuterLosses | None:
        """None where another worker reports, and for several optimizers, whose losses may rise in turn."""
        if self.wire.rank != self.wire.alive[0] or not self.timer.is_alone:
            return None
        losses = OuterLosses(self.name, lambda: self.step, is_scaled=lambda: self.replica.is_scaled)
        self._place.context(Observers).add(losses)
        return losses

    @property
    def rounds(self) -> WorkerRounds:
        assert self._rounds is not None, "a strategy agrees on its rounds in start()"
        return self._rounds

    def group(self, ranks: Sequence[int]) -> WorkerGroup:
        if self._group is None:
            parts = self.replica, self.wire, self.timer
            self._group = WorkerGroup(
                ranks,
                *parts,
                write=lambda mean: self.means.write_gradient(mean),
                serve=lambda: self.rounds.rounds.give_copies(),
            )
        return self._group

    def agree_on_rounds(
        self,
        *,
        clip_norm: float | None = None,
        measures: bool = False,
        momentum: MomentumChoice = "common",
        correct: Literal["delay"] | None = None,
        fragments: Sequence[Layout] = (),
        units: Callable[[Flat, int], Sequence[float]] | None = None,
        **settings: Any,
    ) -> None:
        self.replica.corrects_delay = correct == "delay"
        if self._rounds is not None:  # the trained parameters have changed
            if fragments:
                self._rounds.lay_out_fragments(fragments)
            return
        asks = InRounds(
            step=lambda: self.step,
            share=self._share,
            is_counted=lambda: isinstance(self.step_weight, LossCounts),
            apply=partial(self.strategy.apply, self),
            copies=self.copies,
        )
        if isinstance(self.kept, KeptInRounds):
            asks.kept, self.kept.most = self.kept, self.wire.max_size
            settings |= {"late": "drop", "batch": self.size}
        looking = Onlookers(self.losses, None if self.differs else self.digests, self.finite, self.noise, self.changes)
        of = self.replica, self.wire, self.timer, asks, looking, self.strategy, self._place, self._reduction
        chosen: dict[str, Any] = {"clip_norm": clip_norm, "measures": measures, "momentum": momentum}
        chosen["coordinates"] = self.coordinates
        self.has_rounds = True
        self._rounds = begin_rounds(*of, fragments=fragments, units=units, settings=settings, row=self._row, **chosen)

    @property
    def next_weight(self) -> float:
        """The weight of the gradient that the next backward pass forms."""
        return self.step_weight.of_step() if self.step_weight.varies else self.weight

    def _share(self, weight: float | None) -> float:
        weight = self.weight if weight is None else weight
        return weight / self.step_weight.full if self.step_weight.varies else weight

    @property
    def servers(self) -> ServedParameters:
        assert self._servers is not None, "a strategy agrees on its servers in start()"
        return self._servers

    @property
    def own_servers(self) -> Sequence[int]:
        return self._place.context(OwnServers).ranks

    def agree_on_servers(self, terms: ServerTerms) -> None:
        if self._servers is None:  # else the trained parameters have changed
            coding = served_coding_of(self._reduction, self.seed)
            self.is_served = True
            asks = OnServers(lambda: self.leaves_out, self.tolerates_death, self.call.summary, *coding)
            self._servers = ServedParameters(self.wire, self.timer, self.replica, terms, self.updates, worker=asks)

    def update(
        self,
        gradient: Flat | None = None,
        *,
        at: Flat | None = None,
        options: Any = None,
        momentum: AgreedMomentum | None = None,
    ) -> None:
        if self._rounds is None or not self.differs:
            self.timer.rounds += 1
        if self.strategy.compresses == "momenta" and self._leaves_out_bad():
            return
        if self.leaves_out:
            return
        exchanged = self._servers if self._table_changes is None else self._table_changes
        changes = nullcontext() if exchanged is None else exchanged.stepping()
        scaling = nullcontext(options) if self._shrunk is None else self._shrunk.scaled(options, self._workers_of_step)
        with self.timer.spending("update"), changes, scaling as in_force:
            chosen: dict[str, Any] = {"options": in_force, "arguments": self.arguments, "momentum": momentum}
            try:
                self.loss = self.replica.update(gradient, at=at, is_seen=not self.is_served, **chosen)
            except RuntimeError as error:
                explained = second_order(error, self.replica.plain)
                if explained is None:
                    raise
                raise explained from error

    @property
    def _workers_of_step(self) -> int:
        if self._rounds is not None:
            return self._rounds.contributors
        reducer = self.means.reducer
        return len(reducer.ranks) if isinstance(reducer, FaultTolerantSum) else self.size

    def _leaves_out_bad(self) -> bool:
        """Return whether this update is left out, as the mean of vectors before it was not finite."""
        headers = self.means.headers
        bad, headers.bad = headers.bad, []
        return bool(bad) and self.finite.leaves_out(bad, self.updates, is_scaled=False)

    # -- checkpoint.participants.Participant, and for the loop

    @property
    def updates(self) -> int:
        """The number of updates that the replica has applied."""
        return self.timer.rounds

    @updates.setter
    def updates(self, count: int) -> None:
        self.timer.rounds = count

    @property
    def reducer_state(self) -> Any:
        return self.means.reducer.state

    @property
    def with_single_ones(self) -> Sequence[NeighbourExchange | ServedParameters]:
        """Its exchanges with single workers: they leave before all pause, and are closed last."""
        return [self.neighbours] if self._servers is None else [self.neighbours, self._servers]

    @property
    def version(self) -> int:
        """The newest round that its replica has applied, or the number of updates."""
        return self.timer.rounds if self._rounds is None else self._rounds.version

    @property
    def progress(self) -> float | None:
        """Synchronous steps that the training has made; None where they are this worker's own steps.

        They are counted by the gradients that rounds have used, or by the batches that were assigned on request.
        """
        if self._rounds is not None and not self.differs:
            return self._rounds.progress
        dealt = self._place.context(Consumed).dealt
        meets_in_each_step = self.strategy.meets == "neighbours" and not hasattr(self.strategy, "sync_every")
        return None if dealt is None or not self.differs or meets_in_each_step else dealt + 1

    @property
    def meets_at_pauses(self) -> bool:
        return self.has_rounds or steps_apart(self.strategy)


_: type[Participant] = StrategyWorker
