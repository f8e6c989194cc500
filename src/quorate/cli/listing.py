"""`quorate list`: all names, with one line each, without an import of the objects."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from quorate.cli.tables import text_table, text_width
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
    "patterns": "quorate.attention.names:patterns",
}
"""The families of names, in the order they are shown, and where their registries lie."""

GROUPS = {
    "synchronous": ("all-reduce", "backup-workers", "sync-backup", "one-bit-adam", "one-bit-lamb", "auto"),
    "quorums: late gradients count in a later step": (
        "eager-solo", "eager-majority", "quorum", "adaptive", "bounded-staleness",
    ),
    "local steps: workers communicate every few steps": (
        "local-sgd", "post-local-sgd", "adaptive-local-sgd", "hierarchical-local-sgd", "eager-averaging", "slowmo",
        "diloco", "streaming-diloco", "muloco", "sparse-loco", "decoupled-diloco", "async-local-sgd",
        "zero-one-adam",
    ),
    "gossip: workers average with neighbours": (
        "d-psgd", "d2", "ad-psgd", "sgp", "osgp", "relay", "noloco", "group-averaging", "choco-sgd", "dcd-psgd",
        "ecd-psgd",
    ),
    "servers and shared memory": (
        "parameter-server", "ssp", "downpour", "dana", "dc-asgd", "easgd", "eamsgd", "symmetric-easgd", "hogwild",
    ),
    "federated: data stays with clients": ("fed-avg", "fed-prox", "fed-opt", "scaffold", "fed-buff"),
    "robust and coded: wrong or missing gradients": ("robust", "detox", "draco", "gradient-coding"),
}  # fmt: skip
"""The strategies of the package by the way in which workers communicate."""
FIRST = ("all-reduce", "eager-majority", "local-sgd")
"""Strategies to begin with."""


def list_names(
    family: Annotated[
        str | None, typer.Argument(help=f"One of: {', '.join(FAMILIES)}.", show_default=False, metavar="[FAMILY]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List all names: strategies, baselines, workloads, traces, topologies, codecs, reducers, rules, patterns."""
    if family is not None and family not in FAMILIES:
        raise unknown("family", family, FAMILIES)
    families = {kind: registry(kind) for kind in FAMILIES if family in (None, kind)}
    shown = {kind: {name: names.summary(name) for name in names} for kind, names in families.items()}
    if as_json:
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    for kind, summaries in shown.items():
        typer.echo(kind)
        for line in _lines(kind, summaries):
            typer.echo(line)
        typer.echo()
    typer.echo("quorate explain NAME says more.")


def _lines(kind: str, summaries: Mapping[str, str]) -> Iterator[str]:
    if kind == "workloads":
        summaries = {name: f"{summary} {costs_of(name)}".rstrip() for name, summary in summaries.items()}
    if kind != "strategies":
        yield from text_table(list(summaries.items()), text_width())
        return
    for title, names in GROUPS.items():
        rows = [(name, f"{'Start here. ' * (name in FIRST)}{summaries[name]}") for name in names]
        yield from (f"\n  {title}", *text_table(rows, text_width(), indent="    "))


def costs_of(workload: str) -> str:
    """Return the quality of a workload, its baseline and cost, and the kind of its imbalance; of a script's own, ""."""
    source = registry("workloads").source(workload)
    facts = {} if source is None else {name: value_of(written) for name, written in source.facts}
    if not facts.get("cost"):
        return ""
    return (
        f"Quality: {facts['headline']} (without learning {facts['baseline']}). A step: {facts['cost']}. "
        f"Imbalance: {facts['imbalance']}."
    )


def value_of(written: str) -> Any:
    """Return the value of a source text if JSON can express it, else the text."""
    try:
        value = ast.literal_eval(written)
        json.dumps(value)
    except (ValueError, TypeError):
        return written
    return value


def registry(family: str) -> Registry[Any]:
    """Return the registry of one family."""
    module, _, attribute = FAMILIES[family].partition(":")
    names: Registry[Any] = getattr(importlib.import_module(module), attribute)
    return names
