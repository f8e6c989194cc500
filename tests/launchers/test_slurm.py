"""Under a real Slurm: srun over several hosts, a warning before the time limit, requeue, and scancel."""

from __future__ import annotations

import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.architecture.test_documents import blocks
from tests.architecture.tree import ROOT
from tests.support.named_hosts import missing
from tests.support.slurm_hosts import SlurmHosts, slurm_hosts

pytestmark = [
    pytest.mark.launchers,
    pytest.mark.skipif(bool(why := missing("slurmctld", "slurmd", "srun", "munged")), reason=str(why)),
]

TOKEN = {"QUORATE_TOKEN": "a secret that is long enough"}
SCRIPT = textwrap.dedent(
    """
    import socket, sys, time, torch, quorate
    from pathlib import Path

    world = quorate.join(timeout=60)
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, "all-reduce")
    step = quorate.load()
    if world.is_first:
        print("begins at", step, "with", world.size, flush=True)
    step = step or 0
    steps, pause = int(sys.argv[1]), float(sys.argv[2])
    while step < steps:
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        Path("step").write_text(str(step))
        if step == 3:
            quorate.save()
        time.sleep(pause)
    optimizer.finish()
    places = world.gather(socket.gethostname())
    if world.is_first:
        print("ends at", step, *places, flush=True)
    """
)
CHANGED = {
    "--ntasks-per-node=4": "--ntasks-per-node=1 --output=said",
    "--time=60 --signal=USR1@120": "--time=1 --signal=USR1@10",
    "then\n": "then\n    echo requeued\n",
}
"""In the script of docs/howto/launch-slurm.md."""
WITHOUT_GPUS = {
    "--ntasks-per-node=8": "--ntasks-per-node=2",
    "--gpus-per-node=8": "--comment=gpus",
    "--cpus-per-task=12": "--cpus-per-task=2",
    "--time=04:00:00": "--time=6",
    "--output=train-%j.out": "--output=said",
    "module ": "true module ",
    'source "$HOME': 'true "$HOME',
}
"""In the script of docs/howto/launch-slurm-gpus.md: nodes of four cores without a GPU."""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmHosts]:
    with slurm_hosts(2, tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def submitted(
    two: SlurmHosts, folder: Path, arguments: str, page: str = "launch-slurm", changed: dict[str, str] = CHANGED
) -> str:
    """The number of a job that trains."""
    script = next(one for one in blocks(ROOT / "docs" / "howto" / f"{page}.md", "bash") if "#SBATCH" in one)
    for said, instead in {**changed, "python train.py": f"{sys.executable} train.py {arguments}"}.items():
        assert said in script
        script = script.replace(said, instead)
    (folder / "job.sh").write_text(script)
    sent = two.command("sbatch", "--parsable", "job.sh", folder=folder)
    assert sent.returncode == 0, sent.stderr
    return sent.stdout.strip()


def until(is_so: Callable[[], bool], folder: Path, seconds: float) -> None:
    """Return when it is."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, said(folder)
        time.sleep(0.1)


def said(folder: Path) -> str:
    """What the job has written."""
    return (folder / "said").read_text() if (folder / "said").exists() else ""


def step_in(folder: Path) -> int:
    """How far the training is."""
    written = (folder / "step").read_text() if (folder / "step").exists() else ""
    return int(written) if written.isdecimal() else 0


def test_srun_over_two_hosts(two: SlurmHosts, folder: Path) -> None:
    words = ["srun", "-N2", "-n3", sys.executable, "train.py", "5", "0"]
    ended = two.command(*words, folder=folder, more=TOKEN)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["begins at None with 3", "ends at 5 first first second"]
    refused = two.command(*words, folder=folder)
    assert refused.returncode == 2
    assert "Set QUORATE_TOKEN" in refused.stderr


@pytest.mark.timeout(200)
def test_the_job_for_nodes_with_gpus(two: SlurmHosts, folder: Path) -> None:
    job = submitted(two, folder, "5 0", "launch-slurm-gpus", WITHOUT_GPUS)
    until(lambda: two.state_of(job) == "COMPLETED", folder, 150.0)
    assert "ends at 5 first first second second" in said(folder)


@pytest.mark.timeout(300)
def test_a_time_limit_is_outlived(two: SlurmHosts, folder: Path) -> None:
    """Slurm warns, all save, the job is requeued, and goes on where it was; then scancel ends it."""
    job = submitted(two, folder, "1000000 0.02")
    until(lambda: "requeued" in said(folder), folder, 100.0)
    left = step_in(folder)
    assert left > 3
    # Slurm lets a job that is requeued wait for two minutes, unless told; in the second of its end it cannot start.
    until(lambda: two.state_of(job) == "PENDING", folder, 60.0)
    two.command("scontrol", "update", f"JobId={job}", "StartTime=now+3", folder=folder)
    until(lambda: "begins at" in said(folder).partition("requeued")[2], folder, 100.0)
    assert f"begins at {left} with 2" in said(folder).partition("requeued")[2]
    assert [one.name for one in (folder / "runs").iterdir()] == [f"slurm-{job}.0"]
    until(lambda: step_in(folder) > left + 5, folder, 30.0)
    two.command("scancel", job, folder=folder)
    until(lambda: two.state_of(job) == "CANCELLED", folder, 30.0)
    last = step_in(folder)
    kept = [one.name for one in (folder / "runs" / f"slurm-{job}.0" / "checkpoints").iterdir()]
    assert f"step-{last:08}" in kept, (kept, said(folder))
