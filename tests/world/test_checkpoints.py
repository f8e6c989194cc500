"""Checkpoints of real processes: killed anywhere, also while one is being written, a training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.kills_and_resumes import survive


@pytest.mark.parametrize(("strategy", "kills"), [("all-reduce", 2), ("quorum", 2)])
def test_killed_anywhere_it_goes_on(strategy: str, kills: int, tmp_path: Path) -> None:
    survive(kills, tmp_path, strategy=strategy)
