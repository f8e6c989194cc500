"""The hosts that other tests are played on: what reaches whom, how fast, and what is left of them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.hosts import Direction, Host, are_possible, hosts, words_on
from tests.support.launching import until

pytestmark = pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces")


@pytest.fixture(scope="module")
def three() -> Iterator[list[Host]]:
    with hosts(3) as found:
        yield found


def arrives(source: Host, target: Host) -> bool:
    """Whether a datagram does."""
    with source.socket() as ours, target.socket() as theirs:
        ours.bind((source.address, 0))
        theirs.bind((target.address, 0))
        theirs.settimeout(0.15)
        for _ in range(3):  # the first may be lost while addresses are looked up
            ours.sendto(b"x", theirs.getsockname())
            try:
                return theirs.recv(9) == b"x"
            except TimeoutError:
                continue
    return False


@pytest.mark.parametrize(("direction", "goes_out", "comes_in"), [("both", 0, 0), ("out", 0, 1), ("in", 1, 0)])
def test_a_cable_is_cut_and_healed(three: list[Host], direction: Direction, goes_out: bool, comes_in: bool) -> None:
    first, second, third = three
    assert arrives(first, second) and arrives(second, first)
    first.cut(direction)
    assert (arrives(first, second), arrives(second, first)) == (goes_out, comes_in)
    assert arrives(third, second)
    first.heal()
    assert arrives(first, third) and arrives(third, first)


def test_a_cable_has_a_rate(three: list[Host]) -> None:
    first, second, _ = three
    first.limit("1mbit")
    try:
        with first.socket(socket.SOCK_STREAM) as ours, second.socket(socket.SOCK_STREAM) as listener:
            listener.bind((second.address, 0))
            listener.listen()
            ours.connect(listener.getsockname())
            theirs, _ = listener.accept()
            ours.setblocking(False)
            begin = time.monotonic()
            with theirs:
                left = 200_000
                while left:
                    try:
                        left -= ours.send(bytes(left))
                    except BlockingIOError:
                        theirs.recv(1 << 16)
                ours.shutdown(socket.SHUT_WR)
                while theirs.recv(1 << 16):
                    pass
            assert time.monotonic() - begin > 0.8  # 200 kB are 1.6 Mbit
    finally:
        first.limit(None)


def test_a_lost_host_has_no_processes() -> None:
    with hosts(2) as (first, second):
        there = subprocess.Popen([*words_on(second.pid), "sleep", "100"])
        while there.pid not in second.processes():
            time.sleep(0.001)
        second.lose()
        assert there.wait(10) == -9 and second.processes() == [second.pid]
        assert not arrives(first, second)
        left = subprocess.Popen([*words_on(first.pid), "sleep", "100"])
        while left.pid not in first.processes():  # it enters by names below /proc
            time.sleep(0.001)
        holders = first.pid, second.pid
    assert left.wait(10) == -9
    assert not any(os.path.exists(f"/proc/{pid}") for pid in holders)


def test_nothing_is_left_of_hosts_whose_maker_was_killed() -> None:
    script = "from tests.support.hosts import hosts\nwith hosts(1) as h: print(h[0].pid, flush=True); input()"
    maker = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert maker.stdout is not None
    holder = int(maker.stdout.readline())
    assert os.path.exists(f"/proc/{holder}")
    maker.kill()
    maker.communicate()
    until(lambda: not os.path.exists(f"/proc/{holder}"), "its end")
