"""Streams of other libraries, on real processes: interrupted, and continued by another number of workers."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.support import stream_training
from tests.support.libraries import PYTHON, STREAMING, TIMM, needs, run, skipped

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
    pytest.param("streaming", marks=skipped("streaming")),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["all-reduce", "eager-majority"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_example_is_computed_once(
    library: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [STREAMING, TIMM] if library == "streaming" else []
    if library == "streaming":
        write = "from tests.support.stream_training import write_shards; write_shards()"
        path = os.pathsep.join(map(str, [ROOT / "src", ROOT, *paths]))
        subprocess.run([str(PYTHON), "-c", write], check=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    else:
        stream_training.write_archives()
    words = ("--strategy", strategy, "--name", "first")
    run(tmp_path, "-n", "2", *words, SCRIPT, library, "4", "first", "{}", paths=paths)
    run(tmp_path, "--resume", "first", "-n", "3", SCRIPT, library, "0", "second", "{}", paths=paths)
    seen = [json.loads(path.read_text()) for path in tmp_path.glob("*-*.json")]
    assert len(seen) == 5
    assert Counter(number for worker in seen for number in worker) == Counter(range(stream_training.COUNT))
