"""Calls of the API that leave an argument out, or give one that is not there: a sentence like any other.

Packages that can be called: `quorate.launch(function)`, while `quorate.launch.local` is a module in it as before.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from quorate.core.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")


def one_sentence(advice: Mapping[str, str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Makes a call that does not fit the signature a `ConfigurationError`; `advice` by the name of an argument."""

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


class CallableModule(ModuleType):
    """A module that calls a function of another one, which is imported by the first call.

    Python sets a submodule as an attribute of its package, and so would hide a function of the same name as soon as
    anything in the submodule was imported. This way the name is one thing at all times.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        place, name = self.__dict__["__calls__"]
        return getattr(importlib.import_module(place), name)(*args, **kwargs)


def let_call(module: str, place: str, name: str) -> None:
    """From now on the imported `module` can be called, and calls `name` of the module `place`."""
    found = sys.modules[module]
    found.__dict__["__calls__"] = place, name
    found.__class__ = CallableModule
