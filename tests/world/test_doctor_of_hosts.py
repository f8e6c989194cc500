"""`quorate doctor --hosts` on hosts of its own: what is found, and what is wrong with them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Host, are_possible, hosts, words_on
from tests.support.programs import QUORATE, Program

pytestmark = [
    pytest.mark.on_hosts,
    pytest.mark.skipif(not are_possible(), reason="needs root on Linux, to make network namespaces"),
]


@pytest.fixture
def two() -> Iterator[list[Host]]:
    with hosts(2) as found:
        yield found


def without_ssh(folder: Path, two: list[Host], python: str = sys.executable) -> str:
    """What is called instead of ssh: goes to the host with that address, without asking who calls."""
    places = {host.address: host.pid for host in two}
    script = f"""
        import os, sys
        *options, dashes, host, command = sys.argv[1:]
        assert options[:3] == ["-T", "-o", "BatchMode=yes"] and dashes == "--", options
        if host not in {places}:
            sys.exit(f"ssh: connect to host {{host}} port 22: No route to host")
        command = command.replace({sys.executable!r}, {python!r} if host == {two[1].address!r} else {sys.executable!r})
        os.environ["SSH_CONNECTION"] = f"{{host}} 5000 {{host}} 22"
        os.execvp("nsenter", ["nsenter", "--net", "--uts", "--target", str({places}[host]), "--", "sh", "-c", command])
    """
    path = folder / "instead_of_ssh.py"
    path.write_text(textwrap.dedent(script))
    return f"{sys.executable} {path}"


def doctor(two: list[Host], ssh: str, *names: str, more: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
    """The status, and the findings by name."""
    words = [*QUORATE, "doctor", "--json", *more, "--hosts", ",".join(names or (host.address for host in two))]
    child = Program(words, env={**os.environ, "QUORATE_SSH": ssh}, inside=two[0].pid)
    try:
        out, err = child.communicate()
    finally:
        child.kill()
    assert out, err
    answer = json.loads(out)
    return child.wait(), {one["name"]: one for one in answer["findings"]} | {"rates": answer.get("bandwidth")}


def levels(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: one["level"] for name, one in found.items() if name != "rates"}


def test_two_hosts_that_can_train_together(two: list[Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bandwidth of all workers' sums; nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    ssh, (one, other) = without_ssh(tmp_path, two), (host.address for host in two)
    status, found = doctor(two, ssh, f"{one}:2", other, more=["--bandwidth"])
    assert status == 0, found
    ways = [f"ports {way}" for way in (f"{one} > {other}", f"{other} > {one}")]
    rows = [f"{name} {host}" for name in ("host", "address", "torch", "gpu") for host in (one, other)]
    for name in ("processes", "versions", "quorate run", *rows, *ways):
        assert found[name]["level"] == "OK", found[name]
    assert found[f"address {other}"]["found"] == other and found["quorate run"]["found"] == "3 workers agreed on cpu"
    assert {name.split()[0] for name in found} >= {"latency", "bandwidth"}
    assert [(rate["size"], rate["error"]) for rate in found["rates"]] == [(1 << n, 0.0) for n in (14, 18, 22, 26)]
    assert [path.name for path in tmp_path.iterdir()] == ["instead_of_ssh.py"]


def test_a_slow_cable_and_a_host_that_is_not_there(two: list[Host], tmp_path: Path) -> None:
    two[1].limit("20mbit")
    one, other = (host.address for host in two)
    status, found = doctor(two, without_ssh(tmp_path, two), one, other, "10.231.77.99")
    assert status == 3 and levels(found)["host 10.231.77.99"] == "FAIL"
    assert "No route to host" in found["host 10.231.77.99"]["found"]
    for way in (f"{one} > {other}", f"{other} > {one}"):
        told = found[f"bandwidth {way}"]
        assert told["level"] == "WARN" and 0 < float(told["found"].split()[0]) < 40 and "Mbit/s" in told["found"]
        assert "local-sgd" in told["fix"]


def test_packets_that_are_lost_on_the_way_for_their_size(two: list[Host], tmp_path: Path) -> None:
    """Both interfaces believe in 9000 bytes, and the switch between them carries 1500."""
    for host in two:
        host.run("ip", "link", "set", "dev", "cable", "mtu", "9000", "gso_max_segs", "1")  # as on a real cable
    status, found = doctor(two, without_ssh(tmp_path, two))
    assert status == 3
    for way in (f"{one.address} > {other.address}" for one, other in (two, two[::-1])):
        told = found[f"bandwidth {way}"]
        assert told["level"] == "FAIL", told
        assert told["found"].startswith("packets of 9000 bytes are lost on the way, and small ones are not")
        assert "mtu 1500" in told["fix"]


def test_what_is_dropped_on_the_way(two: list[Host], tmp_path: Path) -> None:
    """As a firewall does it that says nothing."""
    two[0].cut()
    status, found = doctor(two, without_ssh(tmp_path, two))
    one, other = (host.address for host in two)
    assert status == 3
    told = found[f"ports {one} > {other}"]
    assert told["level"] == "FAIL" and f" {other}:" in f" {told['found']}" and "firewalls" in told["fix"]
    assert f"bandwidth {one} > {other}" not in found


def test_another_python_without_quorate(two: list[Host], tmp_path: Path) -> None:
    bare = shutil.which("python3", path="/usr/bin:/bin")
    if bare is None or Path(bare).resolve() == Path(sys.executable).resolve():
        pytest.skip("there is no other Python")
    status, found = doctor(two, without_ssh(tmp_path, two, bare))
    told = found[f"host {two[1].address}"]
    assert status == 3 and told["level"] == "FAIL"
    assert "quorate cannot be started on host" in told["found"] or "has quorate None" in told["found"]


def test_over_ssh(two: list[Host], tmp_path: Path) -> None:
    """As it is: a server on each host, and a key."""
    tools = [shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") for tool in ("sshd", "ssh", "ssh-keygen")]
    if None in tools:
        pytest.skip("needs OpenSSH")
    sshd, ssh, keygen = map(str, tools)
    for name in ("host", "user"):
        words = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True, capture_output=True)
    (tmp_path / "sshd_config").write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin yes\nPidFile none\n"
    )
    (tmp_path / "ssh_config").write_text(
        f"IdentityFile {tmp_path}/user\nStrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    )
    os.makedirs("/run/sshd", exist_ok=True)
    servers = []
    try:
        for host in two:
            words = [*words_on(host.pid), sshd, "-D", "-e", "-f", str(tmp_path / "sshd_config")]
            server = subprocess.Popen(words, stderr=subprocess.PIPE)
            servers.append(server)
            assert server.stderr is not None
            while line := server.stderr.readline():
                if b"listening" in line:
                    break
        status, found = doctor(two, f"{ssh} -F {tmp_path}/ssh_config")
        assert status == 0, found
        _, refused = doctor(two, f"{ssh} -F /dev/null -o StrictHostKeyChecking=yes")
    finally:
        for server in servers:
            server.kill()
            server.communicate()
    told = refused[f"host {two[1].address}"]
    assert told["level"] == "FAIL" and "cannot be reached by ssh: " in told["found"]
