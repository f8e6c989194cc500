"""`quorate list`: all names, with one line each, without an import of the objects."""

from __future__ import annotations

import importlib
import json
from typing import Annotated, Any

import typer

from quorate.core.errors import unknown
from quorate.core.registry import Registry

FAMILIES = {
    "strategies": "quorate.strategies:strategies",
    "baselines": "quorate.launch.worker.baselines:baselines",
    "workloads": "quorate.workloads:workloads",
    "traces": "quorate.core.durations:traces",
    "topologies": "quorate.gossip.topology:topologies",
    "codecs": "quorate.codecs:codecs",
    "reducers": "quorate.means:reducers",
    "rules": "quorate.aggregation:rules",
}
"""The families of names, in the order they are shown, and where their registries lie."""


def list_names(
    family: Annotated[
        str | None, typer.Argument(help=f"One of: {', '.join(FAMILIES)}.", show_default=False, metavar="[FAMILY]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List all names: strategies, baselines, workloads, traces, topologies, codecs, reducers, rules."""
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    shown = {name: _summaries(registry(name)) for name in FAMILIES if family in (None, name)}
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    width = max((len(name) for names in shown.values() for name in names), default=0)
    for kind, names in shown.items():
        typer.echo(kind)
        for name, summary in names.items():
            typer.echo(f"  {name:<{width}}  {summary}".rstrip())


def registry(family: str) -> Registry[Any]:
    """Return the registry of one family."""
    module, _, attribute = FAMILIES[family].partition(":")
    names: Registry[Any] = getattr(importlib.import_module(module), attribute)
    return names


def _summaries(names: Registry[Any]) -> dict[str, str]:
    return {name: names.summary(name) for name in names}
