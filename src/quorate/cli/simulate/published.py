"""`quorate simulate --records`: the published records of ResNet-50 on ImageNet, each predicted from data sheets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import typer

from quorate.cli.options import flags_given
from quorate.cli.simulate.plan import SimulateOptions
from quorate.cli.simulate.results import Columns, show
from quorate.cli.tables import echo_text
from quorate.core.errors import ConfigurationError
from quorate.planning.records import EFFICIENCY, FACTOR, FIXED, RECORDS, Foreseen, foreseen, out_of_order
from quorate.report.wording import listed, number_in_words, seconds_in_words

_ALONE = ("records", "as_json")


def tell_records(options: SimulateOptions) -> int:
    """Print the predictions; return the exit status. Raises `ConfigurationError` for options with no effect here."""
    others = flags_given(options, *(option.name for option in fields(options) if option.name not in _ALONE))
    if others:
        raise ConfigurationError(
            f"--records predicts the published trainings with their own settings; leave out {listed(others)}"
        )
    predictions = [foreseen(record) for record in RECORDS]
    if options.as_json:
        typer.echo(json.dumps(_as_json(predictions), indent=2))
        return 0
    show(predictions, COLUMNS)
    for line in _lines(predictions):
        echo_text(line)
    return 0


COLUMNS: Columns[Foreseen] = (
    ("record", lambda prediction: prediction.record.who),
    ("devices", lambda prediction: f"{prediction.record.devices:,} {prediction.record.device.name}"),
    ("batch", lambda prediction: " to ".join(f"{batch:,}" for _, batch in prediction.record.batches)),
    ("top-1", lambda prediction: f"{prediction.record.top1:g}%"),
    ("published", lambda prediction: seconds_in_words(prediction.record.seconds)),
    ("foreseen", lambda prediction: seconds_in_words(prediction.seconds)),
    ("ratio", lambda prediction: f"{prediction.ratio:.2f}"),
    ("a step", lambda prediction: seconds_in_words(prediction.step)),
    ("exchange", lambda prediction: seconds_in_words(prediction.exchange)),
)


def _lines(predictions: Sequence[Foreseen]) -> Iterator[str]:
    far = [prediction.record.who for prediction in predictions if not prediction.is_near]
    yield f"not within a factor of {number_in_words(FACTOR)}: {listed(far) or 'none'}"
    pairs = [f"{slower} and {faster}" for slower, faster in out_of_order(predictions)]
    yield f"predicted in another order than published: {'; '.join(pairs) or 'none'}"
    efficiencies = listed([f"{share:.0%} for {family}s" for family, share in EFFICIENCY.items()])
    fixed = seconds_in_words(FIXED["gpu"])
    yield f"fitted: an efficiency of {efficiencies}, and {fixed} of each step on gpus; all else is published or assumed"


def _as_json(predictions: Sequence[Foreseen]) -> dict[str, Any]:
    return {
        "records": [
            {
                "who": prediction.record.who,
                "device": prediction.record.device.name,
                "devices": prediction.record.devices,
                "batches": [list(pair) for pair in prediction.record.batches],
                "epochs": prediction.record.epochs,
                "top1": prediction.record.top1,
                "published_seconds": prediction.record.seconds,
                "foreseen_seconds": prediction.seconds,
                "ratio": prediction.ratio,
                "is_near": prediction.is_near,
                "step_seconds": prediction.step,
                "exchange_seconds": prediction.exchange,
            }
            for prediction in predictions
        ],
        "out_of_order": [list(pair) for pair in out_of_order(predictions)],
        "efficiency": dict(EFFICIENCY),
        "fixed_seconds": dict(FIXED),
    }
