"""Begins the rounds of one optimizer, with their observers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorate.checkpoint.saving import saving
from quorate.core.contracts import Wire
from quorate.core.local_tensor import local
from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.core.vectors import Flat, Layout, layout_on_cpu
from quorate.data.context import DataContext
from quorate.means.headers import units_by_weight
from quorate.means.reduction import Reduction
from quorate.observe.digests import Digests
from quorate.observe.exclusions import ExclusionWatch
from quorate.observe.finite import Finite
from quorate.observe.gradient_noise import NoiseWatch
from quorate.observe.local_changes import LocalChanges
from quorate.observe.losses import Losses
from quorate.observe.step_observer import Observers
from quorate.observe.step_times import StepTimer
from quorate.quorums.round_watch import RoundWatch
from quorate.quorums.rounds import InRounds, WorkerRounds
from quorate.quorums.whole_replica import WholeReplica
from quorate.records.tape import Replaying
from quorate.replica.replica import Replica
from quorate.replica.worker_momentum import MomentumChoice
from quorate.rounds.terms import Agreed
from quorate.sharding.mesh import Coordinates, copies_of
from quorate.train.reduced import by_rule, coding_of
from quorate.wire.current import Place
from quorate.wire.survivors import DeathTolerance


@dataclass(frozen=True)
class Onlookers:
    """The observers of one optimizer's training; `digests` only where replicas have to be equal."""

    losses: Losses
    digests: Digests | None
    finite: Finite
    noise: NoiseWatch
    changes: LocalChanges


def begin_rounds(
    replica: Replica,
    wire: Wire,
    timer: StepTimer,
    asks: InRounds,
    looking: Onlookers,
    strategy: Strategy,
    place: Place,
    reduction: Reduction,
    *,
    clip_norm: float | None,
    measures: bool,
    momentum: MomentumChoice,
    fragments: Sequence[Layout],
    settings: Mapping[str, Any],
    units: Callable[[Flat, int], Sequence[float]] | None = None,
    row: Wire | None = None,
    coordinates: Coordinates | None = None,
) -> WorkerRounds:
    """Begin rounds: see `Worker.agree_on_rounds`; `row` and `coordinates` are those of a replica in pieces."""
    abreast = None if coordinates is None else coordinates.abreast.channel(f"optimizer/{timer.name}/momentum")
    of_tensors = WholeReplica(abreast)
    whole = WholeReplica(row)
    in_vectors = [x for x in replica.every if not any(x is table for table in replica.sparse_tables)]
    nbytes = whole.same(sum(x.numel() * x.element_size() for x in map(local, in_vectors)))
    seed, is_survived = place.context(DataContext).seed, strategy.on_death == "continue"
    settings = by_rule(reduction, settings, wire.size, seed, strategy)
    terms: dict[str, Any] = {"size": wire.size, "max_size": wire.max_size, "seed": seed, "fragments": len(fragments)}
    tape = place.context(Replaying).of(wire.rank, timer.name)
    agreed = Agreed(
        **terms, vector_bytes=nbytes, tolerates_death=is_survived, pieces=1 if row is None else row.size, **settings
    )
    may_be_late = measures or agreed.quorum < agreed.callers
    if momentum != "auto" or may_be_late:
        notice = replica.keep_momentum(momentum, wire.size, list if of_tensors.is_here else of_tensors.sums)
        if notice is not None and wire.rank == 0:
            tell(f"quorate: {notice}\n")
    are_deltas = strategy.replicas == "meet"  # they enter no momentum
    keeps_moments = not are_deltas and (momentum == "common" or replica.shares_momentum[0])
    is_as_given = agreed.late_weight == "full" and (clip_norm is None or replica.momentum is None)
    is_measured = looking.digests is not None and is_as_given
    if agreed.quorum == agreed.callers:
        looking.changes.sign_contributions()
    return WorkerRounds(
        replica,
        wire,
        timer,
        agreed,
        asks,
        saving=saving(place),
        watch=RoundWatch(
            wire,
            timer,
            looking.losses,
            looking.digests,
            looking.finite,
            changes=None if looking.digests is None else looking.changes,
            noise=looking.noise if is_measured and not agreed.batch else None,
            has_window=agreed.window > 0,
            tolerates_death=agreed.tolerates_death,
            exclusions=None if agreed.combine is None else ExclusionWatch(timer, looking.losses),
            pieces=agreed.pieces,
        ),
        tolerance=place.context(DeathTolerance),
        clip_norm=clip_norm,
        measures=measures,
        fragments=fragments,
        tape=tape,
        counts_ended=may_be_late and not keeps_moments,
        coding=coding_of(
            reduction, layout_on_cpu(replica.layout), seed, wire.rank, wire.size, units or units_by_weight
        ),
        replica_wire=row,
        observers=place.context(Observers),
        **({} if coordinates is None else {"copies": lambda p: copies_of(p, coordinates)}),
    )
