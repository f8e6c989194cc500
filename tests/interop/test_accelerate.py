"""Inside loops of Accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.support.libraries import PYTHON, check_cases, check_refused, needs, result_of, script_of
from tests.world.test_migration_pages import check_equal, losses_after, losses_before, script

pytestmark = needs("accelerate")


@pytest.mark.timeout(240)
def test_parameters_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    check_cases("accelerate", tmp_path)


@pytest.mark.timeout(180)
def test_the_script_of_the_how_to_saves_what_it_trained(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("inside-accelerate.md"))
    weight = result_of(tmp_path, "first", "train.py")
    kept = load_file(tmp_path / "kept" / "model.safetensors")
    assert [*kept["weight"][0].tolist(), *kept["bias"].tolist()] == weight


def test_the_script_of_the_migration_page_has_the_same_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before, after = (script("accelerate", side).replace("shuffle=True", "shuffle=False") for side in "-+")
    check_equal(losses_before(before, tmp_path, str(PYTHON)), losses_after(after, tmp_path, monkeypatch))


SCRIPT = """
import torch, quorate
from accelerate import Accelerator
world = quorate.join()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator = Accelerator(cpu=True)
"""
REFUSED = {
    "its optimizer": (
        "quorate.distribute(accelerator.prepare(optimizer), model)\n",
        "AcceleratedOptimizer is what Accelerate puts around an optimizer",
    ),
    "its model": (
        "wrapped = accelerator.prepare(model)\nquorate.distribute(optimizer, wrapped)\n",
        "the model is in torch's DistributedDataParallel",
    ),
    "its model afterwards": (
        "optimizer = quorate.distribute(optimizer, model)\n"
        "model, wrapped = accelerator.prepare(model, optimizer)\n"
        "accelerator.backward(model(torch.ones(2, 4)).sum())\n",
        "num_processes=1 in Accelerate's PartialState",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_work_is_said(what: str, tmp_path: Path) -> None:
    lines, words = REFUSED[what]
    check_refused(tmp_path, SCRIPT + lines, words)
