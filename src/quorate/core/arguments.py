"""Errors in one sentence for API calls with a missing or an unknown argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from quorate.core.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def one_sentence(advice: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: wrong arguments raise `ConfigurationError` with the `advice` for the argument."""

    def of(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                known = next((f"; {text}" for name, text in advice.items() if f"'{name}'" in str(error)), "")
                raise ConfigurationError(f"quorate.{function.__name__}(): {error}{known}") from None
            return function(*args, **kwargs)

        return checked

    return of
