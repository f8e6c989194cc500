"""Real processes: a worker is killed (SIGKILL), and the losses stay those of a run without a death."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from tests.support.programs import QUORATE, Program

SCRIPT = textwrap.dedent(
    """
    import json, os, signal, torch, quorate
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(0)
    inputs = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if SHARDS > 1:
        model = quorate.parallelize(model, world.mesh(shards=SHARDS))
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer = quorate.distribute(plain, model, STRATEGY, on_death="continue", batch="kept", micro_batches=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    loader = quorate.loader(TensorDataset(inputs, torch.arange(60)), 4, num_workers=1)
    update, losses = 0, []
    for epoch in range(3):
        model.train()
        for x, numbers in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if world.rank == KILLED and update == 4:
                os.kill(os.getpid(), signal.SIGKILL)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append([update, min(numbers.tolist()), float(loss.detach())])
            update += optimizer.has_updated
        model.eval()
        with world.evaluate():
            total = world.mean(float(model(inputs).square().mean().detach()))
        print(json.dumps(["epoch", total]), flush=True)
    print(json.dumps(losses))
    """
)


Losses = dict[tuple[int, int], float]
"""By update and the first example of a micro-batch, its loss."""


def run(folder: Path, killed: int, shards: int = 1) -> tuple[list[float], Losses]:
    """The loss after each epoch on rank 0, and the losses of the survivors' micro-batches."""
    folder.mkdir()
    strategy = '"all-reduce"' if shards == 1 else '"quorum", wait_for="all"'
    numbers = {"KILLED": str(killed), "SHARDS": str(shards), "STRATEGY": strategy}
    script, size = SCRIPT, 3 if shards == 1 else 2 * shards
    for name, value in numbers.items():
        script = script.replace(name, value)
    (folder / "script.py").write_text(script)
    process = Program([*QUORATE, "run", "-n", str(size), "--name", "here", "script.py"], cwd=folder)
    status, _, err = process.ended()
    assert status == 0, err
    assert killed < 0 or "ranks 0 and 1 go on" in err
    survivors = [rank for rank in range(size) if killed < 0 or rank // shards != killed // shards]
    ends = [(folder / "runs" / "here" / f"rank-{rank}.log").read_text() for rank in survivors]
    lines = [[json.loads(line) for line in text.splitlines() if line.startswith("[")] for text in ends]
    losses = {(update, first): loss for of_rank in lines for update, first, loss in of_rank[-1]}
    return [total for _, total in lines[0][:-1]], losses


@pytest.mark.slow
def test_a_killed_worker_changes_no_loss(tmp_path: Path) -> None:
    totals, losses = run(tmp_path / "whole", -1)
    after, survived = run(tmp_path / "killed", 2)
    assert after == pytest.approx(totals, abs=1e-6)
    hold(losses, survived)


@pytest.mark.slow
def test_a_killed_worker_of_a_replica_in_shards_changes_no_loss(tmp_path: Path) -> None:
    totals, losses = run(tmp_path / "whole", -1, shards=2)
    after, survived = run(tmp_path / "killed", 2, shards=2)
    assert after == pytest.approx(totals, abs=1e-6)
    hold(losses, survived)


def hold(losses: Losses, survived: Losses) -> None:
    """Hold the losses of survivors against those of a run without a death."""
    assert {key for key in losses if key[0] >= 4} <= survived.keys() <= losses.keys()
    assert survived == pytest.approx({key: losses[key] for key in survived}, abs=1e-6)
