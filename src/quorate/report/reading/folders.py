"""Search for the folder of a run by a path or a name."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import COMPARISON, RUNS
from quorate.records.records import ranks_in

_SHOWN = 10


def find_folder(name: str, runs: Path = RUNS) -> Path:
    """Return the folder of a run or a comparison: a path, or the name of a folder in `runs`.

    Raises `ConfigurationError` if there is none, with the nearest name and the newest ones.
    """
    for folder in (Path(name), runs / name):
        with suppress(OSError, ValueError):  # what can be no name is none
            if name and folder.is_dir():
                return folder
    folders = sorted((path for path in runs.glob("*") if path.is_dir()), key=lambda path: path.stat().st_mtime)
    near = difflib.get_close_matches(name, [path.name for path in folders], n=1)
    hint = f'; did you mean "{near[0]}"?' if near else "."
    newest = ", ".join(path.name for path in reversed(folders[-_SHOWN:])) or "none"
    raise ConfigurationError(f'there is no run "{name}", as a folder or in {runs}{hint} The newest: {newest}.')


def find_run(name: str, runs: Path = RUNS) -> Path:
    """Return the folder of one run that has left rows.

    Raises `ConfigurationError` if there is none, if it holds a comparison (its runs are listed), and if no worker has
    left records.
    """
    folder = find_folder(name, runs)
    if (folder / COMPARISON).is_file():
        inside = ", ".join(str(path) for path in runs_of(folder)) or "none yet"
        raise ConfigurationError(f"{folder} holds a comparison; name one of its runs: {inside}")
    if not ranks_in(folder):
        raise ConfigurationError(f"no worker has left records in {folder}: there is no rank-0.jsonl")
    return folder


def runs_of(comparison: Path) -> list[Path]:
    """Return the folders of a comparison's runs that have left rows, sorted, without the search for learning rates."""
    return sorted(path for path in comparison.glob("*/seed-*") if ranks_in(path))
