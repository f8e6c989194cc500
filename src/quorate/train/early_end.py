"""`world.stop`: one worker ends the loops of all."""

from __future__ import annotations

from quorate.core.errors import ConfigurationError
from quorate.observe.ends import ends_of
from quorate.observe.stopping import stop_of
from quorate.train.chosen import chosen_in
from quorate.train.loop import loops_of
from quorate.wire.current import Place


def stop_all(place: Place, reason: str) -> None:
    """Let the loops of all workers end. Raises `ConfigurationError` under a baseline, which cannot."""
    chosen = chosen_in(place)
    if chosen.baselines:
        raise ConfigurationError(
            f"{chosen.strategy_name} cannot end all workers at one step after world.stop(); decide with world.any(...) "
            "in each step"
        )
    ends_of(place).stop(place, reason)


def is_over(place: Place) -> bool:
    """Whether this worker's loop is to end: all have learnt it in the same mean, or no mean has everyone."""
    stop = stop_of(place)
    if stop.reason is None:
        ends_of(place).look_unattended(place)
    if stop.reason is None or stop.is_over:
        return stop.is_over
    trainings = [loop for loop in loops_of(place) if not loop.is_finished]
    return not stop.is_agreed and all(loop.meets_at_pauses for loop in trainings)
