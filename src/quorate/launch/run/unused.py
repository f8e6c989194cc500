"""A strategy, mesh or stage of ZeRO that a run was asked for, and that its script does not use."""

from __future__ import annotations

from quorate.core.axes import axes_from_text
from quorate.core.contracts import Board
from quorate.launch.run.overrides import Overrides
from quorate.wire.used import is_used


def asked_strategy(chosen: Overrides) -> str | None:
    """The strategy that was asked for, as on the command line; None where none was."""
    if chosen.strategy is not None:
        return f"--strategy {chosen.strategy}"
    return " ".join(f"--set {name}={value}" for name, value in chosen.settings.items()) or None


def asked_mesh(chosen: Overrides, size: int) -> str | None:
    """The mesh that was asked for, as on the command line; None where every worker has the whole model anyway."""
    if size == 1 or (chosen.mesh is not None and axes_from_text(chosen.mesh, size).of_replica == 1):
        return None
    words = [f"--mesh {chosen.mesh}"] if chosen.mesh is not None else []
    words += [f"--zero {chosen.zero}"] if chosen.zero is not None else []
    return " ".join(words) or None


def why_unused(board: Board, chosen: Overrides, size: int) -> str | None:
    """Return why a run that ended well did not do what was asked; None if it did."""
    strategy, mesh = asked_strategy(chosen), asked_mesh(chosen, size)
    if strategy is not None and not is_used(board, "strategy"):
        return (
            f"{strategy} was asked for, and no worker used it: the script never called quorate.distribute(optimizer, "
            "model), which the strategy acts through"
        )
    if mesh is not None and not is_used(board, "mesh"):
        return (
            f"{mesh} was asked for, and no worker used it: the script never called quorate.parallelize(model), which "
            "spreads the model"
        )
    return None
