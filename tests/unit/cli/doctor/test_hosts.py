"""`quorate doctor --hosts`: the agents of hosts, and what is made of their answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from quorate.cli.doctor import connection, hosts
from quorate.cli.doctor.connection import bandwidth, latency, mtus
from quorate.cli.doctor.findings import Finding
from quorate.cli.doctor.hosts import Host, clocks_of_hosts, hosts_in, versions
from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.core.installed import version_of


def about(python: str = "3.12.4", torch: str | None = "2.13.0") -> dict[str, Any]:
    return {"python": python, "torch": torch}


ANSWERS: dict[str, tuple[Finding, str, str]] = {
    "same": (versions({"a": about(), "b": about()}), "OK", "torch 2.13.0, Python 3.12"),
    "builds": (versions({"a": about(), "b": about(torch="2.13.0+cpu")}), "OK", "torch 2.13.0"),
    "torch": (
        versions({"a": about(), "b": about(torch="2.12.1")}), "FAIL", "torch differs: 2.13.0 on a, 2.12.1 on b",
    ),
    "missing": (versions({"a": about(), "b": about(torch=None)}), "FAIL", "torch differs: 2.13.0 on a, none on b"),
    "python": (versions({"a": about(), "b": about("3.11.7")}), "WARN", "Python differs: 3.12 on a, 3.11 on b"),
    "hours": (clocks_of_hosts({"a": (0.0, 0.01), "b": (7200.0, 0.01)}), "WARN", "b is 7200.0 s ahead of a"),
    "milliseconds": (clocks_of_hosts({"a": (0.0, 0.0), "b": (-0.004, 1e-3)}), "OK", "the same to within 5 ms"),
    "near": (latency(2e-4), "OK", "0.2 ms to and fro"),
    "far": (latency(0.03), "WARN", "30 ms to and fro"),
    "broad": (bandwidth(1.25e9), "OK", "10 Gbit/s"),
    "narrow": (bandwidth(1.25e6), "WARN", "10 Mbit/s"),
    "stopped": (bandwidth(100.0), "FAIL", "next to nothing comes through"),
    "whole": (mtus(1500, True, True, 1500), "OK", "packets of 1500 bytes come through"),
    "two sizes": (mtus(9000, True, True, 1500), "WARN", "9000 at one end and 1500"),
    "lost": (mtus(1500, True, False, 1500), "FAIL", "packets of 1500 bytes are lost"),
    "no datagrams": (mtus(1500, False, False, 1500), "OK", "UDP does not come through"),
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


@pytest.fixture
def here() -> Iterator[Host]:
    host = Host(socket.gethostname())
    yield host
    host.link.close()


def test_an_agent_of_this_machine_answers(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ssh; the same machine is both ends of a way."""
    here.link.connect()
    answer = here.ask("listen", "127.0.0.1", 0)
    assert (answer["address"], answer["torch"], answer["taken"]) == ("127.0.0.1", version_of("torch"), None)
    rows = here.ask("measure", "127.0.0.1", answer["port"], answer["mtu"])
    assert {name: row[0] for name, row in rows.items() if name not in ("clock", "bandwidth")} == {
        "ports": "OK", "latency": "OK", "mtu": "OK",
    }  # fmt: skip
    ahead, uncertainty = rows["clock"]
    assert abs(ahead) <= uncertainty + 0.1 and rows["bandwidth"][0] in ("OK", "WARN")
    assert "Address already in use" in here.ask("listen", "127.0.0.1", answer["port"])["taken"]
    assert "leads nowhere there" in here.ask("listen", "no such name", 0)["error"]


def test_a_program_that_fails_has_last_words(here: Host) -> None:
    here.link.connect()
    with pytest.raises(OSError, match="KeyError: 'unknown'"):
        here.ask("unknown")


def test_a_program_that_does_not_answer_is_not_waited_for(here: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    here.link.connect()
    monkeypatch.setattr(hosts, "SECONDS", 0.0)
    with pytest.raises(OSError, match="no answer within 0 s"):
        here.ask("listen", "127.0.0.1", 0)


def test_a_port_that_is_shut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        assert connection.connect("127.0.0.1", port)["ports"].level == "OK"
    finding = connection.measure("127.0.0.1", port, "1500")["ports"]
    assert finding[:2] == ("FAIL", f"127.0.0.1:{port}: Connection refused") and "firewalls" in finding.fix


def test_hosts_that_do_not_answer_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SSH", "sh -c 'echo no, thanks >&2; exit 255'")
    findings = {name: check() for name, check in hosts.checks(hosts_in("a,b"))}
    assert list(findings) == ["host a", "host b"] and {finding.level for finding in findings.values()} == {"FAIL"}
    assert findings["host a"].found == "host a cannot be reached by ssh: no, thanks"
    assert f"ssh a {sys.executable}" in findings["host a"].fix
