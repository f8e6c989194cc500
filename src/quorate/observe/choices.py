"""Records of what a training has chosen for itself between two steps, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorate.core.telling import tell
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.records.choice_rows import Choice


class ChoiceWatch:
    """The choices of one optimizer's training; the first living rank writes and reports them."""

    def __init__(self, timer: StepTimer, losses: Losses) -> None:
        self._timer, self._losses = timer, losses

    def codecs(self, codecs: Mapping[str, str], why: str) -> None:
        """Note the codec of each part, by its number."""
        self._note("compress", _in_words(codecs), why)

    def strategy(self, strategy: str, why: str, *, acts: bool) -> None:
        """Note a strategy that is proposed, or with `acts` used from here on."""
        self._note("strategy" if acts else "proposed strategy", strategy, why)

    def _note(self, setting: str, value: str, why: str) -> None:
        if not self._losses.is_first:
            return
        timer = self._timer
        tell(f"quorate: from update {timer.rounds + 1} on, {setting} is {value}: {why}\n")
        if timer.recorder is not None:
            at: Any = {"step": timer.steps + 1, "time": timer.clock.now(), "optimizer": timer.name}
            timer.recorder.write(Choice(setting=setting, value=value, why=why, **at))


def _in_words(codecs: Mapping[str, str]) -> str:
    """Return "top-k", or "top-k in parts 1 and 2, half in part 3"."""
    names = dict.fromkeys(codecs.values())
    if len(names) == 1:
        return next(iter(names))
    parts = {name: [part for part, codec in codecs.items() if codec == name] for name in names}
    return ", ".join(f"{name} in part{'s' * (len(of_name) > 1)} {' '.join(of_name)}" for name, of_name in parts.items())
