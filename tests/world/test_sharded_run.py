"""`quorate run --mesh --zero` with a script that says nothing of shards: the losses of whole replicas, and its ends."""

from __future__ import annotations

import signal
import textwrap
from pathlib import Path

import pytest

from tests.support.programs import QUORATE, Program, quorate

SCRIPT = textwrap.dedent(
    """
    import torch, quorate
    from torch import nn
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(world.rank)
    block = lambda: nn.Sequential(nn.Linear(150, 150), nn.LayerNorm(150), nn.ReLU())
    model = nn.Sequential(nn.Linear(8, 150), nn.Sequential(block(), block()), nn.Linear(150, 1))
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    optimizer = quorate.distribute(optimizer, model)
    x = torch.randn(66, 8, generator=torch.Generator().manual_seed(0))
    loader = quorate.loader(TensorDataset(x, x.sum(1, keepdim=True)), 8)
    step = 0
    try:
        for epoch in range(EPOCHS):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                optimizer.step()
                scheduler.step()
                step += 1
                if step % 5 == 0:
                    print("step", step, [len(group["params"]) for group in optimizer.param_groups],
                          f"{optimizer.param_groups[1]['lr']:.6f} {loss.item():.4f}", flush=True)
    finally:
        print("left after", step, "with", type(next(model.parameters())).__name__, flush=True)
    optimizer.finish()
    """
)


def launched(folder: Path, *options: str, epochs: int) -> Program:
    script = folder / "script.py"
    script.write_text(SCRIPT.replace("EPOCHS", str(epochs)))
    return Program([*QUORATE, "run", "--name", "here", *options, str(script)], cwd=folder)


def logs(folder: Path, size: int) -> list[list[str]]:
    return [(folder / "runs" / "here" / f"rank-{rank}.log").read_text().splitlines() for rank in range(size)]


def test_a_script_of_three_lines_is_spread_from_outside(tmp_path: Path) -> None:
    told = []
    for number, options in enumerate(([], ["--mesh", "shards=2", "--zero", "3", "--offload", "disk"], ["--zero", "1"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, out, err = launched(folder, "-n", "2", *options, epochs=3).ended()
        assert status == 0, err
        assert ("quorate: ZeRO " in err) is bool(options)
        told.append(out.splitlines())
    whole, *spread = told
    assert whole[-1] == "left after 15 with Parameter" and "[4, 8] 0.000900" in whole[1]
    for each in spread:
        assert each == [*whole[:-1], "left after 15 with DTensor"]


def test_a_time_limit_ends_all_at_one_step(tmp_path: Path) -> None:
    status, _, err = launched(tmp_path, "-n", "4", "--mesh", "shards=2", "--seconds", "1.5", epochs=2000).ended()
    assert status == 0, err
    lasts = {log[-1] for log in logs(tmp_path, 4)}
    assert len(lasts) == 1 and lasts.pop().startswith("left after ")


def test_ctrl_c_ends_all_in_order(tmp_path: Path) -> None:
    process = launched(tmp_path, "-n", "2", "--zero", "3", epochs=1_000_000)
    log = tmp_path / "runs" / "here" / "rank-1.log"
    process.until(lambda: log.exists() and "step 10 " in log.read_text())
    process.send_signal(signal.SIGINT)
    status, _, err = process.ended()
    assert status == 130 and "ended by SIGINT; every worker has ended" in err, err
    (left,) = {log[-1] for log in logs(tmp_path, 2)}
    assert left.startswith("left after ")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "2", "--mesh", "shards=3"], "2 workers cannot be laid out as shards=3"),
        (["-n", "2", "--mesh", "pieces=2"], '"pieces=2" is not a mesh; write replicas=R,stages=L,shards=S'),
        (["-n", "2", "--zero", "4"], "zero=4 is unknown; known: 1, 2, 3"),
        (
            ["-n", "2", "--zero", "3", "--strategy", "ddp"],
            "--mesh, --zero and --offload cannot be combined with the baseline ddp",
        ),
        (["-n", "2", "--offload", "gpu"], "offload='gpu' is unknown; known: optimizer, all, disk"),
        (["--virtual", "2", "--zero", "3"], "--mesh, --zero and --offload need processes (-n); a virtual worker holds"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(options: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("")
    ended = quorate(tmp_path, "run", *options, "script.py")
    assert ended.returncode == 2 and words in ended.stderr, ended.stderr
    assert not (tmp_path / "runs").exists()
