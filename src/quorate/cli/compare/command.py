"""The parser of the command line of `quorate compare`."""

from __future__ import annotations

import re
from typing import Any

from quorate.cli.config import ConfiguredCommand
from quorate.cli.listing import registry
from quorate.compare.plan import LEARNING_RATES

TUNE = "--tune-lr"
USUAL_FACTORS = ",".join(f"{factor:g}" for factor in LEARNING_RATES)
_FACTORS = re.compile(r"[0-9.eE,+-]+")


class CompareCommand(ConfiguredCommand):
    """A command with an optional value of `--tune-lr`, and with options after the name of a workload."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; `--tune-lr` without a list of numbers gets the default factors."""
        place = self._subject(args)
        if place is not None and args[place] in registry("workloads"):
            args = [*args[:place], *args[place + 1 :], args[place]]
        for number, word in enumerate(args):
            if word == TUNE and not (number + 1 < len(args) and _FACTORS.fullmatch(args[number + 1])):
                args = [*args[:number], f"{TUNE}={USUAL_FACTORS}", *args[number + 1 :]]
                break
        return super().parse_args(ctx, args)

    def _subject(self, args: list[str]) -> int | None:
        """Return the index of the first word that is neither an option nor the value of one."""
        flags = {name for option in self.params if getattr(option, "is_flag", False) for name in option.opts}
        place = 0
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            has_value = "=" not in args[place] and args[place] not in (*flags, "--lower", "--help")
            if args[place] == TUNE:
                has_value = place + 1 < len(args) and _FACTORS.fullmatch(args[place + 1]) is not None
            place += 1 + has_value
        return place if place < len(args) and args[place] != "--" else None
