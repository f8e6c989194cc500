"""Finding the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.report.reading.folders import find_folder, find_run, runs_of
from tests.support.made_records import make_comparison, make_run


def test_a_run_is_found_by_path_and_by_name(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    folder = make_run(runs / "first", steps=1)
    assert find_run(str(folder), runs) == folder
    assert find_run("first", runs) == folder
    assert find_folder("first", runs) == folder


@pytest.mark.parametrize("name", ["secnod", "", "../runs2"])
def test_what_is_not_there_is_refused_with_the_newest(tmp_path: Path, name: str) -> None:
    runs = tmp_path / "runs"
    for age, each in enumerate(["second", "first", *(f"old-{i}" for i in range(20))]):
        (runs / each).mkdir(parents=True)
        os.utime(runs / each, (1e9 - age, 1e9 - age))
    with pytest.raises(ConfigurationError, match=r"The newest: second, first, old-0(, old-\d)*\.$") as refused:
        find_folder(name, runs)
    assert str(refused.value).count("old-") == 8
    assert ('did you mean "second"?' in str(refused.value)) is (name == "secnod")
    with pytest.raises(ConfigurationError, match="The newest: none"):
        find_folder(name, tmp_path / "no-runs")


def test_the_runs_of_a_comparison_are_listed(tmp_path: Path) -> None:
    folder = make_comparison(tmp_path / "compared", seeds=(0, 1), steps=3)
    arms = ("all-reduce", "ddp", "quorum")
    runs = [folder / arm / f"seed-{seed}" for arm in arms for seed in (0, 1)]
    assert runs_of(folder) == runs
    with pytest.raises(ConfigurationError, match="holds a comparison; name one of its runs: ") as refused:
        find_run(str(folder))
    assert str(refused.value).endswith(", ".join(map(str, runs)))
    assert find_run(str(runs[0])) == runs[0]


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no worker has left records in .*: there is no rank-0.jsonl"):
        find_run(str(tmp_path))
    (tmp_path / "compare.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="none yet"):
        find_run(str(tmp_path))
