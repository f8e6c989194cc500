"""`quorate run --resume RUN`: the options of a run that was begun before, as the defaults of what goes on with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_origin

import typer

from quorate.cli.options import durations_of, options_class, types_written
from quorate.cli.scripts import is_file, strategy_in
from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import RUNS

_NOT_RESUMED = ("chaos", "failures", "log", "restart")
_UNITS = {"seconds": "s", "leave_within": "s", "latency": "s", "bandwidth": "B"}
"""The units of numbers that are texts on the command line."""
_ROWS = "resumed.jsonl"


def read_resumed(context: typer.Context, run: str | None) -> str | None:
    """Make the options of a run the defaults of this one: the callback of `--resume`.

    Command-line options, and those of a file given by `--config`, override it. Raises `ConfigurationError` for a folder
    that holds no run, and for one that `quorate run` has not begun.
    """
    if run is None:
        return None
    folder = folder_of(run)
    context.default_map = {
        **options_of(folder, run_file(folder), options_class(context)),
        **(context.default_map or {}),
    }
    return str(folder)


def folder_of(run: str, to: str = "resume") -> Path:
    """Return the folder of a run from its path or its name in `runs`; the error says `to` do what."""
    for folder in (Path(run), RUNS / run):
        if run and is_file(str(folder / "run.json")):
            return folder
    raise ConfigurationError(f'there is no run "{run}" to {to} (looked for {run}/run.json and {RUNS / run}/run.json)')


def run_file(folder: Path) -> Mapping[str, Any]:
    """Return the contents of `run.json`. Raises `ConfigurationError` where it names no script."""
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{folder}/run.json cannot be read: {error}") from None
    if not isinstance(about, dict) or not isinstance(about.get("script"), str) or about.get("world") is None:
        raise ConfigurationError(f"{folder} was not started by quorate run, so no script is known")
    return about


def options_of(folder: Path, about: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return the options of a run, of the class `kind`, as defaults; values of a wrong type are left out."""
    names = {"seconds_limit": "seconds", "workers": "virtual" if about["world"] == "virtual" else "workers"}
    values = {names.get(key, key): value for key, value in about.items() if key not in _NOT_RESUMED}
    values |= {
        name: f"{values[name]!r}{unit}" for name, unit in _UNITS.items() if type(values.get(name)) in (int, float)
    }
    if isinstance(values.get("settings"), dict):
        durations = durations_of(values.get("strategy") or strategy_in(_script(about)))
        values["settings"] = [
            f"{name}={json.dumps(value)}{'s' * (name in durations and value is not None)}"
            for name, value in values["settings"].items()
        ]
    if isinstance(values.get("hosts"), str):
        values["workers"] = None
    types = {name: get_origin(wanted) or wanted for name, wanted in types_written(kind).items()}
    written = {name: values[name] for name, wanted in types.items() if name in values and type(values[name]) is wanted}
    return {"arguments": [], **written, "script": _script(about)}


def _script(about: Mapping[str, Any]) -> str:
    script, began = str(about["script"]), about.get("folder")
    if about.get("is_module") or is_file(script) or not isinstance(began, str):
        return script
    there = str(Path(began) / script)
    return there if is_file(there) else script


def note_resumption(folder: Path, plan: Mapping[str, Any]) -> None:
    """Append a row about the resumption of a run, and rename its earlier `outcome.json`.

    Raises `ConfigurationError` where nothing can be written there.
    """
    row = {
        "resumed": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "command": ["quorate", *sys.argv[1:]],
        **plan,
    }
    try:
        with open(folder / _ROWS, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        outcome = folder / "outcome.json"
        if outcome.exists():
            count = len(list(folder.glob("outcome-*.json"))) + 1
            os.replace(outcome, folder / f"outcome-{count}.json")
    except OSError as error:
        raise ConfigurationError(f"the run in {folder} cannot be resumed: {error}") from None
