"""Inside Lightning's Trainer and its Fabric."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.libraries import check_cases, check_refused, needs, result_of, run, script_of

pytestmark = needs("lightning")

IN_DDP = "the model is in torch's DistributedDataParallel, which averages gradients itself"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("library", ["lightning", "fabric"])
def test_parameters_are_those_of_a_loop_by_hand(library: str, tmp_path: Path) -> None:
    check_cases(library, tmp_path)


@pytest.mark.timeout(280)
def test_the_script_of_the_how_to_goes_on_where_it_was(tmp_path: Path) -> None:
    script = script_of("inside-lightning.md")
    half, steps = tmp_path / "half.py", "STEPS = 96\n"
    assert steps in script
    (tmp_path / "train.py").write_text(script)
    half.write_text(script.replace(steps, "STEPS = 48\n"))
    whole = result_of(tmp_path, "whole", "train.py")
    (kept,) = (tmp_path / "kept").iterdir()
    result_of(tmp_path, "half", "half.py")
    half.write_text(script)
    run(tmp_path, "--resume", "half")
    (*_, last) = (tmp_path / "runs/half/rank-0.log").read_text().split("result ")
    assert last.startswith(str(whole))
    assert kept.suffix == ".ckpt"


@pytest.mark.timeout(180)
def test_lightnings_checkpoint_is_of_equal_replicas(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-lightning.md"))
    found = result_of(tmp_path, "local", "--strategy", "local-sgd", "--set", "sync_every=5", "train.py")
    (kept,) = (tmp_path / "kept").glob("*step=96.ckpt")
    state = torch.load(kept, weights_only=False)["state_dict"]
    torch.testing.assert_close(torch.cat([state["layer.weight"][0], state["layer.bias"]]), torch.tensor(found))


SCRIPT = """
import lightning, torch, quorate
world = quorate.join()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
REFUSED = {
    "fabric's optimizer": (
        "_, wrapped = lightning.Fabric(accelerator='cpu', devices=1).setup(model, optimizer)\n"
        "quorate.distribute(wrapped, model)\n",
        "FabricSGD is what Lightning puts around an optimizer",
    ),
    "the trainer's optimizer": (
        "from lightning.pytorch.core.optimizer import LightningOptimizer\n"
        "quorate.distribute(LightningOptimizer(optimizer), model)\n",
        "LightningSGD is what Lightning puts around an optimizer",
    ),
    "ddp": (
        "fabric = lightning.Fabric(accelerator='cpu', devices=2, strategy='ddp')\n"
        "fabric.launch()\n"
        "optimizer = quorate.distribute(optimizer, model)\n"
        "model, wrapped = fabric.setup(model, optimizer)\n"
        "fabric.backward(model(torch.ones(2, 4)).sum())\n",
        IN_DDP,
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_work_is_said(what: str, tmp_path: Path) -> None:
    lines, words = REFUSED[what]
    check_refused(tmp_path, SCRIPT + lines, words)
