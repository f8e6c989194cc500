"""A run between two hosts in TLS, and who listens at the switch between them."""

from __future__ import annotations

import os
import socket
import textwrap
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hosts import Host, are_possible, enter, hosts
from tests.support.programs import Program
from tests.support.seats import on_hosts

pytest.importorskip("cryptography")
pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")

MARK = "nobody else is to read this"
SCRIPT = f"""
    import torch, quorate
    world = quorate.join(timeout=200, records=False)
    model = torch.nn.Linear(300, 300)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, strategy="quorum", wait_for=2)
    for step in range(5):
        model(torch.full((2, 300), float(world.rank))).sum().backward()
        optimizer.step()
    optimizer.finish()
    total = float(sum(x.double().sum() for x in model.parameters()))
    print(len(set(world.gather(total))), *world.gather("{MARK}"), sep=";", flush=True)
    world.wire.board.set("remark", b"{MARK[::-1]}")
"""
ALL = 3
"""Of every protocol (ETH_P_ALL)."""


@pytest.fixture(scope="module")
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


@contextmanager
def listening(host: Host) -> Iterator[bytearray]:
    """All that goes through the switch of `host`."""

    def opened() -> socket.socket:
        enter(host._switch, "net")
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))

    seen, is_over = bytearray(), threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sock = thread.submit(opened).result()
    sock.settimeout(0.1)

    def listen() -> None:
        while not is_over.is_set():
            try:
                seen.extend(sock.recv(1 << 17))
            except TimeoutError:
                continue

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield seen
    finally:
        is_over.set()
        listener.join()
        sock.close()


def run(two: Sequence[Host], folder: Path, tls: Sequence[str], script: str = SCRIPT) -> list[tuple[int, str, str]]:
    """By rank: exit status, stdout, stderr."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    children = []
    try:
        for host, seat, wish in zip(two, on_hosts(two), tls, strict=True):
            environment = {**os.environ, **seat, "QUORATE_TLS": wish}
            children.append(Program([str(path)], cwd=folder, env=environment, inside=host.pid))
        said = [child.communicate() for child in children]
        return [(child.wait(), *words) for child, words in zip(children, said, strict=True)]
    finally:
        for child in children:
            child.kill()
            child.wait()


@pytest.mark.parametrize("tls", ["1", "0"])
def test_who_listens_between_the_hosts_reads_nothing_of_ours(two: list[Host], tmp_path: Path, tls: str) -> None:
    with listening(two[0]) as seen:
        ended = run(two, tmp_path, [tls, tls])
    for status, out, err in ended:
        assert (status, out) == (0, f"1;{MARK};{MARK}\n"), err
    found = [word in seen for word in (MARK.encode(), MARK[::-1].encode(), b'"source"', b'"append"')]
    assert found == [tls == "0"] * 4


@pytest.mark.on_hosts
def test_all_encrypt_or_none(two: list[Host], tmp_path: Path) -> None:
    for status, out, err in run(two, tmp_path, ["1", "0"]):
        assert status == 2 and not out
        sentence = (
            "QUORATE_TLS=1 is set on rank 0 (host first) and not on rank 1 (host second); set it on every machine"
        )
        assert sentence in err


@pytest.mark.on_hosts
def test_without_the_library_all_are_told(two: list[Host], tmp_path: Path) -> None:
    without = """
        import importlib.util, os
        from quorate.wire.real import encryption
        if os.environ["RANK"] == "1":
            encryption.find_spec = lambda name: None
        import quorate
        quorate.join(timeout=200)
    """
    for status, _, err in run(two, tmp_path, ["1", "1"], without):
        assert status == 3 and "Traceback" not in err
        assert "QUORATE_TLS=1 needs cryptography on rank 1 (host second); install it there: pip install" in err


@pytest.mark.on_hosts
def test_what_is_no_answer_is_refused(two: list[Host], tmp_path: Path) -> None:
    for status, _, err in run(two, tmp_path, ["yes", "yes"]):
        assert status == 2 and "QUORATE_TLS=yes must be 1 (encrypt) or 0" in err


def test_who_shows_another_certificate_ends_the_run_with_one_sentence(two: list[Host], tmp_path: Path) -> None:
    """Rank 1 is led to a listener that has made a certificate of its own."""
    misled = """
        import os, socket, threading
        from contextlib import suppress
        from quorate.wire.real.encryption import Encryption
        from quorate.wire.real.endpoint import Endpoint
        import quorate
        os.environ["QUORATE_SILENCE"] = "1s"
        listener, impostor = socket.create_server(("127.0.0.1", 0)), Encryption()

        def answer():
            while True:
                with suppress(OSError):
                    caller = impostor.accepted(listener.accept()[0])
                    caller.do_handshake()
                    assert not caller.recv(100)

        threading.Thread(target=answer, daemon=True).start()
        find = Endpoint._find

        def led_astray(self, peer):
            digest = find(self, peer).split(":")[1]
            return f"tls:{digest}:127.0.0.1:{listener.getsockname()[1]}"

        if os.environ["RANK"] == "1":
            Endpoint._find = led_astray
        world = quorate.join(timeout=200, records=False)
        world.gather("secret")
    """
    for status, _, err in run(two, tmp_path, ["1", "1"], misled):
        assert status == 1 and "Traceback" not in err
        assert "was shown another certificate at 127.0.0.1:" in err and "and nothing was sent" in err
