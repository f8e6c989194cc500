"""The rounds of one worker: its own, or those of a run that is replayed."""

from __future__ import annotations

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Layout
from quorate.records.tape import OptimizerTape
from quorate.rounds.coding import Coding
from quorate.rounds.entering import Replica, Watching
from quorate.rounds.fragments import Fragments
from quorate.rounds.replay.replayed import ReplayedRounds
from quorate.rounds.rounds import Rounds
from quorate.rounds.terms import Agreed

AnyRounds = Rounds | ReplayedRounds


def rounds_of(
    wire: Wire,
    agreed: Agreed,
    layout: Layout,
    replica: Replica,
    fragments: Fragments | None,
    watching: Watching,
    tape: OptimizerTape | None,
    coding: Coding | None = None,
    row: Wire | None = None,
) -> AnyRounds:
    """Return the rounds of one worker; with a `tape` those of a replay. Raises `ConfigurationError`."""
    if tape is None:
        return Rounds(wire, agreed, layout, replica, fragments, watching, coding, row)
    if row is not None:
        raise ConfigurationError("runs with a mesh of shards cannot be replayed")
    if agreed.batch:
        raise ConfigurationError('runs of rounds with batch="kept" cannot be replayed')
    if agreed.learners:
        raise ConfigurationError("learners of several workers cannot be replayed; this run has learners=")
    return ReplayedRounds(wire, agreed, layout, replica, fragments, watching, tape, coding)
