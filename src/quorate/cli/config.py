"""`--config FILE` and `--print-config`: the options of a command in a TOML file, checked like any others.

A key is the long name of an option without its dashes (`stop-at-target` or `stop_at_target`), or the name of an
argument (`script`, `subject`, `arguments`). `set` and `workload-set` are tables. Command-line options override the
file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from quorate.cli.command import PlainCommand
from quorate.cli.options import flags_of, is_plain, options_class, settings_from, types_written
from quorate.core.errors import ConfigurationError, unknown

_NOT_IN_FILES = frozenset(("config", "resume", "print_config", "dry_run", "as_json", "again", "help"))
_LONGEST_FILE = 2**20
"""Bytes."""
_TABLES = frozenset(("settings", "workload_settings"))
_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
_INSTEAD = {
    "workers": ("virtual", "compute", "latency", "bandwidth", "hosts", "ssh", "env", "silence"),
    "virtual": ("workers", "hosts", "ssh", "env", "silence"),
    "hosts": ("workers", "virtual", "compute", "latency", "bandwidth"),
    "epochs": ("seconds",),
    "seconds": ("epochs", "stops"),
    "stops": ("seconds",),
}
"""Options of a file that are ignored when the key is on the command line: they exclude each other."""


class ConfiguredCommand(PlainCommand):
    """A command whose options may stand in a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; then drop options of the file that the typed ones exclude."""
        remaining = list(super().parse_args(ctx, args))
        said = ctx.default_map or {}
        typed = {name for name in ctx.params if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE"}
        for name in typed:
            for other in _INSTEAD.get(name, ()):
                if other in said and other not in typed:
                    ctx.params[other] = False if other == "stops" else None
        another = "strategy" in typed and "strategy" in ctx.params and ctx.params["strategy"] != said.get("strategy")
        for name in _TABLES & typed & set(said):
            if not (name == "settings" and another):
                ctx.params[name] = [*said[name], *ctx.params[name]]
        if another and "settings" in said and "settings" not in typed:
            ctx.params["settings"] = None
        return remaining


def read_config(context: typer.Context, path: str | None) -> str | None:
    """Make the options of a file the defaults of the others: the callback of `--config`.

    Raises `ConfigurationError` for a file that cannot be read, a key that is not known, and a value of another type.
    """
    if path is None:
        return None
    keys = _keys(options_class(context))
    types = types_written(options_class(context))
    said = {}
    for written, value in _read(Path(path)).items():
        key = written.replace("_", "-")
        if key not in keys:
            raise unknown(f"key in {path}", written, keys)
        name = keys[key]
        said[name] = _table(key, value, path) if name in _TABLES else _checked(key, types[name], value, path)
    context.default_map = {**(context.default_map or {}), **said}
    return path


def previewed(context: typer.Context, options: Any, plan: Callable[[], str]) -> bool:
    """Print the options for `--print-config`, or the plan for `--dry-run`; return whether nothing is to be started."""
    if options.print_config:
        typer.echo(toml_of(options_class(context), context.params))
    elif options.dry_run:
        typer.echo(plan())
    return bool(options.print_config or options.dry_run)


def toml_of(kind: type, written: Mapping[str, Any]) -> str:
    """Return options of the dataclass `kind`, by name as they were written, as TOML for `--config`."""
    lines, tables = [], []
    for key, name in _keys(kind).items():
        value = written.get(name)
        if value is None or (value is False and key != "higher") or value in ([], ()):
            continue
        if name in _TABLES:
            pairs = settings_from(value)
            tables += ["", f"[{key}]", *(f"{_toml_key(name)} = {_toml(setting)}" for name, setting in pairs.items())]
        else:
            lines.append(f"{key} = {_toml(list(value) if isinstance(value, tuple) else value)}")
    return "\n".join([*lines, *tables])


def _keys(kind: type) -> dict[str, str]:
    """Return field names by key: the long flag without its dashes, or the field's own name."""
    names_by_key = {}
    for option in fields(kind):
        if option.name not in _NOT_IN_FILES:
            longest = max(flags_of(option), key=len, default="").partition("/")[0]
            names_by_key[longest.removeprefix("--") if longest.startswith("--") else option.name] = option.name
    return names_by_key


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST_FILE + 1)
    except (OSError, ValueError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        raise ConfigurationError(f'--config "{path}" cannot be read: {why}') from None
    if len(data) > _LONGEST_FILE:
        raise ConfigurationError(f'--config "{path}" is longer than {_LONGEST_FILE} bytes')
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f'--config "{path}" is not valid TOML: {str(error) or "nested too deeply"}') from None


def _table(key: str, value: object, path: str) -> list[str]:
    """Return a table of the file as `key=value` texts."""
    if isinstance(value, dict) and all(is_plain(item) for item in value.values()):
        return [f"{name}={_toml(item)}" for name, item in value.items()]
    raise _wrong(key, value, path, "a table of plain values, such as wait_for = 1")


def _checked(key: str, kind: Any, value: object, path: str) -> object:
    """Return `value` as it would be typed. Raises `ConfigurationError` for another type than `kind`."""
    from pydantic import TypeAdapter, ValidationError

    numbers = value if isinstance(value, list) else [value]
    if kind is str and numbers and all(type(number) in (int, float) for number in numbers):
        # A list of numbers is typed as a text, such as 1,2,5; `[7]` is `7,`, one seed and not seven.
        return ",".join(map(str, numbers)) + "," * (isinstance(value, list) and len(numbers) == 1)
    try:
        TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError:
        raise _wrong(key, value, path, _WANTED.get(kind, "a list of texts")) from None
    return value


def _wrong(key: str, value: object, path: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{key} in {path} is {value!r}; it should be {wanted}")


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
