"""The help of a verb, in a user's words: arguments as they are written, without Python's types and without brackets."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

_PYTHON_TYPE = re.compile(r" <\S+>$")


class PlainCommand(TyperCommand):
    """A command whose help has no Python types and no brackets."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS] SCRIPT [ARGS]...`"""
        arguments = [
            str(parameter.metavar or parameter.name)
            for parameter in self.params
            if parameter.param_type_name == "argument"
        ]
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then the options."""
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                rows[parameter.param_type_name].append((_PYTHON_TYPE.sub("", record[0]), record[1]))
        for title, entries in (("Arguments", rows["argument"]), ("Options", rows["option"])):
            if entries:
                with formatter.section(title):
                    formatter.write_dl(entries)
