"""The options of a verb, each spec once: a field of a dataclass that says its help, its flags and how it is read.

Typer takes functions with one parameter per option; `command` makes one of a function that takes the dataclass.
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

import typer
from typer.models import ArgumentInfo

from quorate.cli.listing import registry
from quorate.cli.names import known_as, setting_known_as
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from
from quorate.report.wording import listed

T = TypeVar("T")

# What several verbs say of an option: its help, and the word for its value.
ARGUMENTS = "Arguments for the script, passed on unchanged."
SETTING = "A setting of the strategy; may be repeated."
WORKLOAD_SETTING = "A setting of the workload; may be repeated."
CONFIG = "Read options from a TOML file; the command line overrides them."
PRINT_CONFIG = "Print the options as TOML for --config, and start nothing."
RELEVANT = "The smallest difference that counts as better or worse (default: 1%)."
N, NUMBER, TIME, WORDS, PAIR, SIZE, RATE = "N", "NUMBER", "TIME", "TEXT", "KEY=VALUE", "BYTES", "BANDWIDTH"
DELAYS, SHARE, SHARES = "DELAYS", "PERCENT%", "static|dynamic"


Value = bool | int | float | str | list["Value"]
_NEXT_SETTING = re.compile(r",(?=\s*[A-Za-z_][\w-]*\s*=)")


def option(
    help: str,
    *flags: str,
    default: Any = None,
    reads: Callable[[str], Any] | None = None,
    eager: Callable[[typer.Context, Any], Any] | None = None,
    metavar: str | None = None,
    needs: str | None = None,
) -> Any:
    """Return a field that is an option: `--` and the field's name, unless `flags` say otherwise.

    `reads` makes the field's value of what is written; `eager` is called before the other options are looked at.
    `metavar` stands for the value in the help. `needs` is the flag, with its value, without which it is an error.
    """
    shown = typer.Option(
        False if default is False else None,
        *flags,
        help=help,
        metavar=metavar,
        callback=eager,
        is_eager=eager is not None,
    )
    return _field(default, shown=shown, reads=reads, needs=needs)


def argument(help: str, metavar: str, default: Any = MISSING, needs: str | None = None) -> Any:
    """Return a field that is an argument after the options; without a `default` it is required."""
    shown = typer.Argument(... if default is MISSING else None, help=help, metavar=metavar)
    return _field(default, shown=shown, needs=needs)


def _field(default: Any, **metadata: Any) -> Any:
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def command(verb: Callable[[typer.Context, Any], T]) -> Callable[..., T]:
    """Return `verb(context, options)` as Typer takes it: with a parameter for each field of `options`."""
    kind = get_type_hints(verb)["options"]
    readers = {spec.name: spec.metadata["reads"] for spec in fields(kind) if spec.metadata.get("reads")}

    def called(context: typer.Context, **written: Any) -> T:
        said = {name: value for name, value in written.items() if value is not None}
        options = kind(**{name: readers[name](v) if name in readers else v for name, v in said.items()})
        _check_needs(options)
        return verb(context, options)

    types, by_name = types_written(kind), inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("context", by_name, annotation=typer.Context)]
    for spec in fields(kind):
        shown = spec.metadata["shown"]
        shown.param_decls = flags_of(spec)  # Typer alone would give a flag its opposite, --no-dry-run
        parameters.append(inspect.Parameter(spec.name, by_name, default=shown, annotation=types[spec.name]))
    vars(called).update(__signature__=inspect.Signature(parameters), options=kind)
    called.__doc__ = verb.__doc__
    return called


def options_class(context: typer.Context) -> type:
    """Return the dataclass of the options of the command that is called."""
    kind: type = vars(context.command.callback)["options"]
    return kind


def types_written(kind: type) -> dict[str, Any]:
    """Return the type of the text or value of each option; text where a reader makes the value."""
    hints = get_type_hints(kind)
    bare = {name: get_args(of)[0] if isinstance(of, UnionType) else of for name, of in hints.items()}
    return {spec.name: str if spec.metadata.get("reads") else bare[spec.name] for spec in fields(kind)}


def flags_of(spec: Field[Any]) -> tuple[str, ...]:
    """Return the flags of an option; none for an argument."""
    shown = spec.metadata["shown"]
    if isinstance(shown, ArgumentInfo):
        return ()
    return tuple(shown.param_decls or ()) or (f"--{spec.name.replace('_', '-')}",)


def flags_given(options: Any, *names: str) -> list[str]:
    """Return the flags of the options among `names` that the user has set."""
    named = [spec for spec in fields(options) if spec.name in names]
    said = [spec for spec in named if getattr(options, spec.name) not in ([], spec.default)]
    return [min(flags_of(spec), key=len, default=str(spec.metadata["shown"].metavar).strip("[.]")) for spec in said]


def same_named(options: Any, kind: type) -> dict[str, Any]:
    """Return the options that have the name of a field of the dataclass `kind`."""
    return {spec.name: getattr(options, spec.name) for spec in fields(kind) if hasattr(options, spec.name)}


def _check_needs(options: Any) -> None:
    names_by_flag = {flag: spec.name for spec in fields(options) for flag in flags_of(spec)}
    for needed in dict.fromkeys(spec.metadata.get("needs") for spec in fields(options)):
        if needed is not None and not flags_given(options, names_by_flag[needed.partition(" ")[0]]):
            names = [spec.name for spec in fields(options) if spec.metadata.get("needs") == needed]
            if alone := flags_given(options, *names):
                raise ConfigurationError(f"{listed(alone)} can be given with {needed} only")


def strategy_from(text: str) -> tuple[str, dict[str, Value]]:
    """Return name and settings in `NAME:key=value,key=value`; NAME may be the path of a strategy's file."""
    name, _, written = text.partition(":")
    name = str(Path(name).resolve()) if name.endswith(".py") else known_as(name, "strategies", "baselines")
    name, _, published = name.partition(":")
    pairs = [pair for pairs in (published, written) if pairs for pair in _NEXT_SETTING.split(pairs)]
    return name, with_seconds(name, settings_from(pairs, f'--strategy "{text}": settings are written key=value, not'))


def durations_of(strategy: str | None) -> set[str]:
    """Return the settings of a strategy of ours that are durations."""
    known = registry("strategies")
    source = known.source(strategy) if strategy is not None and strategy in known else None
    return set() if source is None else {setting.name for setting in source.settings if setting.is_duration}


def with_seconds(strategy: str | None, settings: Mapping[str, Value]) -> dict[str, Value]:
    """Return settings with durations in seconds. Raises `ConfigurationError` for a duration without a unit."""
    durations = durations_of(strategy) if settings else ()
    return {
        name: seconds_from(str(value), f"{name}={value}") if name in durations and value != "null" else value
        for name, value in settings.items()
    }


def settings_from(written: Iterable[str], wrong: str = "--set takes key=value, not") -> dict[str, Value]:
    """Return `key=value` pairs as settings; values as in TOML, else text. The last of equal keys counts."""
    settings = {}
    for pair in written:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f'{wrong} "{pair}"')
        name = key.strip().replace("-", "_")
        settings[name] = setting_known_as(name, _value(text.strip()))
    return settings


def _value(text: str) -> Value:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML; also brackets or numbers without end
        return text
    value = parsed.pop("value")
    return value if not parsed and is_plain(value) else text


def is_plain(value: object) -> bool:
    """Return whether JSON can express a value, as workers receive settings in JSON."""
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return isinstance(value, bool | int | float | str)
