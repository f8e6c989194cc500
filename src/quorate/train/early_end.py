"""`world.stop`: one worker ends the loops of all."""

from __future__ import annotations

from quorate.core.errors import ConfigurationError
from quorate.observe.ends import Ends
from quorate.observe.stopping import Stop
from quorate.train.chosen import Chosen
from quorate.train.loop import loops_of
from quorate.wire.current import Place


class EarlyEnd:
    """The end of the loops of all workers before their data ends, as one worker sees it."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def request(self, reason: str) -> None:
        """Let the loops of all workers end. Raises `ConfigurationError` under a baseline, which cannot."""
        chosen = self._place.context(Chosen)
        if chosen.baselines:
            raise ConfigurationError(
                f"{chosen.strategy_name} cannot end all workers at one step after world.stop(); decide with "
                "world.any(...) in each step"
            )
        self._place.context(Ends).stop(self._place, reason)

    def is_over(self) -> bool:
        """Whether this worker's loop is to end: all have learnt it in the same mean, or no mean has everyone."""
        stop = self._place.context(Stop)
        if stop.reason is None:
            self._place.context(Ends).look_unattended(self._place)
        if stop.reason is None or stop.is_over:
            return stop.is_over
        trainings = [loop for loop in loops_of(self._place) if not loop.is_finished]
        return not stop.is_agreed and all(loop.meets_at_pauses for loop in trainings)
