"""Several numbers of workers: what is run for each, and that `scaling.json` says all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.compare.plan import Arm, Comparison, Subject
from quorate.compare.scaling import Scaling, cells_of, keep, read_scaling_plan, told_in
from quorate.core.errors import ConfigurationError
from quorate.launch.run.folder import SCALING

BASE = Comparison(
    subject=Subject(kind="workload", name="digits"), metric=None, workers=2, world="real",
    arms=(Arm.of("all-reduce", {}),), seeds=(0,),
)  # fmt: skip


def test_the_batch_of_each_or_of_all_stays() -> None:
    cells = list(cells_of(BASE, (2, 4, 8), ("weak", "strong"), 32))
    assert [(cell.folder, cell.plan.workers, cell.plan.batch) for cell in cells] == [
        ("weak-2", 2, None), ("weak-4", 4, None), ("weak-8", 8, None),
        ("weak-2", 2, None), ("strong-4", 4, 16), ("strong-8", 8, 8),
    ]  # fmt: skip
    assert [cell.folder for cell in cells_of(BASE, (2, 4), ("strong",), 32)] == ["strong-2", "strong-4"]
    with pytest.raises(ConfigurationError, match="3 workers cannot share a batch of 64 examples evenly"):
        list(cells_of(BASE, (2, 3), ("strong",), 32))


def test_what_is_written_can_be_read_again(tmp_path: Path) -> None:
    cells = tuple(cells_of(BASE, (2, 4), ("weak", "strong"), 32))
    scaling = Scaling(cells=cells, simulated=[16], price=0.5, epochs=3)
    scaling.write(tmp_path, "a title", ["quorate"])
    again = read_scaling_plan(tmp_path)
    assert again.as_json("") == scaling.as_json("")
    assert [cell.plan.as_json() for cell in again.cells] == [
        json.loads(json.dumps(cell.plan.as_json())) for cell in cells
    ]
    assert scaling.workers == (2, 4, 16) and scaling.most().folder == "weak-4"
    keep(tmp_path, {"simulated": [{"workers": 16}]})
    content = told_in(tmp_path)
    assert (content["title"], content["command"], content["simulated"]) == ("a title", ["quorate"], [{"workers": 16}])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "rows": [1]}'])
def test_what_is_damaged_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / SCALING).write_text(text)
    with pytest.raises(ConfigurationError, match=r"scaling\.json"):
        read_scaling_plan(tmp_path)


def test_each_number_is_a_comparison(tmp_path: Path) -> None:
    Scaling(cells=tuple(cells_of(BASE, (2, 4), ("weak",), None))).write(tmp_path, "x", [])
    assert [json.loads((tmp_path / f"weak-{n}" / "compare.json").read_text())["workers"] for n in (2, 4)] == [2, 4]
