"""Packages that can be called: `quorate.launch(function)`, while `quorate.launch.local` is a module in it as before."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class CallableModule(ModuleType):
    """A module that calls a function of another one, which is imported by the first call.

    Python sets a submodule as an attribute of its package, and so would hide a function of the same name as soon as
    anything in the submodule was imported. This way the name is one thing at all times.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        place, name = self.__dict__["__calls__"]
        return getattr(importlib.import_module(place), name)(*args, **kwargs)


def let_call(module: str, place: str, name: str) -> None:
    """Make the imported `module` callable: a call calls `name` of the module `place`."""
    callable_module = sys.modules[module]
    callable_module.__dict__["__calls__"] = place, name
    callable_module.__class__ = CallableModule
