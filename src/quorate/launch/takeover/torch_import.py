"""A call that is made once torch is imported, whose threads a script may choose before."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def after_import_of_torch(call: Callable[[], None]) -> None:
    """Make the `call` as soon as torch is imported, or now where it is."""
    if "torch" in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterTorch(call))


class _AfterTorch(MetaPathFinder):
    """Makes a call once torch is imported, in place of whoever finds it."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of torch, with a loader that makes the call behind it; None for other modules."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            plain = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                plain(module)
                self._call()

            loader.exec_module = exec_module
        return spec
