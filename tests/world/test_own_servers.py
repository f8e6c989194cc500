"""Real processes: servers that are ranks of their own leave when the training has ended, and end it when they die."""

from __future__ import annotations

import os
import signal
import textwrap
from pathlib import Path

import pytest

from quorate.records.records import records_of, rows
from tests.support.programs import QUORATE, Program, quorate

SCRIPT = textwrap.dedent(
    """
    import hashlib, torch, quorate
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(world.rank)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    table = torch.nn.Embedding(20, 1, sparse=True)
    model = torch.nn.ModuleList([net, table])
    groups = [{"params": net.parameters(), "momentum": 0.9}, {"params": table.parameters()}]
    optimizer = torch.optim.SGD(groups, lr=0.01)
    optimizer = quorate.distribute(optimizer, model, "parameter-server")
    print("trains", flush=True)
    loader = quorate.loader(TensorDataset(torch.arange(20.0)[:, None].expand(20, 4) / 20, torch.arange(20)), 2)
    for epoch in range(EPOCHS):
        for inputs, of in loader:
            optimizer.zero_grad()
            (net(inputs) + table(of)).square().mean().backward()
            optimizer.step()
        with world.evaluate():
            there = world.gather(world.rank)
        print("epoch", epoch, world.size, there, flush=True)
    optimizer.finish()
    bits = b"".join(x.detach().numpy().tobytes() for x in (*model.parameters(), *model.buffers()))
    print("end", hashlib.sha256(bits).hexdigest(), flush=True)
    """
)


def launched(folder: Path, *options: str, epochs: int = 100_000, text: str = SCRIPT) -> Program:
    script = folder / "script.py"
    script.write_text(text.replace("EPOCHS", str(epochs)))
    return Program([*QUORATE, "run", "--name", "here", *options, str(script)], cwd=folder)


def log_of(folder: Path, rank: int) -> str:
    path = folder / "runs" / "here" / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def wait_until_trained(folder: Path, process: Program) -> None:
    process.until(lambda: "epoch 1 " in log_of(folder, 0))


def start_of(folder: Path, rank: int) -> dict[str, object]:
    return next(iter(rows(records_of(folder / "runs" / "here", rank), ["start"])))


@pytest.mark.parametrize("how", ["-n", "--virtual"])
def test_servers_keep_the_parameters_and_leave_with_the_training(how: str, tmp_path: Path) -> None:
    status, out, err = launched(tmp_path, how, "2", "--servers", "2", epochs=2).ended()
    assert status == 0, err
    assert "2 server" in err and out.splitlines()[:3] == ["trains", "epoch 0 2 [0, 1]", "epoch 1 2 [0, 1]"]
    assert out.splitlines()[-1].startswith("end ")
    assert log_of(tmp_path, 1) == log_of(tmp_path, 0)
    for rank in (2, 3):
        assert log_of(tmp_path, rank) == ""
        start = start_of(tmp_path, rank)
        assert (start["server"], start["size"], start.get("seat")) == (True, 2, None)
        served = list(rows(records_of(tmp_path / "runs" / "here", rank), ["served"]))
        assert sum(row["steps"] for row in served) > 0
    assert not start_of(tmp_path, 1).get("server", False)
    shown = quorate(tmp_path, "report", "here")
    assert shown.returncode == 0, shown.stderr
    assert "joined" not in shown.stdout


@pytest.mark.parametrize("on_death", ["stop", "continue"])
def test_a_server_that_is_killed_ends_the_training_in_a_sentence(on_death: str, tmp_path: Path) -> None:
    process = launched(tmp_path, "-n", "2", "--servers", "2", "--set", f"on_death={on_death}")
    wait_until_trained(tmp_path, process)
    os.kill(int(str(start_of(tmp_path, 3)["pid"])), signal.SIGKILL)
    status, _, err = process.ended()
    assert status == 1
    told = [line for line in err.splitlines() if "its log is" in line]
    assert len(told) == 1 and told[0].startswith("quorate: rank 3 (host ")
    assert "was a server, and was killed by signal 9 (SIGKILL) in round " in told[0]
    assert "After that ranks 0, 1 and 2 exited with status 1." in err


@pytest.mark.parametrize("rank", [2, 3])
def test_with_a_second_copy_of_each_part_all_go_on_without_a_server(rank: int, tmp_path: Path) -> None:
    """Rank 2 decides on the order, and rank 3 follows."""
    settings = ("--set", "replication=2", "--set", "on_death=continue")
    process = launched(tmp_path, "-n", "2", "--servers", "3", *settings)
    wait_until_trained(tmp_path, process)
    os.kill(int(str(start_of(tmp_path, rank)["pid"])), signal.SIGKILL)
    before = log_of(tmp_path, 0).count("epoch")
    process.until(lambda: log_of(tmp_path, 0).count("epoch") >= before + 3)
    process.send_signal(signal.SIGINT)
    status, _, err = process.ended()
    assert f"rank {rank} (host " in err and "was killed by signal 9 (SIGKILL); ranks 0 and 1 go on" in err
    assert log_of(tmp_path, 0).count("epoch") >= before + 3, err
    assert status == 130


def test_a_worker_that_is_killed_leaves_the_others_and_ctrl_c_ends_all(tmp_path: Path) -> None:
    process = launched(tmp_path, "-n", "2", "--servers", "1", "--set", "on_death=continue", "--set", "mode=async")
    wait_until_trained(tmp_path, process)
    os.kill(int(str(start_of(tmp_path, 1)["pid"])), signal.SIGKILL)
    process.until(lambda: log_of(tmp_path, 0).endswith("2 [0]\n"))
    process.send_signal(signal.SIGINT)
    status, _, err = process.ended()
    assert log_of(tmp_path, 0).splitlines()[-1].endswith("2 [0]")
    assert "rank 1 (host " in err and "was killed by signal 9 (SIGKILL); rank 0 goes on" in err
    assert status == 130 and "ended by SIGINT; every worker has ended" in err
    assert log_of(tmp_path, 2) == ""
    for rank in (0, 2):
        with pytest.raises(ProcessLookupError):
            os.kill(int(str(start_of(tmp_path, rank)["pid"])), 0)


def test_servers_that_nobody_joined_are_told_of(tmp_path: Path) -> None:
    status, _, err = launched(tmp_path, "-n", "2", "--servers", "1", text="print('begun')").ended()
    assert status == 2 and "no worker has called quorate.join(), so --servers 1 has served nobody" in err


@pytest.mark.parametrize(
    ("of", "by", "words"),
    [
        ('"parameter-server")', '"all-reduce")', "all-reduce has no servers; --servers needs parameter-server"),
        (
            "Linear(4, 1))",
            "Linear(4, 1 + world.rank // 2))",
            "this server has built a different model than the workers it joins",
        ),
    ],
)
def test_a_script_that_does_not_fit_is_refused_with_status_2(of: str, by: str, words: str, tmp_path: Path) -> None:
    status, _, err = launched(tmp_path, "-n", "2", "--servers", "1", text=SCRIPT.replace(of, by)).ended()
    assert status == 2 and words in err
