"""Checks of a script before any process starts: whether it exists, and whether it is Python."""

from __future__ import annotations

import ast
import difflib
import re
import sys
import warnings
import zipfile
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from itertools import islice
from pathlib import Path

from quorate.core.errors import ConfigurationError

_USUAL = "all-reduce"
"""The strategy of a script that names none."""
_FILES = 1000
"""The most scripts in a folder among which a similar name is looked for."""


def is_file(name: str) -> bool:
    """Return whether a file of this name exists; False for an impossible name."""
    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def mentions(script: str, flag: str) -> bool:
    """Return whether the source of a script has an option: the flag in quotes, or the word of a long one."""
    source = Path(script).read_text(encoding="utf-8", errors="replace")
    word = re.escape(flag.lstrip("-")).replace(r"\-", "[-_]")
    return (
        re.search(rf"['\"]{re.escape(flag)}['\"]" + (rf"|\b{word}\b" if flag[:2] == "--" else ""), source) is not None
    )


def check_script(name: str) -> None:
    """Raise `ConfigurationError` for a script that does not exist, cannot be read, or is not Python.

    Compiled and not run; archives and bytecode are left to the interpreter.
    """
    if not is_file(name):
        is_folder = bool(name) and len(name) < 256 and Path(name).is_dir()
        reason = f'"{name}" is a folder, not a script' if is_folder else f'there is no script "{name}"'
        raise ConfigurationError(f"{reason} (looked in {Path.cwd()}){_hint(name)}")
    if name.endswith(".pyc") or zipfile.is_zipfile(name):
        return
    try:
        source = Path(name).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", dont_inherit=True)
    except OSError as error:
        raise ConfigurationError(f'the script "{name}" cannot be read: {error.strerror or error}') from None
    except SyntaxError as error:
        line = "" if error.lineno is None else f", line {error.lineno}"
        raise ConfigurationError(f'"{name}" is not a valid Python script: {error.msg}{line}') from None
    except ValueError as error:  # null bytes
        raise ConfigurationError(f'"{name}" is not a valid Python script: {error}') from None
    except (RecursionError, MemoryError):
        raise ConfigurationError(f'"{name}" is not a valid Python script: it is nested too deeply') from None


def _hint(name: str) -> str:
    """Return the script of a similar name in the same folder, as a question; nothing without one."""
    folder, _, file = name.rpartition("/")
    try:
        names = [path.name for path in islice(Path(folder or ".").glob("*.py"), _FILES) if path.is_file()]
    except (OSError, ValueError):
        return ""
    near = [f"{file}.py"] if f"{file}.py" in names else difflib.get_close_matches(file, names, n=1)
    return f'; did you mean "{name[: -len(file)]}{near[0]}"?' if near and file else ""


def strategy_in(script: str) -> str | None:
    """Return the strategy that a script names where it calls `distribute`; None for several or a computed one."""
    try:
        tree = ast.parse(Path(script).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {_strategy_of(call) for call in calls if ast.unparse(call.func) in ("quorate.distribute", "distribute")}
    return names.pop() if len(names) == 1 else None


def _strategy_of(call: ast.Call) -> str | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "strategy"]
    strategy = next(iter((*named, *call.args[2:3])), ast.Constant(_USUAL))
    return strategy.value if isinstance(strategy, ast.Constant) and isinstance(strategy.value, str) else None


def check_module(name: str) -> None:
    """Raise `ConfigurationError` for a missing module. Imports nothing: of `a.b` only `a` is looked for."""
    top = name.partition(".")[0]
    is_name = all(part.isidentifier() for part in name.split("."))
    path = [str(Path.cwd()), *sys.path]
    if not is_name or not any(
        spec is not None
        for spec in (BuiltinImporter.find_spec(top), FrozenImporter.find_spec(top), PathFinder.find_spec(top, path))
    ):
        raise ConfigurationError(f'there is no module "{name}" (looked in {Path.cwd()} and where Python does)')


def own_strategy(name: str) -> str:
    """Return, in words, how the workers of a script agree where no strategy was asked for, as far as its text says."""
    text = Path(name).read_bytes() if is_file(name) else b""
    is_ddp = b"DistributedDataParallel" in text and b"quorate" not in text
    return "the script's own DistributedDataParallel" if is_ddp else "the script's own"
