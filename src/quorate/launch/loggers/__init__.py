"""Loggers of a run's numbers beside its records, each in a file of its own. Listing them imports none of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from quorate.core.errors import ConfigurationError, unknown
from quorate.core.installed import missing_extra
from quorate.core.registry import Registry

NONE = "none"


class Logger(Protocol):
    """One place for numbers. All methods are called by one thread, which is not the training's."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Open the logger for the run in `folder`, whose settings are `about`."""

    def add(self, name: str, value: float, step: int) -> None:
        """Keep one number: of `step`, which never falls for one name."""

    def close(self, *, is_well: bool) -> None:
        """There will be no more; `is_well` says whether the run ended well."""


loggers: Registry[type[Logger]] = Registry(
    "logger",
    {
        "mlflow": "quorate.launch.loggers.mlflow:MlflowRun",
        "tensorboard": "quorate.launch.loggers.tensorboard:EventFiles",
        "wandb": "quorate.launch.loggers.wandb:WandbRun",
    },
)
"""Each has the name of the package that it needs, and of the extra."""


def known_names(text: str) -> list[str]:
    """Return the names in `wandb,mlflow`. Raises `ConfigurationError` for an unknown name."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    if NONE in names:
        if len(names) > 1:
            raise ConfigurationError(f'"{text}": {NONE} means no logger, and goes with no other name')
        return []
    for name in names:
        if name not in loggers:
            raise unknown("logger", name, (*loggers, NONE))
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
            raise missing_extra(f"the logger {name} needs {name}", extra=name, package=name)
    return names
