"""Named requests among real processes: large tensors, an example of each kind, a killed server, beside torch's RPC."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
import torch

from quorate.core.errors import PeerFailed
from quorate.launch.virtual.run import run_script
from quorate.launch.worker.world import World
from tests.architecture.tree import ROOT
from tests.support.processes import outcomes_real_world, run_real_world

EXAMPLES = {
    "replay_buffer": r"the way to the reward takes 7 steps",
    "hyperparameters": r"12 of 12 trials are reported",
}


def exchange(world: World) -> list[float]:
    """All ask all others for large tensors, and while they wait answer them."""
    world.serve("scaled", lambda x, factor: {"x": x * factor, "rank": world.rank})
    answers = [world.ask(peer, "scaled", torch.full((300, 500), 2.0), factor=peer + 1) for peer in range(world.size)]
    found = [answer.wait() for answer in answers]
    world.serve_until_done()
    assert [one["rank"] for one in found] == list(range(world.size))
    return [float(one["x"].mean()) for one in found]


def test_processes_ask_each_other() -> None:
    assert run_real_world(3, exchange) == [[2.0, 4.0, 6.0]] * 3


def killed(world: World) -> str:
    """Rank 0 is killed while it answers."""
    if world.rank == 0:
        world.serve("it", lambda: os.kill(os.getpid(), signal.SIGKILL))
        world.serve_until_done()
    try:
        world.ask(0, "it").wait()
    except PeerFailed as error:
        return str(error)
    return "answered"


def test_a_server_that_is_killed_is_named() -> None:
    first, second = outcomes_real_world(2, killed)
    assert first.exit_code == -signal.SIGKILL
    assert "rank 0" in f"{second.result} {second.error}"


def beside_rpc(world: World) -> tuple[int, int]:
    """torch.distributed.rpc in the same processes."""
    from torch.distributed import rpc

    names = [f"worker{rank}" for rank in range(world.size)]
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{os.environ['QUORATE_TEST_RPC']}")
    rpc.init_rpc(names[world.rank], rank=world.rank, world_size=world.size, rpc_backend_options=options)
    other = 1 - world.rank
    world.serve("twice", lambda x: 2 * x)
    found = int(rpc.rpc_sync(names[other], max, args=(3, 4))), int(world.ask(other, "twice", 21).wait())
    rpc.shutdown()
    world.serve_until_done()
    return found


def test_torchs_own_requests_work_beside(tmp_path: Path) -> None:
    try:
        from torch.distributed import rpc  # noqa: F401
    except ImportError:
        pytest.skip("this torch is built without torch.distributed.rpc")
    found = run_real_world(2, beside_rpc, environment={"QUORATE_TEST_RPC": str(tmp_path / "rpc")})
    assert found == [(4, 42)] * 2


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_do_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status = run_script(ROOT / "examples" / "requests" / f"{name}.py", [], 4, run_dir=tmp_path / "logs")
    told = (tmp_path / "logs" / "rank-0.log").read_text()
    assert status == 0 and re.search(EXAMPLES[name], told), told


def test_no_example_is_left_out() -> None:
    assert {path.stem for path in (ROOT / "examples" / "requests").glob("*.py")} == set(EXAMPLES)
