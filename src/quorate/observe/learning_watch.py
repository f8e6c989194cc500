"""Says once, on the first worker that is left, that late gradients make the training worse; see `rounds.learning`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from quorate.core.strategy import Strategy
from quorate.core.telling import tell
from quorate.observe.losses import Losses
from quorate.observe.step_times import StepTimer
from quorate.rounds.learning import Harm, Learning
from quorate.rounds.log import Round


@dataclass(frozen=True, kw_only=True)
class Remedies:
    """What a user may change."""

    is_common: bool = False
    """Whether the optimizer that all share keeps a momentum, of late gradients too."""
    can_move: bool = False
    """Whether workers could keep it."""
    can_wait: bool = False
    """Whether the quorum is the user's choice."""

    def in_words(self, quorum: int, live: int) -> str:
        """After a round of `quorum` of `live` workers."""
        found = ["lower the learning rate"]
        if self.can_wait and quorum < live:
            more = min(live, max(quorum + 1, live // 2 + 1))
            found.insert(0, f"wait for more workers (wait_for={more})")
        if self.is_common and self.can_move:
            found.append('let workers keep their momentum (momentum="worker")')
        return found[0] if len(found) == 1 else f"{', '.join(found[:-1])}{',' * (len(found) > 2)} or {found[-1]}"


def remedies_under(strategy: Strategy, shares_momentum: tuple[bool, bool], *, chooses: bool) -> Remedies:
    """Those under a strategy, which `chooses` its quorum or leaves it to the user."""
    is_common, can_move = shares_momentum
    return Remedies(
        is_common=is_common,
        can_move=can_move and hasattr(strategy, "momentum"),
        can_wait=not chooses and hasattr(strategy, "wait_for"),
    )


class LearningWatch:
    """Follows the losses of one worker, and how late the gradients in its rounds are.

    Silent where losses are not known (on a GPU, or scaled), and where the script trains several optimizers, as the loss
    of one may rise for what another has learnt. Cost: some additions in each step and round.
    """

    def __init__(self, timer: StepTimer, losses: Losses, remedies: Remedies) -> None:
        self._timer, self._losses, self._remedies = timer, losses, remedies
        self._learning: Learning | None = Learning(looks_for_swings=remedies.is_common)
        self._quorum, self._live = 0, 0
        self._caution: str | None = None

    def comes(self, one: Round) -> None:
        """This worker is about to apply it."""
        self._quorum, self._live = one.quorum, one.live
        if self._learning is not None:
            given = [pair for some in one.contributors.values() for pair in some]
            self._learning.round(sum(late * count for late, count in given), sum(count for _, count in given))

    def gives(self, options: Sequence[dict[str, Any]], *, is_scaled: bool) -> None:
        """The loss of this step is known, if it ever is; `options` are the optimizer's."""
        loss = self._timer.loss
        if self._learning is None or loss is None or is_scaled:
            return
        if not self._timer.is_alone:
            self._learning = None
            return
        rates = [group["lr"] for group in options if isinstance(group.get("lr"), int | float)]
        harm = self._learning.step(loss, max(rates, default=1.0))
        if harm is not None:
            self._learning = None
            if self._losses.is_first:
                self._say(harm)

    def _say(self, harm: Harm) -> None:
        late = f"{harm.what} while gradients were {harm.late:.1f} rounds late in the mean"
        self._caution = f"{late}; {self._remedies.in_words(self._quorum, self._live)}"
        tell(f"quorate: {self._caution}\n")

    def take(self) -> str | None:
        """What was said, for the next row; the next time None."""
        said, self._caution = self._caution, None
        return said
