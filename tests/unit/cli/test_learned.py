"""The passes that strategies need, from a comparison with a target."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.learned import learned_from, passes_of
from quorate.core.errors import ConfigurationError


def arm(
    name: str, seconds: float | None, rate: float, reached: tuple[int, int] | None, **others: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "is_baseline": others.get("is_baseline", False),
        "time_to_target": None if seconds is None else {"mean": seconds},
        "examples_per_second": {"mean": rate},
        "target_reached": reached,
    }


def write(folder: Path, *arms: dict[str, Any], target: float | None = 0.9) -> None:
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps({"target": target, "arms": arms}))


BASELINE = arm("all-reduce", 10.0, 100.0, (3, 3), is_baseline=True)


def test_examples_to_the_target_over_those_of_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    others = (
        arm("local-sgd-sync_every=8", 5.0, 300.0, (3, 3)),
        arm("sgp", None, 300.0, (0, 3)),
        arm("x", None, 1.0, None),
    )
    write(Path("runs", "one"), BASELINE, *others)
    learned = learned_from("one")
    assert learned == {"all-reduce": 1.0, "local-sgd-sync_every=8": 1.5, "sgp": math.inf}
    assert passes_of("local-sgd-sync_every=8", "local-sgd", learned) == 1.5
    assert passes_of("local-sgd:sync_every=8", "local-sgd", learned) == 1.5
    assert passes_of("quorum", "quorum", learned) is None
    assert learned_from("runs/one") == learned


def test_a_comparison_without_a_target_says_nothing(tmp_path: Path) -> None:
    write(tmp_path / "none", BASELINE, target=None)
    write(tmp_path / "missed", arm("all-reduce", None, 1.0, (0, 3), is_baseline=True))
    for name in ("none", "missed"):
        with pytest.raises(ConfigurationError, match="does not say how many examples its baseline needs"):
            learned_from(str(tmp_path / name))
