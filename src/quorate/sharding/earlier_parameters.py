"""Parameters that a script has listed before `quorate.distribute` divides its model into shards.

A script for which the command line requests shards has older lists of its parameters: for clipping, for moving
averages, in other optimizers. They hold full parameters that are no longer trained, so they get those in shards.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from types import CellType, FrameType
from typing import Any

from torch.nn import Parameter

from quorate.core.errors import ConfigurationError


def follow(earlier: Sequence[tuple[str, Parameter]], now: Mapping[str, Parameter]) -> None:
    """Replace `earlier` parameters by those of the model `now`, by name, in lists, dicts and objects.

    Local variables of functions keep what they have. Cost: one check of the objects of the process.

    Raises `ConfigurationError` for a tuple, a set, or the state of another optimizer, which cannot be changed.
    """
    new = {id(p): now[name] for name, p in reversed(earlier) if name in now and now[name] is not p}
    names = {id(p): name for name, p in earlier}
    replaced = [p for p in {id(p): p for _, p in earlier}.values() if id(p) in new]
    own = {id(x) for x in (replaced, earlier)} | {id(pair) for pair in earlier}
    holders = {id(x): x for x in gc.get_referrers(*replaced) if id(x) not in own} if replaced else {}
    for holder in holders.values():
        kept = _replace(holder, new)
        if kept is not None:
            kind = type(holder).__name__
            raise ConfigurationError(
                f"a {kind} made before quorate.distribute holds {names[id(kept)]}, and would keep it as it was "
                f"before the model was put in shards; call quorate.parallelize(model) before the {kind} is made"
            )


def _replace(holder: Any, new: Mapping[int, Parameter]) -> Any:
    """Replace parameters in `holder`; return a parameter that cannot be replaced there, or None."""
    if isinstance(holder, FrameType):
        return None
    if isinstance(holder, list):
        holder[:] = [new.get(id(x), x) for x in holder]
        return None
    if isinstance(holder, CellType):
        holder.cell_contents = new.get(id(holder.cell_contents), holder.cell_contents)
        return None
    values = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    is_known = isinstance(holder, dict)
    for key in [key for key, value in values.items() if id(value) in new]:
        values[key], is_known = new[id(values[key])], True
    if isinstance(holder, dict):
        return next((key for key in holder if id(key) in new), None)
    if isinstance(holder, tuple | set | frozenset) or not is_known:
        return next((x for x in gc.get_referents(holder) if id(x) in new), None)
    return None
