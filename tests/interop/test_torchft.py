"""The script of torchft's migration page before it is changed, beside the one after it."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from tests.support.libraries import PYTHON, needs, result_of, results
from tests.world.test_migration_pages import script

pytestmark = needs("torchft")
LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=60000)
print(server.address(), flush=True)
sys.stdin.read()
"""
GROUP = [
    "-m",
    "torch.distributed.run",
    "--nnodes=1",
    "--nproc-per-node=1",
    "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0",
]
RESULT = 'print("result", [x for p in model.parameters() for x in p.flatten().tolist()], flush=True)\n'


def before(folder: Path) -> list[float]:
    """Return the parameters that both replica groups have at the end, each a process of its own torchrun."""
    changes = {"    num_replicas=1,\n": "    num_replicas=1,\n    shuffle=False,\n"}
    # Both groups contribute to the first step: they begin with equal parameters, and none is healed in it.
    changes["min_replica_size=1,"] = "min_replica_size=2, init_sync=False,"
    text = script("torchft", "-")
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "before.py").write_text(text + RESULT)
    env = {**os.environ, "NUM_REPLICA_GROUPS": "2", "CUDA_VISIBLE_DEVICES": ""}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [str(PYTHON), "-c", LIGHTHOUSE], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env
    ) as lighthouse:
        assert lighthouse.stdin is not None and lighthouse.stdout is not None
        env["TORCHFT_LIGHTHOUSE"] = lighthouse.stdout.readline().strip()
        logs = [folder / f"group-{number}.log" for number in range(2)]
        with ExitStack() as files:
            groups = [
                subprocess.Popen(
                    [str(PYTHON), *GROUP, "before.py"],
                    cwd=folder,
                    env={**env, "REPLICA_GROUP_ID": str(number)},
                    stdout=files.enter_context(log.open("w")),
                    stderr=subprocess.STDOUT,
                )
                for number, log in enumerate(logs)
            ]
        try:
            statuses = [group.wait(timeout=200) for group in groups]
        finally:
            for group in groups:
                group.kill()
            lighthouse.stdin.close()
    assert statuses == [0, 0], logs[0].read_text()[-4000:]
    (first,), (second,) = (results(log.read_text()) for log in logs)
    assert first == second
    return first


@pytest.mark.timeout(400)
def test_the_scripts_before_and_after_train_the_same_parameters(tmp_path: Path) -> None:
    theirs = before(tmp_path)
    after = script("torchft", "+").replace("batch_size=16)", "batch_size=16, shuffle=False)")
    (tmp_path / "after.py").write_text(after + RESULT)
    ours = result_of(tmp_path, "after", "after.py")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)
