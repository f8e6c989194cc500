"""Models of the compute time of one training step of virtual workers, and their names.

A model is any function of (rank, step) that returns seconds. It is called once a step, and its result may not depend
on the schedule: random draws are counter-based, so the same seed gives the same times.
"""

from __future__ import annotations

from quorate.core.durations import Constant, Durations, Sampled, Trace, parse_sampled, parse_trace
from quorate.core.errors import ConfigurationError
from quorate.core.quantities import seconds_from

__all__ = ["ComputeModel", "Constant", "Sampled", "Trace", "parse_compute"]

ComputeModel = Durations
"""Seconds that a step takes: (rank, step) -> seconds; steps count from 0."""

FORMS = (
    "constant:10ms, normal:10ms:2ms, lognormal:10ms:0.5, uniform:5ms:20ms, trace:FILE or trace:NAME, also with :x0.1"
)


def parse_compute(text: str, *, seed: int = 0) -> ComputeModel:
    """Parse a model in one of the `FORMS` of the command line. Raises `ConfigurationError`."""
    match text.split(":"):
        case ["constant", seconds]:
            return Constant(seconds_from(seconds, text))
    model = parse_sampled(text, seed=seed) or parse_trace(text, seed=seed)
    if model is None:
        raise ConfigurationError(f'"{text}" is not a model of compute times; write {FORMS}')
    return model
