"""`quorate run --resume RUN`: the options of a run that was begun before, as the defaults of what goes on with it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from quorate.cli.scripts import is_file
from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import RUNS

_TEXTS = ("strategy", "hosts", "ssh", "imbalance", "pace", "share", "mesh", "offload", "compute")
_ROWS = "resumed.jsonl"


def read_resumed(context: typer.Context, run: str | None) -> str | None:
    """Make the options of a run the defaults of this one: the callback of `--resume`.

    Command-line options, and those of a file given by `--config`, override it. Raises `ConfigurationError` for a folder
    that holds no run, and for one that `quorate run` has not begun.
    """
    if run is None:
        return None
    folder = folder_of(run)
    context.default_map = {**options_of(folder, run_file(folder)), **(context.default_map or {})}
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


def options_of(folder: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a run as defaults; values of a wrong type are left out."""
    arguments = about.get("arguments")
    said: dict[str, Any] = {"script": _script(about)}
    said["arguments"] = [str(argument) for argument in arguments] if isinstance(arguments, list) else []
    said |= {name: about[name] for name in _TEXTS if isinstance(about.get(name), str)}
    is_virtual = about["world"] == "virtual"
    numbers = {
        "virtual" if is_virtual else "workers": None if "hosts" in said else about.get("workers"),
        "seed": about.get("seed"),
        "servers": about.get("servers"),
        "zero": about.get("zero"),
    }
    said |= {name: value for name, value in numbers.items() if type(value) is int}
    if type(about.get("seconds_limit")) in (int, float):
        said["seconds"] = repr(float(about["seconds_limit"]))
    if is_virtual:
        said |= {name: repr(about[name]) for name in ("latency", "bandwidth") if type(about.get(name)) is float}
    if isinstance(about.get("env"), list):
        said["env"] = [str(variable) for variable in about["env"]]
    if about.get("is_module") is True:
        said["is_module"] = True
    settings = about.get("settings")
    if isinstance(settings, dict) and settings:
        said["settings"] = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return said


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
