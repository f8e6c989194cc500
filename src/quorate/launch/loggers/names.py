"""The loggers by name, and which of them a run has."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from quorate.core.errors import ConfigurationError, MissingExtra, unknown

NONE = "none"
KNOWN = ("mlflow", "tensorboard", "wandb")
"""The loggers; each has the name of the package that it needs, and of the extra."""


class Logger(Protocol):
    """One place for numbers. All methods are called by one thread, which is not the training's."""

    def add(self, name: str, value: float, step: int) -> None:
        """Keep one number: of `step`, which never falls for one name."""

    def close(self, *, is_well: bool) -> None:
        """There will be no more; `is_well` says whether the run ended well."""


def known_names(text: str) -> list[str]:
    """Return the names in `wandb,mlflow`. Raises `ConfigurationError` for an unknown name."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if NONE in names:
        if len(names) > 1:
            raise ConfigurationError(f'"{text}": {NONE} means no logger, and goes with no other name')
        return []
    for name in names:
        if name not in KNOWN:
            raise unknown("logger", name, (*KNOWN, NONE))
    return names


def names_from(text: str | None) -> list[str]:
    """Return the names as `known_names`; for None the default: TensorBoard's files where it is installed.

    Raises `MissingExtra` as well, for a name whose package is not installed.
    """
    if text is None:
        return ["tensorboard"] if importlib.util.find_spec("tensorboard") is not None else []
    names = known_names(text)
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"the logger {name} needs {name}; install it with: pip install {name}")
    return names


def opened(name: str, folder: Path, about: Mapping[str, Any]) -> Logger:
    """The logger of this name for the run in `folder`, of which `about` says what was chosen."""
    logger: Logger = importlib.import_module(f"quorate.launch.loggers.to_{name}").opened(folder, about)
    return logger
