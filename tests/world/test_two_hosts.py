"""A run that spans two hosts: by TCP, with a token, and not without it."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.hosts import Host, are_possible, hosts
from tests.support.programs import Program

pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

SECRET = "a secret that is long enough"
PORT = 29411
SCRIPT = """
    import socket, torch, quorate
    world = quorate.join(timeout=200, records=False)
    for name in ("all-reduce", "quorum"):
        model = torch.nn.Linear(300, 300)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy=name)
        for step in range(4):
            model(torch.full((2, 300), float(world.rank))).sum().backward()
            optimizer.step()
        optimizer.finish()
        total = float(sum(x.double().sum() for x in model.parameters()))
        print(name, len(set(world.gather(total))) == 1)
    listening = [line.split()[1] for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}") if " 0A " in line]
    print(f"end {world.rank} {world.gather(socket.gethostname())} {world.wire.endpoint.is_local}")
    print("listening", *listening, flush=True)
"""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


def begun(
    two: Sequence[Host],
    folder: Path,
    tokens: Sequence[str | None],
    script: str,
) -> list[Program]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    children = []
    for rank, (host, token) in enumerate(zip(two, tokens, strict=True)):
        own = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        said = {"MASTER_ADDR": two[0].address, "MASTER_PORT": PORT, **own}
        environment = {**os.environ, **{name: str(value) for name, value in said.items()}}
        if token is not None:
            environment["QUORATE_TOKEN"] = token
        children.append(Program([str(path)], cwd=folder, env=environment, inside=host.pid))
    return children


def run(two: Sequence[Host], folder: Path, tokens: Sequence[str | None]) -> list[subprocess.CompletedProcess[str]]:
    children = begun(two, folder, tokens, SCRIPT)
    try:
        ended = []
        for child in children:
            out, err = child.communicate()
            ended.append(subprocess.CompletedProcess(child.args, child.returncode, out, err))
        return ended
    finally:
        for child in children:
            child.kill()
            child.wait()


def reachable(listening: str) -> set[str]:
    """Of `01020304:7F55 …`, as `/proc/net/tcp` has them, the addresses that are not of this host alone; no stores."""
    found = set()
    for place in listening.split():
        address, port = place.split(":")
        if int(port, 16) != PORT and not (len(address) == 8 and address.endswith("7F")):
            found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(address))))
    return found


def test_workers_on_two_hosts_agree(two: list[Host], tmp_path: Path) -> None:
    for rank, ended in enumerate(run(two, tmp_path, [SECRET, SECRET])):
        assert ended.returncode == 0, ended.stderr
        *told, listening = ended.stdout.splitlines()
        assert told == ["all-reduce True", "quorum True", f"end {rank} ['first', 'second'] False"]
        assert reachable(listening.removeprefix("listening ")) == {two[rank].address}


def test_without_the_token_nobody_is_let_in(two: list[Host], tmp_path: Path) -> None:
    for rank, ended in enumerate(run(two, tmp_path, [SECRET, None])):
        assert ended.returncode == 2 and "Traceback" not in ended.stderr
        sentence = ("have different tokens; set QUORATE_TOKEN", "rank 1 has no token, and the workers are on")[rank]
        assert any(line.startswith("quorate: ") and sentence in line for line in ended.stderr.splitlines())
        assert not ended.stdout


CUT = """
    import time, torch, quorate
    from quorate.observe.stopping import Stop
    Stop.limit = 2.0
    world = quorate.join(records=False)
    model = torch.nn.Linear(3, 3)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy="quorum")
    for step in range(1_000_000):
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        time.sleep(0.005)
        if step == 5:
            print("going", flush=True)
"""


@pytest.mark.parametrize("asked", [False, True])
def test_a_worker_that_is_cut_off_from_the_others_ends(tmp_path: Path, asked: bool) -> None:
    """After a silence, and sooner where it is asked to leave."""
    with hosts(2) as found:
        children = begun(found, tmp_path, [SECRET, SECRET], CUT)
        try:
            for child in children:
                assert child.stdout is not None and child.stdout.readline() == "going\n"
            found[0].cut()
            if asked:
                children[1].send_signal(signal.SIGTERM)
            _, said = children[1].communicate()
        finally:
            for child in children:
                child.kill()
                child.communicate()
    assert children[1].returncode == (75 if asked else 1), said
    assert ("asked to leave 2 s ago" if asked else "has not heard from the majority of the workers for 5 s") in said
