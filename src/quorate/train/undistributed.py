"""An optimizer that steps before any is distributed, in a run that was asked for a strategy or a mesh."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from quorate.core.telling import tell
from quorate.wire import current
from quorate.wire.current import Place


class Undistributed:
    """One of each worker. Cost: a call before each step of an optimizer until one is distributed."""

    def __init__(self) -> None:
        self._hook: Any = None

    def watch(self, place: Place, asked: str) -> None:
        """Say it once where an optimizer steps, and what was `asked` for is not used."""
        has_said = False

        def look(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            nonlocal has_said
            if has_said or self._hook is None or current.place() is not place:
                return
            has_said = True
            tell(
                f"quorate: rank {place.wire.rank}: {type(optimizer).__name__} steps, and no optimizer was distributed; "
                f"{asked} has no effect, and workers train apart: call quorate.distribute(optimizer, model) first\n"
            )

        self._hook = register_optimizer_step_pre_hook(look)
        place.leaving.append(self.close)

    def close(self) -> None:
        """An optimizer was distributed, or the worker leaves."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
