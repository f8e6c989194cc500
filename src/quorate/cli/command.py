"""The command of a verb: its help without Python types, in panels, and words of other launchers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

from typer.core import TyperCommand

from quorate.cli.help_page import EXAMPLES, panels
from quorate.cli.other_launchers import WORKERS, flags_of_command
from quorate.cli.scripts import is_file, mentions
from quorate.core.telling import tell

COMPLETES = "_QUORATE_COMPLETE"
"""The variable by which a shell asks for completions."""
_PYTHON_TYPE = re.compile(r" <\S+>$")
_WIDEST = 30
"""Characters of the longest flags beside which a text begins in the same line."""
_SCRIPTS = ("script", "subject", "model")
"""The arguments that may name a script."""
_NUMBERS = ("-n", "--workers", *WORKERS)
"""Flags for the number of workers."""


class PlainCommand(TyperCommand):
    """A command whose help has no Python types and no brackets."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        if COMPLETES in os.environ:
            from quorate.cli.completion import complete_values

            for parameter in self.params:
                complete_values(parameter)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] SCRIPT [ARGS]...`"""
        arguments = [
            str(parameter.metavar or parameter.name)
            for parameter in self.params
            if parameter.param_type_name == "argument"
        ]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options in panels, and the examples."""
        rows: dict[str, dict[str, tuple[str, str]]] = {"argument": {}, "option": {}}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                row = _PYTHON_TYPE.sub("", record[0]), record[1]
                rows[parameter.param_type_name][str(parameter.name)] = row
        options = rows["option"]
        width = min(_WIDEST, max(len(flags) for flags, _ in options.values()))
        _write(formatter, "Arguments", list(rows["argument"].values()))
        for title, names in panels(self.name, list(options)).items():
            _write(formatter, title, [(options[name][0].ljust(width), options[name][1]) for name in names])
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for example in EXAMPLES[self.name]:
                    formatter.write("".join(f"  {line}\n" for line in example.splitlines()))

    def make_parser(self, ctx: Any) -> Any:
        """Return the parser, which takes the words of other launchers for the number of workers."""
        parser = super().make_parser(ctx)
        for option in self.params:
            if "--workers" in option.opts:
                same = copy(option)
                same.opts = list(WORKERS)
                same.add_to_parser(parser, ctx)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an option after the script is reported."""
        remaining = list(super().parse_args(ctx, args))
        if not ctx.resilient_parsing:
            self._tell_misplaced(ctx)
        return remaining

    def _tell_misplaced(self, ctx: Any) -> None:
        script = next((ctx.params[name] for name in _SCRIPTS if ctx.params.get(name)), None)
        words = ctx.params.get("arguments") or ()
        is_typed = getattr(ctx.get_parameter_source("arguments"), "name", "") == "COMMANDLINE"
        if script is None or not words or not is_typed or not is_file(script):
            return
        sources = (ctx.get_parameter_source(name) for name in ("workers", "virtual", "hosts"))
        numbers = () if any(getattr(source, "name", "") == "COMMANDLINE" for source in sources) else _NUMBERS
        options = self._ours(words, script, numbers)
        if options:
            were, them, are = ("was", "it", "it is") if len(options) == 1 else ("were", "them", "they are")
            place = f"put {them} before {script} if {are} meant for quorate"
            tell(f"quorate: {' and '.join(options)} came after the script and {were} passed to it; {place}\n")

    def _ours(self, words: Sequence[str], script: str, numbers: Collection[str]) -> list[str]:
        """Return the options of ours, with their values, that follow the script directly, and all in `numbers`.

        None that the script mentions itself.
        """
        switches = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        flags = {*flags_of_command(self), *WORKERS}
        options: list[str] = []
        place, is_direct = 0, True
        while place < len(words) and words[place] != "--":
            flag, equals, _ = words[place].partition("=")
            is_ours = flag in (flags if is_direct else numbers) and not mentions(script, flag)
            length = 1 + (is_ours and not equals and flag not in switches)
            options += [" ".join(words[place : place + length])] if is_ours else []
            is_direct &= is_ours
            place += length
        return options


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)
