"""The loop of DeepSpeed's migration page before it is changed; `tests/world` runs the one after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.libraries import DEEPSPEED, PYTHON, needs
from tests.world.test_migration_pages import losses_after, losses_before, script

pytestmark = needs("deepspeed")
CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
}


@pytest.mark.timeout(1000)
def test_the_loops_before_and_after_learn_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their samplers deal the examples in another order, so losses are alike and not equal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    monkeypatch.setenv("PATH", str(DEEPSPEED / "bin"), prepend=":")
    monkeypatch.setenv("PYTHONPATH", str(DEEPSPEED), prepend=":")
    (tmp_path / "ds_config.json").write_text(json.dumps(CONFIG))
    before = losses_before(script("deepspeed", "-"), tmp_path, str(PYTHON), limit=700.0)  # it compiles for minutes
    after = losses_after(script("deepspeed", "+"), tmp_path, monkeypatch)
    for lines in (before, after):
        first, *_, last = (float(line.rpartition(" ")[2]) for line in lines)
        assert len(lines) == 3
        assert last < 0.7 * first
