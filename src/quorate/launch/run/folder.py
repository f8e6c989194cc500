"""The folder of a run, `runs/<name>/`: its `run.json`, and the lock that one launcher at a time holds."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.core.installed import version_of

RUNS = Path("runs")
COMPARISON, COMPARISON_FORMAT = "compare.json", 1
"""The file that makes a folder one of a comparison; its format rises when a key changes its meaning or goes away."""
SIMULATED = "simulated.json"
"""The file of a run with the predictions of a simulation for more workers."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,149}")
_GIT_SECONDS = 5.0


def usual_name(script: str) -> str:
    """A name for a run of `script` that no other run has: `train-20260131-142501-3fa2`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(script).stem).lstrip("._-")[:100] or "run"
    return f"{stem}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def run_folder(name: str, runs: Path = RUNS) -> Path:
    """Return the folder of the run `name`, without creating it. Raises `ConfigurationError` for a folder in use."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f'"{name}" is not a name for a run; use letters, digits, dots, dashes and underscores, a letter or digit '
            "first, at most 150 in all"
        )
    folder = runs / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} already holds a run; choose another --name")
    return folder


def write_run(folder: Path, script: Path | None, chosen: Mapping[str, object]) -> None:
    """Make the folder, with a `run.json` of what was `chosen` and of the machine, the versions and the commit.

    The commit is that of the repository the script (None: the current folder) lies in, null outside of one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"cannot make the folder {folder} for the records of this run: {error}") from None
    about = {
        **chosen,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: version_of(package) for package in ("quorate", "torch", "numpy")},
        "interpreter": sys.executable,
        "folder": os.getcwd(),
        "git": _commit(Path.cwd() if script is None else script.resolve().parent),
    }
    try:
        with open(folder / "run.json", "x", encoding="utf-8") as file:
            file.write(json.dumps(about, indent=2) + "\n")
    except FileExistsError:  # another one has begun since the name was checked
        raise ConfigurationError(f"{folder} already holds a run; choose another --name") from None
    except OSError as error:
        raise ConfigurationError(f"cannot write the records of this run into {folder}: {error.strerror}") from None


def new_run_folder(workers: int, *, name: str | None = None, **more: object) -> Path:
    """Make a folder for a run that no launcher of ours has begun: that of the script this process executes.

    It is called `name`, unless that is taken.
    """
    script = Path(sys.argv[0] or "session")
    is_free = name is not None and not (RUNS / name).exists()
    folder = run_folder(name if name is not None and is_free else usual_name(str(script))).resolve()
    about = {"command": list(sys.argv), "script": str(script), "arguments": sys.argv[1:], "workers": workers}
    write_run(folder, script if script.is_file() else None, {**about, "world": "real", **more, "records": str(folder)})
    return folder


def write_outcome(folder: Path, status: int, seconds: float, why: str | None = None) -> None:
    """Keep how the run in `folder` ended, in `outcome.json`: exit status, seconds by the wall clock, and why it failed.

    Written to another name and renamed, so that it is there whole or not at all; on a full disk it is left out.
    """
    about = {
        "status": status,
        "seconds": round(seconds, 3),
        "why": why,
        "ended": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    new = folder / "outcome.json.new"
    try:
        new.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
        new.replace(folder / "outcome.json")
    except OSError:
        pass  # the run itself is what counts


def _commit(folder: Path) -> dict[str, object] | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of git; None if it is not installed, finds no repository, or takes too long."""
    try:
        said = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip()


def is_held(folder: Path) -> bool:
    """Whether a launcher is at work in `folder`; False where that is not known."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


@contextmanager
def held(
    folder: Path, why_not: str = "the run in {} is still going on; wait for it, or end it first"
) -> Iterator[None]:
    """Inside, no other launcher goes to work in `folder`. Raises `ConfigurationError`, `why_not`, where one is at work.

    A file system that knows no locks holds nobody off.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigurationError(why_not.format(folder)) from None
        except OSError:
            pass
        yield
    finally:
        with suppress(OSError):
            os.close(handle)
