"""A run on real processes, one of which is killed, replayed by the command line: every round has the bits it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import quorate

SCRIPT = """
import os, signal, time
import torch, quorate
torch.set_num_threads(1)
world = quorate.join()
torch.manual_seed(7)
x = torch.randn(192, 5)
data = torch.utils.data.TensorDataset(x, x @ torch.randn(5, 2))
model = torch.nn.Linear(5, 2)
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.02), model)
loader = quorate.loader(data, 4)
torch.manual_seed(world.rank)
step = 0
for a, b in loader:
    (model(a + 0.1 * torch.randn_like(a)) - b).square().mean().backward()
    if (world.rank, step) == (1, 6) and not os.environ.get("QUORATE_REPLAY"):
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
    optimizer.zero_grad()
    step += 1
"""


@pytest.mark.parametrize(
    "strategy", ["eager-solo:compress=top-k,density=0.3,dense_below=4", "decoupled-diloco:sync_every=4,fragments=2"]
)
def test_every_round_has_the_bits_it_had(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    chosen = f"{strategy}{',' if ':' in strategy else ':'}on_death=continue,grace=5s"
    slow = ("--imbalance", "lognormal:3ms:1.0")
    ran = quorate(tmp_path, "run", "-n", "3", "--seed", "5", "--name", "odd", "--strategy", chosen, *slow, "train.py")
    assert ran.returncode == 0, ran.stderr
    assert "rank 1 died" in ran.stderr
    replayed = quorate(tmp_path, "replay", "odd")
    assert replayed.returncode == 0, replayed.stderr
    assert "all have the bits they had in runs/odd" in replayed.stderr
    virtual = quorate(tmp_path, "replay", "odd", "--virtual", "--name", "virtual")
    assert virtual.returncode == 0, virtual.stderr
    assert "all have the bits they had in runs/odd" in virtual.stderr
    again = quorate(tmp_path, "replay", "odd")
    assert again.returncode == 2 and "choose another --name" in again.stderr


JOINED = SCRIPT.replace("torch.randn(192, 5)", "torch.randn(960, 5)").replace(
    "for a, b in loader:\n",
    """for a, b in loader:
    if not os.environ.get("QUORATE_REPLAY") and not world.wire.joined:
        time.sleep(0.2)
""",
)
"""It goes slowly until one has joined: after some forty of its 120 steps on each of two."""


def test_one_that_was_started_in_the_place_of_another_joins_again(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOINED)
    chosen = "decoupled-diloco:sync_every=4,fragments=2,on_death=continue,grace=5s"
    ran = quorate(
        tmp_path, "run", "-n", "3", "--restart", "1", "--seed", "5", "--name", "odd", "--strategy", chosen, "train.py"
    )
    assert ran.returncode == 0, ran.stderr
    assert "rank 3 joined in round" in ran.stderr
    refused = quorate(tmp_path, "replay", "odd")
    assert refused.returncode == 2 and "workers joined" in refused.stderr and "--virtual" in refused.stderr
    replayed = quorate(tmp_path, "replay", "odd", "--virtual")
    assert replayed.returncode == 0, replayed.stderr
    assert "all have the bits they had in runs/odd" in replayed.stderr
