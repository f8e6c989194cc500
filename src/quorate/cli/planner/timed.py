"""The blocks of a script as one process times them: as they are, and as they run in a model in shards."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from quorate.cli.doctor.memory import measured
from quorate.launch.warm.steps import STEPS
from quorate.sharding.allocator import AS_IN_SHARDS

_PROGRAM = (sys.executable, "-m", "quorate.launch.warm.timing")


def timed(script: str, arguments: Sequence[str]) -> dict[str, Any]:
    """What `launch.warm.timing` finds, and `mapped` among its times. Raises as `measured`."""
    told = measured(script, arguments, program=_PROGRAM, steps=STEPS)
    in_shards = measured(script, arguments, program=_PROGRAM, steps=STEPS, environment=AS_IN_SHARDS)
    told["times"]["mapped"] = mapped(told["times"], in_shards["times"])
    return told


def mapped(times: Mapping[str, Any], in_shards: Mapping[str, Any]) -> tuple[float, float]:
    """How many times as long forward and backward passes take where large tensors are mappings of their own; not less
    than 1."""
    before, since = (
        [sum(seconds[way] for seconds in one["blocks"].values()) + one["rest"][way] for way in (0, 1)]
        for one in (times, in_shards)
    )
    found = [max(1.0, new / old) if old > 0 else 1.0 for old, new in zip(before, since, strict=True)]
    return found[0], found[1]
