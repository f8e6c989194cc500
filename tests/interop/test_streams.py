"""Streams of other libraries, on real processes: interrupted, and continued by another number of workers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.support import stream_training
from tests.support.libraries import needs, run

pytestmark = needs("datasets", "torchdata", "webdataset")
SCRIPT = str(ROOT / "tests" / "support" / "stream_training.py")
LIBRARIES = (
    "datasets",
    "datasets of one shard",
    "datasets mixed",
    "datasets by node",
    "webdataset",
    "torchdata",
    "nodes",
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_example_is_computed_once(
    library: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream_training.write_archives()
    words = ("--strategy", strategy, "--name", "first")
    run(tmp_path, "-n", "2", *words, SCRIPT, library, "4", "first", "{}")
    run(tmp_path, "--resume", "first", "-n", "3", SCRIPT, library, "0", "second", "{}")
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("*-*.json")]
    assert len(seen) == 5
    assert Counter(number for worker in seen for number in worker) == Counter(range(stream_training.COUNT))
