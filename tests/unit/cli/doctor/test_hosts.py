"""`quorate doctor --hosts`: the ways between hosts, and what is made of them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from quorate.cli.doctor import connection
from quorate.cli.doctor import hosts as of_hosts
from quorate.cli.doctor.connection import bandwidth, latency
from quorate.cli.doctor.findings import Finding
from quorate.cli.doctor.hosts import hosts_in, versions
from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.wire.real.trust import LEAST_TOKEN


def about(python: str = "3.12.4", torch: str = "2.13.0") -> dict[str, Any]:
    return {
        "torch_version": torch, "python_version": f"{python} (64-bit runtime)", "os": "Linux", "gpus": [], "apart": [],
        "nvml": "", "cuda_compiled_version": None, "hip_compiled_version": None, "nvidia_driver_version": None,
    }  # fmt: skip


ANSWERS: dict[str, tuple[Finding, str, str]] = {
    "same": (versions({"a": about(), "b": about()}), "OK", "torch 2.13.0, Python 3.12"),
    "builds": (versions({"a": about(), "b": about(torch="2.13.0+cpu")}), "OK", "torch 2.13.0"),
    "torch": (
        versions({"a": about(), "b": about(torch="2.12.1")}), "FAIL", "torch differs: 2.13.0 on a, 2.12.1 on b",
    ),
    "python": (versions({"a": about(), "b": about("3.11.7")}), "WARN", "Python differs: 3.12 on a, 3.11 on b"),
    "near": (latency(2e-4), "OK", "round trip of 0.2 ms"),
    "far": (latency(0.03), "WARN", "round trip of 30 ms"),
    "broad": (bandwidth(1.25e9), "OK", "10 Gbit/s"),
    "narrow": (bandwidth(1.25e6), "WARN", "10 Mbit/s"),
    "lost": (bandwidth(100.0, 9000), "FAIL", "packets of 9000 bytes are lost on the way, and small ones are not"),
    "lost elsewhere": (bandwidth(0.0), "FAIL", "packets are lost on the way"),
}  # fmt: skip


@pytest.mark.parametrize(("finding", "level", "found"), ANSWERS.values(), ids=ANSWERS)
def test_a_fault_has_a_sentence_and_a_fix(finding: Finding, level: str, found: str) -> None:
    assert finding.level == level and found in finding.found and bool(finding.fix) == (level != "OK")


@pytest.mark.parametrize("text", ["a", "", "a,", "a,a", "a,-oProxyCommand=x", ",b"])
def test_hosts_are_two_or_more(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError):
        hosts_in(text)
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--hosts", text])
    assert ended.value.code == 2 and "--hosts" in capsys.readouterr().err


def test_hosts_are_named_as_for_a_run() -> None:
    assert [place.host for place in hosts_in("a:4, me@b,c").places] == ["a", "me@b", "c"]


def test_both_ends_of_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "address_here", lambda: "127.0.0.1")
    monkeypatch.setattr(connection, "SECONDS", 0.2)
    other = connection.listen()
    assert other["address"] == ("OK", "127.0.0.1", "")
    found = connection.measure("127.0.0.1", other["port"])
    assert [found[name].level for name in ("ports", "latency")] == ["OK", "OK"]
    assert found["bandwidth"].level in ("OK", "WARN") and "bit/s" in found["bandwidth"].found


def test_an_address_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As workers find it, with their sentence."""
    monkeypatch.delenv("QUORATE_HOST", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "no such name")
    assert connection.listen()["address"][:2] == (
        "FAIL", "MASTER_ADDR=no such name is not an address of a machine: Name or service not known",
    )  # fmt: skip
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert "is reached from this one only" in connection.listen()["address"].found


def rows_of(*hosts: dict[str, Any], ways: Sequence[Any] = ()) -> dict[str, Finding]:
    return dict(of_hosts.rows(hosts_in("a,b").places, {"hosts": hosts, "ways": ways}))


def test_every_host_has_its_rows() -> None:
    card = {"name": "H100", "capability": "9.0", "memory": 80 * 10**9, "free": 79 * 10**9, "ecc_errors": 1}
    found = rows_of(
        {"address": ["OK", "10.0.0.1", ""], "facts": {**about(), "gpus": [card, card]}},
        {"address": ["OK", "10.0.0.2", ""], "error": "No module named 'torch'"},
        ways=[(0, 1, {"ports": ["OK", "a free port is reached", ""]}), (1, 0, {"ports": ["FAIL", "dropped", "x"]})],
    )
    assert {name: finding.level for name, finding in found.items()} == {
        "address a": "OK", "address b": "OK", "torch a": "OK", "gpu 0 a": "WARN", "gpu 1 a": "OK", "gpu pairs a": "OK",
        "torch b": "FAIL", "versions": "OK", "ports a > b": "OK", "ports b > a": "FAIL",
    }  # fmt: skip
    assert "No module named 'torch'" in found["torch b"].found


@pytest.mark.parametrize(("waits", "level"), [(True, "WARN"), (False, "OK")])
def test_a_slow_network_is_a_warning_if_workers_wait(waits: bool, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [{"address": ["OK", "10.0.0.1", ""], "facts": about(python)} for python in ("3.12.1", "3.11.2")]
    slow = {"latency": list(latency(0.03)), "bandwidth": list(bandwidth(1e6))}
    answer = {"hosts": hosts, "ways": [(0, 1, slow)]}
    monkeypatch.setattr(of_hosts, "_reach", lambda place, reached: reached.append(place) or Finding("OK", ""))
    monkeypatch.setattr(of_hosts, "_examine", lambda reached, found: found.update(answer) or Finding("OK", ""))
    found = {name: check() for name, check in of_hosts.checks(hosts_in("a,b"), waits=waits)}
    assert found["latency a > b"].level == found["bandwidth a > b"].level == level
    assert found["latency a > b"].found == "round trip of 30 ms" and found["versions"].level == "WARN"


@pytest.mark.parametrize(("token", "level"), [(None, None), ("", "FAIL"), ("short", "FAIL"), ("x" * LEAST_TOKEN, "OK")])
def test_a_token_that_workers_would_refuse(
    token: str | None, level: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUORATE_SSH", "sh -c 'exit 255'")
    monkeypatch.delenv("QUORATE_TOKEN", raising=False)
    if token is not None:
        monkeypatch.setenv("QUORATE_TOKEN", token)
    found = {name: check() for name, check in of_hosts.checks(hosts_in("a,b"))}
    assert (found["token"].level if "token" in found else None) == level


def test_a_port_that_is_shut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    finding = connection.measure("127.0.0.1", port)["ports"]
    assert finding[:2] == ("FAIL", f"127.0.0.1:{port}: Connection refused") and "firewalls" in finding.fix


def test_hosts_that_do_not_answer_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SSH", "sh -c 'echo no, thanks >&2; exit 255'")
    findings = {name: check() for name, check in of_hosts.checks(hosts_in("a,b"))}
    assert list(findings) == ["host a", "host b"] and {finding.level for finding in findings.values()} == {"FAIL"}
    assert findings["host a"].found == "host a cannot be reached by ssh: no, thanks"
    assert f"ssh a {sys.executable}" in findings["host a"].fix
