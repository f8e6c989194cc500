"""`quorate compare --hosts` over real ssh: records, page and verdict as on one host, and nobody left anywhere."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.records.records import records_of, rows
from tests.support.named_hosts import NamedHosts, missing
from tests.support.ssh_hosts import config_in, left_on, ssh_hosts

pytestmark = [pytest.mark.launchers, pytest.mark.skipif(bool(why := missing("sshd", "ssh")), reason=str(why))]

QUORATE = [sys.executable, "-m", "quorate.cli.main"]
SCRIPT = textwrap.dedent(
    """
    import os, time, torch, quorate
    from pathlib import Path

    world = quorate.join(timeout=60)
    model = torch.nn.Linear(4, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    Path(f"pid-{world.rank}").write_text(str(os.getpid()))
    while not Path("go").exists():
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
    optimizer.finish()
    """
)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedHosts]:
    with ssh_hosts(2, tmp_path_factory.mktemp("ssh")) as found:
        yield found


def words(two: NamedHosts, *more: str, hosts: str = "first:2,second:2") -> list[str]:
    ssh = f"ssh -F {config_in(two.folder)}"
    return [*QUORATE, "compare", "--ssh", ssh, "--hosts", hosts, "--name", "x", *more]


def pids(folder: Path) -> list[int]:
    """Of the workers that have begun to train."""
    return [int(path.read_text() or 0) for path in folder.glob("pid-*")]


def hosts_of(folder: Path, size: int) -> list[str]:
    """On which host each worker of a run was."""
    return [str(next(iter(rows(records_of(folder, rank))))["host"]) for rank in range(size)]


@pytest.mark.slow
def test_two_strategies_and_ddp(two: NamedHosts, tmp_path: Path) -> None:
    arms = ("--baseline", "ddp", "--strategy", "all-reduce", "--strategy", "eager-majority")
    told = two.run(0, *words(two, "least-squares", *arms, "--seeds", "1", "--epochs", "1", "--json"), folder=tmp_path)
    assert told.returncode == 0, told.stderr
    first = told.stderr.splitlines()[0]
    assert "least-squares, 4 workers on first (2), second (2), seed 0; records in runs/x" in first
    summary: dict[str, Any] = json.loads(told.stdout)
    assert summary["title"] == "least-squares on 4 workers of 2 hosts"
    assert [(arm["name"], [run["status"] for run in arm["runs"]]) for arm in summary["arms"]] == [
        ("ddp", [0]),
        ("all-reduce", [0]),
        ("eager-majority", [0]),
    ]
    qualities = [arm["quality"]["mean"] for arm in summary["arms"]]
    assert qualities[0] == pytest.approx(qualities[1], rel=1e-4), "all-reduce computes what ddp does"
    folder = tmp_path / "runs" / "x"
    assert "least-squares on 4 workers of 2 hosts" in (folder / "report.html").read_text()
    for name in ("ddp", "all-reduce", "eager-majority"):
        assert hosts_of(folder / name / "seed-0", 4) == ["first", "first", "second", "second"]
    assert left_on(two) == []


@pytest.mark.slow
def test_an_interrupt_ends_it_everywhere_and_it_goes_on_there(two: NamedHosts, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    on = words(two, "--strategy", "all-reduce", "--seeds", "1", "train.py", hosts="first,second")
    with two.popen(0, *on, folder=tmp_path) as child:
        until = time.monotonic() + 60.0
        while len(pids(tmp_path)) < 2 or not all(pids(tmp_path)):
            assert time.monotonic() < until and child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60.0)
    assert child.returncode == 130, said
    assert "quorate: interrupted; continue with: quorate compare --continue runs/x\n" in said
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids(tmp_path))
    assert left_on(two) == []
    (tmp_path / "go").touch()
    told = two.run(0, *QUORATE, "compare", "--continue", "x", folder=tmp_path)
    assert told.returncode == 0, told.stderr
    assert hosts_of(tmp_path / "runs" / "x" / "all-reduce" / "seed-0", 2) == ["first", "second"]


def test_a_host_that_is_not_there_is_named_before_anything_starts(two: NamedHosts, tmp_path: Path) -> None:
    told = two.run(0, *words(two, "least-squares", hosts="first,nowhere:2"), folder=tmp_path)
    assert told.returncode == 2
    assert told.stderr.startswith("quorate: host nowhere cannot be reached by ssh: ") and told.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [] and left_on(two) == []


def test_records_that_would_be_elsewhere_are_refused(two: NamedHosts, tmp_path: Path) -> None:
    """The launcher's folder is its own, and the first host has another one of that name."""
    alone = f"mount -t tmpfs none {tmp_path} && cd {tmp_path} && exec " + '"$@"'
    on = words(two, "least-squares", "--seeds", "1", hosts="second,first")
    told = two.run(0, "unshare", "--mount", "sh", "-c", alone, "sh", *on, folder=tmp_path)
    assert told.returncode == 2, told.stderr
    assert told.stderr == (
        "quorate: the records would be in runs/x on host second, which is not the folder of that name on first. Start "
        "the comparison on second, or in a folder that both have\n"
    )
