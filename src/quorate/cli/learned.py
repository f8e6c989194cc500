"""The passes over the data that strategies need, as a comparison has measured them: `--learned FOLDER`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quorate.core.errors import ConfigurationError

_SUMMARY = "summary.json"


def learned_from(name: str) -> dict[str, float]:
    """Return, by name of the arm, its examples to the target over those of the baseline of a comparison.

    `name` is its folder, or its name under runs. An arm that missed the target has infinity. Raises
    `ConfigurationError` where there is no comparison with a target that the baseline has reached.
    """
    path = next((place / _SUMMARY for place in (Path(name), Path("runs", name)) if (place / _SUMMARY).is_file()), None)
    if path is None:
        raise ConfigurationError(
            f"--learned {name}: there is no finished comparison of this name; quorate compare --target makes one"
        )
    summary: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    examples = {arm["name"]: _examples(arm) for arm in summary["arms"]}
    baseline = next((arm["name"] for arm in summary["arms"] if arm["is_baseline"]), None)
    least = None if baseline is None else examples[baseline]
    if summary.get("target") is None or least is None or not math.isfinite(least):
        raise ConfigurationError(
            f"--learned {name}: it does not say how many examples its baseline needs to a target; "
            "compare with --target and a baseline that reaches it"
        )
    return {arm: count / least for arm, count in examples.items() if count is not None}


def _examples(arm: Mapping[str, Any]) -> float | None:
    """Return the examples until the target, infinity if no run reached it, and None if there was none."""
    seconds, rate, reached = arm["time_to_target"], arm["examples_per_second"], arm["target_reached"]
    if reached is None or rate is None:
        return None
    if not reached[0] or seconds is None:
        return math.inf
    return float(seconds["mean"] * rate["mean"])


def passes_of(text: str, strategy: str, learned: Mapping[str, float]) -> float | None:
    """Return the passes of a strategy, written with its settings or named as an arm; None if it was not compared."""
    name = text.replace(":", "-").replace(",", "-")
    return learned.get(text, learned.get(name, learned.get(strategy) if text == strategy else None))
