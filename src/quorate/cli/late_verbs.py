"""Verbs that are imported when they are called, as each needs other modules.

`quorate --help` then imports none of them, and a wrong argument only its own verb.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup


@dataclass(frozen=True)
class Verb:
    """One verb: `module:name` of its function and of its command's class; `--help` shows `summary`."""

    function: str
    command: str
    summary: str
    has_script: bool = False
    """Whether words after the script are arguments of the script."""

    def made(self, name: str) -> Any:
        """Return the command of this verb."""
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        more: Any = {"context_settings": {"allow_interspersed_args": False}} if self.has_script else {}
        app.command(name, cls=_imported(self.command), short_help=self.summary, **more)(_imported(self.function))
        return typer.main.get_command(app)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


class _Commands(Mapping[str, Any]):
    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self._verbs = verbs
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._verbs[name].made(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._verbs)

    def __len__(self) -> int:
        return len(self._verbs)


def group_of(verbs: Mapping[str, Verb]) -> type[TyperGroup]:
    """Return a group of these verbs."""

    class Verbs(TyperGroup):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.commands: Any = _Commands(verbs)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, verb.summary) for name, verb in verbs.items()])

    return Verbs
