"""Scripts that are written for torch DDP, unchanged, under `quorate run --strategy`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from quorate.launch.local.processes import free_port
from tests.architecture.tree import ROOT
from tests.support.launching import LIMIT
from tests.support.programs import quorate

pytestmark = pytest.mark.slow

SCRIPTS = ROOT / "tests" / "support" / "ddp_scripts"
ARGUMENTS = {"gan": (), "hsdp": (), "imagenet": (), "multigpu": ("2", "1", "--nprocs"), "nanogpt": ()}


def run(folder: Path, name: str, *options: str, size: int = 2) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    arguments = (*ARGUMENTS[name], str(size)) if name == "multigpu" else ARGUMENTS[name]
    script = str(SCRIPTS / f"{name}.py")
    return quorate(folder, "run", "-n", str(size), "--name", "r", *options, script, *arguments)


def states(folder: Path, size: int = 2) -> list[dict[str, Tensor]]:
    return [torch.load(folder / f"state-{rank}.pt") for rank in range(size)]


def trained(folder: Path, name: str, strategy: str | None, size: int = 2) -> dict[str, Tensor]:
    """The state that all workers save at the end, which is the same."""
    ended = run(folder, name, *(() if strategy is None else ("--strategy", strategy)), size=size)
    assert ended.returncode == 0, ended.stderr
    has_wrapper = strategy is None and name != "hsdp"
    assert ("strategy: the script's own DistributedDataParallel" in ended.stderr) == has_wrapper
    first, *others = states(folder, size)
    for other in others:
        assert all(torch.equal(other[key], first[key]) for key in first)
    return first


def trained_by_torch(folder: Path, name: str, size: int) -> dict[str, Tensor]:
    """The same state under torch's DDP alone; `quorate run` refuses scripts that start processes there."""
    if name != "multigpu":
        return trained(folder, name, None, size)
    folder.mkdir()
    command = [sys.executable, str(SCRIPTS / "multigpu.py"), *ARGUMENTS[name], str(size)]
    environment = {**os.environ, "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, timeout=LIMIT)
    return states(folder, size)[0]


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - {"hsdp"}))
@pytest.mark.parametrize(("size", "tolerance"), [(2, 0.0), (3, 1e-6)])
def test_all_reduce_has_the_numbers_of_ddp(name: str, size: int, tolerance: float, tmp_path: Path) -> None:
    """With two workers its bits; `tolerance` is a share of the largest weight."""
    own = trained_by_torch(tmp_path / "own", name, size)
    ours = trained(tmp_path / "ours", name, "all-reduce", size)
    assert list(own) == list(ours)
    largest = max(float(x.abs().max()) for x in own.values() if x.is_floating_point())
    for key in own:
        torch.testing.assert_close(ours[key], own[key], rtol=0, atol=tolerance * largest, msg=key)


@pytest.mark.parametrize("name", sorted(ARGUMENTS.keys() - {"hsdp"}))
@pytest.mark.parametrize("strategy", ["eager-majority", "local-sgd", "d-psgd"])
@pytest.mark.parametrize("size", [2, 3])
def test_all_workers_end_with_one_model(name: str, strategy: str, size: int, tmp_path: Path) -> None:
    state = trained(tmp_path / "ours", name, strategy, size)
    assert all(x.isfinite().all() for x in state.values())


def test_it_resumes(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", "imagenet", "all-reduce")
    parts, script = tmp_path / "parts", str(SCRIPTS / "imagenet.py")
    for name, words in (("a", ["--epochs", "1"]), ("b", ["--resume", "checkpoint.pth.tar"])):
        parts.mkdir(exist_ok=True)
        ended = quorate(parts, "run", "-n", "2", "--name", name, "--strategy", "all-reduce", script, *words)
        assert ended.returncode == 0, ended.stderr
    resumed = states(parts)[0]
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def test_untouched_scripts_are_compared_by_a_line_that_they_print(tmp_path: Path) -> None:
    words = ["-n", "2", "--seeds", "1", "--name", "c", "--baseline", "ddp", "--strategy", "local-sgd"]
    pattern = ("--metric-pattern", "val_acc=([0-9.]+)")
    ended = quorate(tmp_path, "compare", *words, *pattern, str(SCRIPTS / "imagenet.py"), timeout=2 * LIMIT)
    assert ended.returncode == 0, ended.stderr
    summary = json.loads((tmp_path / "runs" / "c" / "summary.json").read_text())
    assert summary["metric"]["name"] == "val_acc"
    assert [(arm["name"], arm["is_baseline"]) for arm in summary["arms"]] == [("ddp", True), ("local-sgd", False)]
    for arm in summary["arms"]:
        assert 0 < arm["quality"]["mean"] <= 100 and arm["examples_per_second"]["mean"] > 0


OF_A_NOTEBOOK = """
import quorate

def train():
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        model(torch.ones(1, 2) * dist.get_rank()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    type_of_model = type(model).__module__
    dist.destroy_process_group()
    return type_of_model, model.module.weight.tolist()

first, second = quorate.launch(train, n=2, strategy="local-sgd", progress=False).results
print(first == second, first[0])
"""


def test_a_function_with_ddp_is_taken_over_in_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "notebook.py").write_text(OF_A_NOTEBOOK)
    command = [sys.executable, "notebook.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "True quorate.launch.takeover.wrapper\n"


@pytest.fixture(scope="module")
def hsdp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The state after torch's own training of replicas in shards."""
    return trained(tmp_path_factory.mktemp("hsdp") / "own", "hsdp", None, size=4)


@pytest.mark.parametrize("strategy", ["all-reduce", "local-sgd:sync_every=2", "eager-majority"])
def test_replicas_in_shards_agree(strategy: str, hsdp: dict[str, Tensor], tmp_path: Path) -> None:
    state = trained(tmp_path / "ours", "hsdp", strategy, size=4)
    assert list(state) == list(hsdp)
    if strategy == "all-reduce":
        for key in state:
            torch.testing.assert_close(state[key], hsdp[key], rtol=0, atol=1e-6)


ALONE = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rank = dist.get_rank()
for step in range(6):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 2))
        model.train()
        print("evaluated", flush=True)
    BARRIER
"""


@pytest.mark.parametrize("strategy", ["eager-majority", "local-sgd", "d-psgd"])
@pytest.mark.parametrize("barrier", ["dist.barrier()", ""])
def test_one_worker_evaluates_alone(strategy: str, barrier: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE.replace("BARRIER", barrier))
    ended = quorate(tmp_path, "run", "-n", "2", "--strategy", strategy, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("evaluated") == 6
    assert ended.stderr.count("so this worker evaluates its own replica") == 1


LATE = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Slow:
    def __setstate__(self, state):
        time.sleep(2)  # on rank 1 alone, in a collective that rank 0 has left
    def __getstate__(self):
        return {"a": 1}
rank = dist.get_rank()
for step in range(2):
    model(torch.randn(1, 2)).sum().backward()
    optimizer.step()
dist.broadcast_object_list([Slow()])
model.eval()
torch.save(model.state_dict(), f"state-{rank}.pt")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_a_worker_that_is_late_in_a_collective_is_waited_for(size: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LATE)
    ended = quorate(tmp_path, "run", "-n", str(size), "--strategy", "local-sgd", "train.py", timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "own replica" not in ended.stderr
    first, *others = states(tmp_path, size)
    assert all(torch.equal(first[key], other[key]) for other in others for key in first)


REFUSED = {
    "a hook of its own": (
        "model.register_comm_hook(None, lambda state, bucket: bucket)",
        "register_comm_hook was given <lambda>",
    ),
    "a step in an evaluation": (
        "step(); model.eval(); step()",
        "optimizer.step() was called between model.eval() and model.train()",
    ),
    "an optimizer after the forward pass": (
        "loss = model(torch.ones(1, 2)).sum()\nlate = torch.optim.SGD(model.parameters())\n"
        "loss.backward()\nlate.step()",
        "SGD was made between a forward pass and its step",
    ),
    "processes of its own": (
        "torch.multiprocessing.spawn(print, nprocs=3)",
        "the script starts 3 processes by itself",
    ),
    "a queue between processes": (
        "m = torch.multiprocessing; m.spawn(print, args=(m.get_context('spawn').SimpleQueue(),), nprocs=2)",
        "the script gives a SimpleQueue to the processes that it starts",
    ),
    "a group of more processes": (
        "dist.destroy_process_group(); dist.init_process_group('gloo', rank=0, world_size=3)",
        "the script makes a group of 3 processes (init_process_group), and 2 workers were started of it",
    ),
    "the model in the wrapper": (
        "model.module(torch.ones(1, 2)).sum().backward(); optimizer.step()",
        "whose own forward was never called, so that workers would not agree; call the wrapper",
    ),
    "an optimizer of all workers": (
        "from torch.distributed.optim import ZeroRedundancyOptimizer as Z\n"
        "zero = Z(model.parameters(), torch.optim.SGD, lr=0.1); step()",
        "torch's ZeroRedundancyOptimizer keeps a piece of the state on each worker",
    ),
    "a model in shards without replicas": (
        "from torch.distributed.fsdp import fully_shard; fully_shard(torch.nn.Linear(2, 1))",
        "fully_shard was called without a mesh, so that all workers hold one replica",
    ),
    "another model on rank 1": (
        "DistributedDataParallel(torch.nn.Linear(2, 1 + dist.get_rank()))",
        "has other parameters or buffers on rank 1 than on rank 0",
    ),
}
REFUSED_SCRIPT = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("case", REFUSED)
def test_a_sentence_says_what_does_not_work(case: str, tmp_path: Path) -> None:
    line, words = REFUSED[case]
    (tmp_path / "train.py").write_text(f"{REFUSED_SCRIPT}{line}\n")
    ended = quorate(tmp_path, "run", "-n", "2", "--strategy", "eager-majority", "train.py")
    assert ended.returncode == 2
    assert words in ended.stderr


BY_HAND = """
import sys
import torch.distributed as dist, torch.multiprocessing as mp
def alone():
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
def train(rank, size):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:1", rank=rank, world_size=size)
if __name__ == "__main__":
    mp.set_start_method(sys.argv[1])
    for target, calls in ((alone, [()]), (train, [(0, 2), (1, 2)])):
        processes = [mp.Process(target=target, args=call) for call in calls]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            print("status", process.exitcode, flush=True)
"""


@pytest.mark.parametrize(
    ("method", "options"), [("spawn", ()), ("fork", ()), ("spawn", ("--strategy", "eager-majority"))]
)
def test_processes_of_a_script_that_would_train_are_refused(method: str, options: tuple[str], tmp_path: Path) -> None:
    """Torch would wait in them for ever, as each worker starts all of them; a group of one process is left alone."""
    (tmp_path / "train.py").write_text(BY_HAND)
    ended = quorate(tmp_path, "run", "-n", "2", "--name", "r", *options, "train.py", method)
    assert ended.returncode == 2, ended.stderr
    for rank in range(2):
        log = (tmp_path / f"runs/r/rank-{rank}.log").read_text()
        assert log.count("the script starts processes that train by itself (multiprocessing.Process)") == 1
        assert log.count("status 0") == log.count("status") == 1, "of the group of one process"
        assert "Traceback" not in log


def test_a_script_whose_parameters_were_never_agreed_on_does_not_end_well(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(2, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    )
    ended = quorate(tmp_path, "run", "-n", "2", "--strategy", "eager-solo", "train.py")
    assert ended.returncode == 1
    assert "--strategy eager-solo was asked for, and no worker used it" in ended.stderr


OUTLIVES = """
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
init_process_group("gloo")
class Model(DistributedDataParallel):
    def __del__(self):
        print("the model has ended")
model = Model(torch.nn.Linear(2, 1))
model(torch.ones(1, 2)).sum().backward()
destroy_process_group()
print("the script has ended")
"""


@pytest.mark.slow
def test_models_with_a_backend_end_with_their_process(tmp_path: Path) -> None:
    """In its clean-up gloo may wait for ever for a worker that has ended."""
    (tmp_path / "train.py").write_text(OUTLIVES)
    ended = quorate(tmp_path, "run", "-n", "1", "--name", "r", "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "the script has ended" in ended.stdout
    assert "the model has ended" not in ended.stdout
