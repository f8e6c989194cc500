"""Preparation of a worker that joins, by the choices of the launcher that override the script's, or add to them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from quorate.core.axes import Axes, axes_from_text, offload_of, stage_of
from quorate.core.draws import common_seed, mixed
from quorate.core.errors import ConfigurationError
from quorate.data.common_draws import CommonDraws
from quorate.data.context import data_context
from quorate.data.limit import Limit
from quorate.inject.failures import SlowTimes, failures_from
from quorate.inject.imbalance import parse_imbalance
from quorate.inject.pace import parse_pace
from quorate.launch.local.chaos import began
from quorate.launch.run.overrides import Overrides
from quorate.launch.run.unused import asked_mesh, asked_strategy
from quorate.launch.worker.baselines import baselines
from quorate.observe.pacing import Pacing, injected
from quorate.records.tape import Replaying, tape_of
from quorate.sharding.mesh import Meshes, deal_to
from quorate.train.chosen import chosen_in
from quorate.train.undistributed import Undistributed
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire
from quorate.wire.virtual.wire import VirtualWire


def prepare(place: Place, chosen: Overrides) -> None:
    """Let `chosen` be in force in this worker's place.

    A seed that was given seeds the default generators of torch, numpy and python, alike on all ranks until an optimizer
    is distributed (in a virtual world they are seeded so already). Raises `ConfigurationError` for texts that say
    nothing known.
    """
    choices, data, wire = chosen_in(place), data_context(place), place.wire
    if chosen.replay is not None:
        place.context(Replaying).tape = tape_of(Path(chosen.replay))
    is_real = isinstance(wire, RealWire)
    seed = data.seed = chosen.seed or 0
    choices.strategy_name, choices.settings = chosen.strategy, chosen.settings
    data.share = chosen.share
    if any(choice is not None for choice in (chosen.mesh, chosen.zero, chosen.offload)):
        meshes = place.context(Meshes)
        meshes.axes = axes_from_text(chosen.mesh, wire.size) if chosen.mesh else Axes(1, wire.size)
        deal_to(place, meshes.axes)
        meshes.zero = None if chosen.zero is None else stage_of(chosen.zero)
        meshes.offload = offload_of(chosen.offload)
    asked = [asked_strategy(chosen), asked_mesh(chosen, wire.size)]
    if any(asked):
        place.context(Undistributed).watch(place, " ".join(filter(None, asked)))
    choices.learning_rate_factor = chosen.learning_rate_factor
    if is_real and chosen.strategy is not None and chosen.strategy in baselines:
        choices.baselines = {chosen.strategy: baselines.get(chosen.strategy)}
        data.needs_equal_shares = chosen.strategy
    slow = _slow_times(place, chosen)
    if chosen.imbalance or chosen.pace or slow:
        imbalance = parse_imbalance(chosen.imbalance, seed=seed, size=wire.size) if chosen.imbalance else None
        pace = parse_pace(chosen.pace, seed=seed, size=wire.size) if chosen.pace else None
        injected(place).pacing = Pacing(place, imbalance, pace, slow)
    if chosen.seconds is not None:
        data.limit = Limit(wire.channel("limit"), chosen.seconds)
    draws = place.context(CommonDraws)
    if chosen.seed is not None and is_real:
        draws.begin(common_seed(seed), mixed(seed, wire.rank))
    elif isinstance(wire, VirtualWire) and wire.generator_seeds is not None:
        draws.have_begun(*wire.generator_seeds)


def _slow_times(place: Place, chosen: Overrides) -> SlowTimes | None:
    """Return the slow times of this worker, or of the place in which it was started."""
    if chosen.failures is None and chosen.chaos is None:
        return None
    if chosen.failures is None or chosen.chaos is None or not os.environ.get("QUORATE_BOARD"):
        raise ConfigurationError(
            "QUORATE_CHAOS and QUORATE_FAILURES are set by quorate run, which strikes its workers; other launchers "
            "cannot: start the training with quorate run -n N --chaos SEED"
        )
    wire, seat = place.wire, data_context(place).seat
    rank = wire.rank if seat is None else seat
    return SlowTimes(failures_from(chosen.failures), wire.size, chosen.chaos, rank, partial(began, wire.board))
