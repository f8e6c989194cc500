"""`quorate simulate --records`: the published records of ResNet-50 on ImageNet, each foreseen from data sheets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import typer

from quorate.cli.options import given
from quorate.cli.simulate.options import SimulateOptions
from quorate.cli.simulate.results import Columns, show
from quorate.core.errors import ConfigurationError
from quorate.planning.records import EFFICIENCY, FACTOR, FIXED, RECORDS, Foreseen, foreseen, out_of_order
from quorate.report.wording import listed, number_in_words, seconds_in_words

_ALONE = ("records", "as_json")


def tell_records(options: SimulateOptions) -> int:
    """Show them; the exit status. Raises `ConfigurationError` for options that say something else."""
    others = given(options, *(one.name for one in fields(options) if one.name not in _ALONE))
    if others:
        raise ConfigurationError(
            f"--records predicts the published trainings with their own settings; leave out {listed(others)}"
        )
    found = [foreseen(record) for record in RECORDS]
    if options.as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
        return 0
    show(found, COLUMNS)
    for line in _lines(found):
        typer.echo(line)
    return 0


COLUMNS: Columns[Foreseen] = (
    ("record", lambda one: one.record.who),
    ("devices", lambda one: f"{one.record.devices:,} {one.record.device.name}"),
    ("batch", lambda one: " to ".join(f"{batch:,}" for _, batch in one.record.batches)),
    ("top-1", lambda one: f"{one.record.top1:g}%"),
    ("published", lambda one: seconds_in_words(one.record.seconds)),
    ("foreseen", lambda one: seconds_in_words(one.seconds)),
    ("ratio", lambda one: f"{one.ratio:.2f}"),
    ("a step", lambda one: seconds_in_words(one.step)),
    ("exchange", lambda one: seconds_in_words(one.exchange)),
)


def _lines(found: Sequence[Foreseen]) -> Iterator[str]:
    far = [one.record.who for one in found if not one.is_near]
    yield f"not within a factor of {number_in_words(FACTOR)}: {listed(far) or 'none'}"
    pairs = [f"{slower} and {faster}" for slower, faster in out_of_order(found)]
    yield f"foreseen in another order than published: {'; '.join(pairs) or 'none'}"
    efficiencies = listed([f"{share:.0%} for {family}s" for family, share in EFFICIENCY.items()])
    fixed = seconds_in_words(FIXED["gpu"])
    yield f"fitted: an efficiency of {efficiencies}, and {fixed} of each step on gpus; all else is published or assumed"


def _as_json(found: Sequence[Foreseen]) -> dict[str, Any]:
    return {
        "records": [
            {
                "who": one.record.who,
                "device": one.record.device.name,
                "devices": one.record.devices,
                "batches": [list(pair) for pair in one.record.batches],
                "epochs": one.record.epochs,
                "top1": one.record.top1,
                "published_seconds": one.record.seconds,
                "foreseen_seconds": one.seconds,
                "ratio": one.ratio,
                "is_near": one.is_near,
                "step_seconds": one.step,
                "exchange_seconds": one.exchange,
            }
            for one in found
        ],
        "out_of_order": [list(pair) for pair in out_of_order(found)],
        "efficiency": dict(EFFICIENCY),
        "fixed_seconds": dict(FIXED),
    }
