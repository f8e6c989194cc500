"""How workers reach each other, judged: each fault injected; and the checks on this machine."""

from __future__ import annotations

import socket

import pytest

from quorate.cli.doctor import network
from quorate.wire.real.trust import LEAST_TOKEN


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_PORT", "GLOO_SOCKET_IFNAME", "QUORATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_no_loopback_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.ports().level != "FAIL"

    def unreachable(*address: object, **options: object) -> socket.socket:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    finding = network.ports()
    assert finding.level == "FAIL" and "ip link set lo up" in finding.fix
    assert "network is unreachable" in finding.found


def test_a_port_of_torchrun_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.master_port() == 29500
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        finding = network.ports()
    assert (finding.level, finding.found) == ("WARN", f"{port}, torchrun's, is taken")
    assert network.ports().level == "OK"


@pytest.mark.parametrize(
    ("name", "interface", "level"),
    [("localhost", None, "OK"), ("no such name", None, "WARN"), ("no such name", "eth0", "OK")],
)
def test_a_name_that_leads_nowhere(
    name: str, interface: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    if interface is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    finding = network.host_name()
    assert finding.level == level and ("/etc/hosts" in finding.fix) == (level == "WARN")


def test_a_name_that_leads_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.7", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *arguments, **options: [address])
    finding = network.host_name()
    assert finding.level == "WARN" and "leads to 192.0.2.7, which is not this machine" in finding.found


def test_a_token_that_would_be_refused_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.token().level == "OK"
    monkeypatch.setenv("QUORATE_TOKEN", "short")
    assert network.token()[:2] == ("WARN", "QUORATE_TOKEN has 5 characters")
    monkeypatch.setenv("QUORATE_TOKEN", "x" * LEAST_TOKEN)
    assert network.token().level == "OK"
