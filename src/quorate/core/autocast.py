"""Autocast around a whole step of a script: what workers exchange is computed without it.

A script may have its backward pass and `optimizer.step()` inside `torch.autocast`. Products of matrices in codecs and
aggregation rules would then have the 16 bits that were chosen for the model. The script's own code inside a step keeps
its autocast: the step of its optimizer, hooks and closures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ParamSpec, TypeVar

import torch

T = TypeVar("T")
P = ParamSpec("P")
_KINDS = ("cpu", "cuda")
_suspended = threading.local()


def without_autocast(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`, computed without autocast."""
    kinds = [kind for kind in _KINDS if torch.is_autocast_enabled(kind)]
    if not kinds:
        return function(*args, **kwargs)
    with _switched(kinds, is_on=False):
        return function(*args, **kwargs)


def with_autocast_of_script(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `function(*args, **kwargs)`, code of the script, computed with the suspended autocast."""
    kinds: Sequence[str] = getattr(_suspended, "kinds", ())
    if not kinds:
        return function(*args, **kwargs)
    with _switched(kinds, is_on=True):
        return function(*args, **kwargs)


@contextmanager
def _switched(kinds: Sequence[str], *, is_on: bool) -> Iterator[None]:
    before, _suspended.kinds = getattr(_suspended, "kinds", ()), () if is_on else kinds
    try:
        with ExitStack() as inside:
            for kind in kinds:
                inside.enter_context(torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=is_on))
            yield
    finally:
        _suspended.kinds = before
