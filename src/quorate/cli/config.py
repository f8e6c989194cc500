"""`--config FILE` and `--print-config`: the options of a command in a TOML file, checked like those that are typed.

A key is the long name of an option without its dashes (`stop-at-target` or `stop_at_target`), or the name of what
stands after the options (`script`, `subject`, `arguments`); `set` and `workload-set` are tables. What is typed goes
before what the file says.
"""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from quorate.cli.values import is_plain, settings_from
from quorate.core.errors import ConfigurationError, unknown

_NOT_IN_FILES = frozenset(("config", "resume", "print_config", "dry_run", "as_json", "again", "help"))
_LONGEST_FILE = 2**20
"""Bytes."""
_TABLES = frozenset(("settings", "workload_settings"))
_WHOLE = frozenset(("workers", "virtual", "seed", "batch", "evaluations", "steps"))
_NUMBERS = frozenset(("seconds", "epochs", "target", "timeout"))
_INSTEAD = {
    "workers": ("virtual", "compute", "latency", "bandwidth"),
    "virtual": ("workers",),
    "epochs": ("seconds",),
    "seconds": ("epochs", "stops"),
    "stops": ("seconds",),
}
"""What a file says is left out where one of these is typed: they exclude each other."""


@dataclass(frozen=True)
class _Key:
    """One key of the file, and the parameter it stands for."""

    name: str
    parameter: Any

    @property
    def is_list(self) -> bool:
        return bool(getattr(self.parameter, "multiple", False)) or self.parameter.nargs == -1


class ConfiguredCommand(TyperCommand):
    """A command whose options may stand in a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As its base; then what the file says is left out where it does not go with what was typed."""
        rest = list(super().parse_args(ctx, args))
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
        return rest


def read_config(context: typer.Context, path: str | None) -> str | None:
    """The callback of `--config`: what the file says becomes the defaults of the other options.

    Raises `ConfigurationError` for a file that cannot be read, a key that is not known, and a value of another type.
    """
    if path is None:
        return None
    keys = _keys(context)
    said = {}
    for written, value in _read(Path(path)).items():
        name = written.replace("_", "-")
        if name not in keys:
            raise unknown(f"key in {path}", written, keys)
        key = keys[name]
        said[key.parameter.name] = _checked(key, value, path)
    context.default_map = {**(context.default_map or {}), **said}
    return path


def config_text(context: typer.Context) -> str:
    """What was chosen, as TOML for `--config`."""
    lines, tables = [], []
    for key in _keys(context).values():
        value = context.params.get(key.parameter.name)
        if value is None or (value is False and key.name != "higher") or value in ([], ()):
            continue
        if key.parameter.name in _TABLES:
            pairs = settings_from(value)
            tables += ["", f"[{key.name}]", *(f"{_toml_key(name)} = {_toml(one)}" for name, one in pairs.items())]
        else:
            lines.append(f"{key.name} = {_toml(list(value) if isinstance(value, tuple) else value)}")
    return "\n".join([*lines, *tables])


def _keys(context: typer.Context) -> dict[str, _Key]:
    found = {}
    for parameter in context.command.params:
        if parameter.name in _NOT_IN_FILES:
            continue
        longest = max(parameter.opts, key=len)
        name = longest.removeprefix("--") if longest.startswith("--") else str(parameter.name)
        found[name] = _Key(name, parameter)
    return found


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
        raise ConfigurationError(f'--config "{path}" is no TOML: {str(error) or "nested too deeply"}') from None


def _checked(key: _Key, value: object, path: str) -> object:
    """`value` as the option's own default would be given. Raises `ConfigurationError` for another type."""
    if key.parameter.name in _TABLES:
        if isinstance(value, dict) and all(is_plain(one) for one in value.values()):
            return [f"{name}={_toml(one)}" for name, one in value.items()]
        raise _wrong(key, value, path, "a table of plain values, such as wait_for = 1")
    if key.is_list:
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            return value
        raise _wrong(key, value, path, "a list of texts")
    if getattr(key.parameter, "is_flag", False):
        return _of_type(key, value, path, bool, "true or false")
    if key.parameter.name in _WHOLE:
        return _of_type(key, value, path, int, "a whole number")
    if key.parameter.name in _NUMBERS:
        return _of_type(key, value, path, (int, float), "a number")
    if isinstance(value, str):
        return value
    # A list of numbers is typed as a text, such as 1,2,5; `[7]` is `7,`, one seed and not seven.
    numbers = value if isinstance(value, list) else [value]
    if numbers and all(isinstance(one, int | float) and not isinstance(one, bool) for one in numbers):
        return ",".join(map(str, numbers)) + "," * (isinstance(value, list) and len(numbers) == 1)
    raise _wrong(key, value, path, "a text")


def _of_type(key: _Key, value: object, path: str, kind: type | tuple[type, ...], wanted: str) -> object:
    if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
        return value
    raise _wrong(key, value, path, wanted)


def _wrong(key: _Key, value: object, path: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{key.name} in {path} is {value!r}; it should be {wanted}")


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: object) -> str:
    """A plain value as TOML has it."""
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
