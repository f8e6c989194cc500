"""Values that the shell completes after Tab: names of strategies, workloads and runs, and what an option lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorate.cli.listing import FAMILIES, registry
from quorate.cli.names import known_as
from quorate.launch.loggers import NONE, loggers
from quorate.launch.run.folder import COMPARISON, RUNS


@dataclass(frozen=True)
class Item:
    """A value, as shells receive it."""

    value: str
    help: str = ""
    type: str = "plain"


Complete = Callable[[Any, str], list[Item]]


def complete_values(parameter: Any) -> None:
    """Let `parameter` complete its values, which the word for its value in the help stands for."""
    word = str(parameter.metavar or "")
    values = _VALUES.get(word)
    if word == "NAME":
        values = partial(_names, FAMILIES) if parameter.param_type_name == "argument" else None
    elif "|" in word:
        values = partial(_choices, word.split("|"))
    if values is not None:
        parameter.shell_complete = values


def _names(families: Iterable[str], context: Any, incomplete: str) -> list[Item]:
    summaries: dict[str, str] = {}
    for family in families:
        names = registry(family)
        summaries |= {name: names.summary(name) for name in names if name.startswith(incomplete)}
    return [Item(name, summary) for name, summary in summaries.items()]


def _choices(words: Iterable[str], context: Any, incomplete: str) -> list[Item]:
    return [Item(word) for word in words if word.startswith(incomplete)]


def _runs(context: Any, incomplete: str, marks: tuple[str, ...] = ("run.json",)) -> list[Item]:
    names = [folder.name for folder in RUNS.glob("*") if any((folder / mark).is_file() for mark in marks)]
    return _choices(sorted(names), context, incomplete)


def _settings(context: Any, incomplete: str) -> list[Item]:
    """The settings of the strategy that the words before have chosen, as `name=`."""
    strategies = registry("strategies")
    name = known_as(str(context.params.get("strategy") or ""), "strategies").partition(":")[0]
    source = strategies.source(name) if name in strategies else None
    settings = () if source is None else source.settings
    return [Item(f"{each.name}=", each.meaning) for each in settings if each.name.startswith(incomplete)]


_VALUES: dict[str, Complete] = {
    "STRATEGY": partial(_names, ("strategies", "baselines")),
    "WORKLOAD": partial(_names, ("workloads",)),
    "SUBJECT": partial(_names, ("workloads",)),
    "[FAMILY]": partial(_choices, FAMILIES),
    "RUN": _runs,
    "FOLDER": partial(_runs, marks=("run.json", COMPARISON)),
    "KEY=VALUE": _settings,
    "NAME,…": partial(_choices, (*loggers, NONE)),
}
