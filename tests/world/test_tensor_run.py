"""`quorate run --mesh tensor=2` with a script that says nothing of it: losses of half the workers."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from tests.support.programs import quorate

SCRIPT = textwrap.dedent(
    """
    import torch, quorate
    from torch import nn
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(world.rank)
    block = lambda: nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 16))
    model = nn.Sequential(nn.Linear(8, 16), block(), nn.LayerNorm(16), block(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-4)
    optimizer = quorate.distribute(optimizer, model)
    x = torch.randn(66, 8, generator=torch.Generator().manual_seed(0))
    for epoch in range(2):
        for inputs, targets in quorate.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.4f}", flush=True)
    optimizer.finish()
    """
)


def told(folder: Path, *options: str) -> tuple[list[str], int, str]:
    """Rank 0's losses, the examples in the records, and what was said on the way."""
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    ended = quorate(folder, "run", "--name", "here", *options, "script.py")
    assert ended.returncode == 0, ended.stderr
    if "--mesh" in options:
        lines = (folder / "runs/here/rank-0.jsonl").read_text().splitlines()
        (layers,) = [row for row in map(json.loads, lines) if row["kind"] == "layers"]
        # Of each pair the sum of 8 examples of 16 numbers forward, and of the gradient of its input backward.
        assert layers["sent"] == dict.fromkeys(("1.0", "1.2", "3.0", "3.2"), 8 * 16 * 4)
    rows = [
        json.loads(line)
        for file in (folder / "runs/here").glob("rank-*.jsonl")
        for line in file.read_text().splitlines()
    ]
    return ended.stdout.splitlines(), sum(row.get("examples") or 0 for row in rows), ended.stderr


def test_a_script_is_computed_together_from_outside(tmp_path: Path) -> None:
    losses, examples, said = told(tmp_path / "whole", "-n", "2")
    assert "computed" not in said
    for number, mesh in enumerate(("replicas=2,tensor=2", "shards=2,tensor=2")):
        found, counted, said = told(tmp_path / str(number), "-n", "4", "--mesh", mesh)
        assert (found, counted) == (losses, examples)
        assert "layers are computed by 2 workers together:" in said and "columns  20 x 16" in said
