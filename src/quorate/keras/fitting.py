"""`fit` of a model whose optimizer is distributed: with the callback of Quorate before all others."""

from __future__ import annotations

import inspect
from typing import Any

from quorate.keras.callback import Callback
from quorate.keras.training import KerasTraining, set_attribute


def hook_fit(training: KerasTraining) -> None:
    """Replace `model.fit` on the object."""
    model, rank = training.model, training.place.wire.rank

    def fit(*arguments: Any, **named: Any) -> Any:
        call = inspect.signature(type(model).fit).bind(model, *arguments, **named)
        call.arguments["callbacks"] = _with_own(call.arguments.get("callbacks"))
        if rank > 0 and call.arguments.get("verbose", "auto") == "auto":
            call.arguments["verbose"] = 0
        if training.foreign is not None:
            training.take_edits()
        return type(model).fit(*call.args, **call.kwargs)

    set_attribute(model, "fit", fit)


def _with_own(callbacks: Any) -> Any:
    """Return the callbacks with that of Quorate before the others, which then see the means of all workers."""
    held = getattr(callbacks, "callbacks", None)
    chosen = (
        list(held)
        if held is not None
        else [callbacks]
        if callbacks and not _is_list(callbacks)
        else list(callbacks or ())
    )
    own = [x for x in chosen if isinstance(x, Callback)] or [Callback()]
    ordered = [*own, *(x for x in chosen if not isinstance(x, Callback))]
    if held is None:
        return ordered
    held[:] = ordered
    return callbacks


def _is_list(callbacks: Any) -> bool:
    return isinstance(callbacks, list | tuple)
