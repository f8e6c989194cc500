"""The script of docs/howto/launch-ray.md: a worker dies, Ray starts all anew, and they go on from a checkpoint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT

PYTHON = ROOT / ".venv" / "ray" / "bin" / "python"
"""Of an environment with Ray, which `make test-launchers` makes."""
KUBERNETES = """
import sys, yaml
kinds = [one["kind"] for one in yaml.safe_load_all(sys.stdin)]
assert kinds == ["Service", "Job"], kinds
"""

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs Ray in .venv/ray: make test-launchers installs it"),
]


@pytest.mark.timeout(280)
def test_a_failure_is_outlived(tmp_path: Path) -> None:
    (script,) = blocks(ROOT / "docs" / "howto" / "launch-ray.md", "python")
    before, begun, after = script.partition("    step = quorate.load() or 0\n")
    marks = f'    here = Path("{tmp_path}")\n    (here / f"begins at {{step}}").touch()\n'
    script = before + begun + marks + after
    step = "        step += 1\n"
    dies = f"{step}        if step == 10 and world.rank == 1 and not (here / 'died').exists():\n"
    dies += "            (here / 'died').touch()\n            os._exit(7)\n"
    assert begun and step in script
    (tmp_path / "train.py").write_text(script.replace(step, dies))
    ended = subprocess.run([str(PYTHON), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=260)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "result {'step': 16}" in ended.stdout.splitlines(), ended.stdout
    begins = {int(mark.name.split()[-1]) for mark in tmp_path.glob("begins at *")}
    newest = begins - {0}  # the checkpoint of step 8 may still be under way where the worker dies
    assert 0 in begins and newest in ({4}, {8}), begins
    kept = (tmp_path / "runs" / "first" / "checkpoints").iterdir()
    assert sorted(one.name for one in kept) == ["step-00000012", "step-00000016"]


UNCHANGED = """
from pathlib import Path

import ray
import ray.train.torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    import torch

    model = ray.train.torch.prepare_model(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(12):
        model(torch.randn(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    Path(config["folder"], f"rank-{ray.train.get_context().get_world_rank()}").write_text(
        f"{type(model).__module__} {model.module.weight.tolist()}"
    )
    model.train()
    ray.train.report({})


CALL
TorchTrainer(
    train,
    train_loop_config={"folder": str(Path.cwd())},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="first", storage_path=str(Path("ray").resolve())),
).fit()
"""


@pytest.mark.timeout(280)
def test_a_function_for_ddp_trains_unchanged(tmp_path: Path) -> None:
    (call,) = blocks(ROOT / "docs" / "howto" / "launch-ray.md", "py")
    (tmp_path / "train.py").write_text(UNCHANGED.replace("CALL", call))
    ended = subprocess.run([str(PYTHON), "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=260)
    assert ended.returncode == 0, ended.stderr[-4000:]
    first, second = ((tmp_path / f"rank-{rank}").read_text() for rank in range(2))
    assert first == second
    assert first.startswith("quorate.launch.takeover.wrapper ")


def test_the_manifest_for_kubernetes_is_yaml() -> None:
    """Nothing else is known of it."""
    (manifest,) = blocks(ROOT / "docs" / "howto" / "launch-kubernetes.md", "yaml")
    subprocess.run([str(PYTHON), "-c", KUBERNETES], input=manifest, text=True, check=True, timeout=60)
