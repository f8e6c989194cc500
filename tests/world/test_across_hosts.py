"""Trainings on two hosts of two workers: records, checkpoints, torch's own DDP, and torchrun on each of them."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from quorate.records.records import ranks_in
from tests.support.hosts import Host, are_possible, hosts
from tests.support.kills_and_resumes import train
from tests.support.processes import run_real_world
from tests.support.programs import Program, quorate
from tests.support.seats import SECRET, free_port, on_hosts

pytestmark = [
    pytest.mark.on_hosts,
    pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces"),
]

LAYOUT = (0, 0, 1, 1)
"""The host of each rank."""
SCRIPT = textwrap.dedent(
    """
    import hashlib, os, sys, torch, quorate
    from torch.utils.data import TensorDataset

    world = quorate.join(timeout=200)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = quorate.distribute(plain, model, "all-reduce")
    loader = quorate.loader(TensorDataset(torch.arange(48.0)[:, None].expand(48, 4) / 48, torch.arange(48)), 3)
    began = quorate.load()
    for epoch in range(loader.epoch, loader.epoch + 2):
        for inputs, of in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        with world.evaluate():
            mean = world.mean(float(world.rank))
        quorate.log(quality=mean)
        if not os.environ.get("QUORATE_STRATEGY"):
            quorate.save()
    optimizer.finish()
    bits = b"".join(x.detach().numpy().tobytes() for x in model.parameters())
    kinds = len(set(world.gather(hashlib.sha256(bits).hexdigest())))
    sys.stdout.flush()
    os.write(1, f"end {began} {mean} {kinds}\\n".encode())  # at once: two workers write into one pipe
    """
)


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


@contextmanager
def ended(children: list[Program]) -> Iterator[list[tuple[str, str]]]:
    """What each has written; all have ended well."""
    try:
        told = [child.communicate() for child in children]
        assert all(child.returncode == 0 for child in children), told
        yield told
    finally:
        for child in children:
            child.kill()


def begun(two: list[Host], folder: Path, **more: str) -> list[Program]:
    """The script, by plain variables."""
    (folder / "script.py").write_text(SCRIPT)
    on = [two[number] for number in LAYOUT]
    seats = zip(on, on_hosts(on), strict=True)
    return [Program(["script.py"], cwd=folder, env={**os.environ, **own, **more}, inside=h.pid) for h, own in seats]


def test_a_run_keeps_its_records_and_goes_on_from_them(two: list[Host], tmp_path: Path) -> None:
    with ended(begun(two, tmp_path)) as told:
        assert [out for out, _ in told] == ["end None 1.5 1\n"] * 4
        assert sum("quorate: records in runs/script-" in err for _, err in told) == 1
    (folder,) = (tmp_path / "runs").iterdir()
    with ended(begun(two, tmp_path, QUORATE_RUN=str(folder))) as told:
        assert [out for out, _ in told] == ["end 8 1.5 1\n"] * 4
    assert ranks_in(folder) == [0, 1, 2, 3]
    places = [json.loads((folder / f"rank-{rank}.jsonl").read_text().splitlines()[0])["host"] for rank in range(4)]
    assert places == [two[number].name for number in LAYOUT]
    shown = quorate(tmp_path, "report", folder.name, "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["arms"], shown.stdout


def test_torch_ddp_is_a_baseline_across_hosts(two: list[Host], tmp_path: Path) -> None:
    with ended(begun(two, tmp_path, QUORATE_STRATEGY="ddp")) as told:
        assert [out for out, _ in told] == ["end None 1.5 1\n"] * 4


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum"])
def test_a_checkpoint_is_gone_on_from(two: list[Host], strategy: str, tmp_path: Path) -> None:
    on = [two[number] for number in LAYOUT]

    def trained(steps: int, kept: str) -> list[list[float]]:
        return run_real_world(4, partial(train, steps, strategy, str(tmp_path / kept), -1, 0, -1), on=on)

    first = trained(4, "kept")
    after = trained(8, "kept")
    assert all(end == after[0] for end in after) and after != first
    if strategy == "all-reduce":
        assert after[0] == trained(8, "none")[0], "resumed, it is not what it is in one go"


@pytest.mark.slow
def test_torchrun_on_each_host(two: list[Host], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    meeting = ["--master-addr", two[0].address, "--master-port", str(free_port(two[0]))]
    known = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *meeting]
    environment = {**os.environ, "QUORATE_TOKEN": SECRET}
    children = [
        Program([*known, "--node-rank", str(number), "script.py"], cwd=tmp_path, env=environment, inside=host.pid)
        for number, host in enumerate(two)
    ]
    with ended(children) as told:
        assert sorted(out for out, _ in told) == ["end None 1.5 1\nend None 1.5 1\n"] * 2
