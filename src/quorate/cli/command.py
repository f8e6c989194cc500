"""The command of a verb: its help without Python types, in panels, and words of other launchers."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from copy import copy
from typing import Any

from typer.core import TyperCommand

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
_PANELS = {
    "Workers": "workers sizes hosts ssh env silence no_fork",
    "Virtual workers": "virtual compute latency bandwidth",
    "The machine": "memory networks coding per_host host_network ways cores flops efficiency memory_bandwidth rates",
    "Strategy": "strategy strategies baseline settings attack tune servers",
    "Uneven workers": "imbalance imbalances pace",
    "Failures, and workers that join": "failures chaos restart max_joins leave_within recovery learners",
    "Model in pieces": "mesh zero offload shards fits limits no_overlap tries",
    "Data, length and quality": (
        "real workload_settings share seed seeds batch parameters steps epochs seconds target stops metric "
        "metric_pattern higher relevant evaluations timeout"
    ),
    "Several numbers of workers": "scale scaling price",
    "What the training costs": "examples tokens buy years upkeep occupancy power energy carbon",
    "Recorded runs": "like check records",
    "Records and progress": "name resume again picture log no_progress watch",
    "Other options": "is_module runs_as config print_config dry_run as_json help",
}
_BY_NAME = {name: panel for panel, names in _PANELS.items() for name in names.split()}
_OF_PLAN = {"bandwidth": "The machine", "latency": "The machine", "price": "What the training costs"}
"""The panels of `quorate plan` for options that mean something else elsewhere."""
_FEW = 9
"""The most options that are shown in one panel."""
EXAMPLES = {
    "run": (
        "quorate run -n 4 train.py --lr 0.1",
        "quorate run -n 4 --strategy eager-majority --imbalance one-of:100ms train.py",
        "quorate run --hosts first:4,second:4 train.py",
    ),
    "join": (
        "quorate join train-1",
        "quorate join runs/train-1 -n 2",
        "quorate join train-1 --timeout 300s",
    ),
    "compare": (
        "quorate compare digits",
        "quorate compare digits -n 4 --baseline ddp --strategy eager-solo",
        "quorate compare -n 4 --strategy quorum:wait_for=3 --metric accuracy train.py",
    ),
    "simulate": (
        "quorate simulate -n 8,64,512 --imbalance one-of:20ms",
        "quorate simulate --like train-1 --strategy quorum -n 64",
        "quorate simulate --failures mtbf=1y,repair=30min -n 100000 --learners 1,8",
    ),
    "plan": (
        "quorate plan -n 8 --memory 24GB --bandwidth 10Gbit train.py",
        "quorate plan -n 4 --memory 8GB --bandwidth 10Gbit --try 3 train.py",
        "quorate plan -n 8 --memory 80GB --bandwidth 400Gbit --flops 300T --batch 64 \\\n"
        "    --tokens 20G --price 2.5/h --buy 14000 \\\n"
        "    gpt:hidden=1024,layers=12,heads=16,sequence=1024,vocabulary=50000",
    ),
    "replay": (
        "quorate replay train-1",
        "quorate replay train-1 --virtual",
        "quorate replay runs/train-1 --name again",
    ),
    "report": (
        "quorate report compare-digits-1",
        "quorate report runs/train-1 --json",
        "quorate report compare-digits-1 --relevant 0.5%",
    ),
    "list": ("quorate list", "quorate list strategies", "quorate list --json"),
    "explain": (
        "quorate explain eager-solo",
        "quorate explain random:degree=3 -n 16",
        "quorate explain halving-doubling -n 6",
    ),
    "migrate": (
        "quorate migrate ds_config.json",
        "quorate migrate ds_config.json --json",
        "quorate migrate configs/ds_zero3.json",
    ),
    "trace": (
        "quorate trace train-1",
        "quorate trace train-1 --output timeline.json.gz",
        "quorate trace train-1 --json",
    ),
    "watch": ("quorate watch train-1", "quorate watch --text train-1", "quorate watch --port 8000 train-1"),
    "bench": (
        "quorate bench -n 4",
        "quorate bench --hosts first:2,second:2 all-reduce round",
        "quorate bench -n 2 --from 1MiB --to 256MiB --picture rates.svg",
    ),
    "tune": (
        "quorate tune -n 2 train.py",
        "quorate tune -n 4 --to fast.toml --picture parts.svg train.py",
        "quorate tune --virtual 8 --latency 2ms --bandwidth 10Gbit train.py",
    ),
    "pack": (
        "quorate pack model.safetensors",
        "quorate pack model.safetensors --output small.safetensors",
        "quorate pack model.safetensors --json",
    ),
    "unpack": (
        "quorate unpack model.packed.safetensors",
        "quorate unpack model.packed.safetensors --output model.safetensors",
        "quorate unpack small.safetensors --output full.safetensors --json",
    ),
    "doctor": (
        "quorate doctor --hosts first,second --bandwidth",
        "quorate doctor --memory --fits 24GB train.py",
        "quorate doctor --cost -n 64 train.py",
    ),
}


def panels(verb: str | None, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the `names` of a verb's options by the title of their panel, in the order of the panels."""
    if len(names) <= _FEW:
        return {"Options": list(names)}
    by_name = {**_BY_NAME, **_OF_PLAN} if verb == "plan" else _BY_NAME
    rows = {title: [name for name in names if by_name.get(name, "Other options") == title] for title in _PANELS}
    return {title: members for title, members in rows.items() if members}


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
