"""What is copied into event files: all that the script logs, and now and then what comes with every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quorate.launch.worker.tensorboard import EventFiles
from tests.unit.core.test_live_figures import taken
from tests.unit.report.test_goodput import GONE, start, steps


class Scalars:
    """In the place of TensorBoard's writer."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.found.setdefault(name, []).append((step, value))

    def close(self) -> None:
        """Nothing is open."""


def written(folder: Path, *rows: dict[str, Any], **settings: Any) -> dict[str, list[tuple[int, float]]]:
    files = EventFiles(folder)
    files._writer = scalars = Scalars()
    for row in (*start(0, settings, apart=bool(settings)), *rows):
        files.row(row)
    files.close()
    return scalars.found


def often(count: int) -> list[dict[str, Any]]:
    """Ten steps a second."""
    return [{**row, "loss": 1.0} for row in steps(*((n / 10, n / 10 + 0.1) for n in range(count)))]


def test_losses_come_four_times_a_second_and_the_last_one(tmp_path: Path) -> None:
    assert written(tmp_path, *often(8)) == {"loss": [(1, 1.0), (4, 1.0), (7, 1.0), (8, 1.0)]}


def test_merges_and_outer_steps_are_written_with_the_step(tmp_path: Path) -> None:
    outer = {"kind": "outer", "time": 2.1, "rho": 0.5, "gain": 3.0}
    found = written(tmp_path, *often(3), taken(1, window=0.25), outer, fragments=2)
    assert {name: found[f"quorate/{name}"] for name in ("merge age", "merged", "window", "rho", "gain")} == {
        "merge age": [(3, 0.0)],
        "merged": [(3, 2.0)],
        "window": [(3, 0.25)],
        "rho": [(3, 0.5)],
        "gain": [(3, 3.0)],
    }
    assert found["quorate/share of rank 1"] == [(3, 0.75)]


def test_the_goodput_is_written_once_a_worker_has_died(tmp_path: Path) -> None:
    assert "quorate/goodput" not in written(tmp_path, *often(8))
    found = written(tmp_path, *often(4), GONE, *often(8)[4:])
    ((_, first), *_, (step, last)) = found["quorate/goodput"]
    assert step == 8 and last < first < 1.0
