"""`quorate doctor --hosts`: what is made of what hosts say of each other."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from quorate.cli.doctor import hosts
from quorate.cli.doctor.findings import Finding
from quorate.cli.doctor.hosts import (
    About,
    Day,
    Far,
    judge_address,
    judge_bandwidth,
    judge_connection,
    judge_days,
    judge_latency,
    judge_master_port,
    judge_mtu,
    judge_reach,
    judge_versions,
    words_on,
)
from quorate.cli.main import main
from quorate.core.errors import ConfigurationError


def about(name: str, python: str = "3.12.4", quorate: str | None = "0.1.0", torch: str | None = "2.13.0") -> About:
    return About(name, python, "/venv/bin/python", {"quorate": quorate, "torch": torch})


ANSWERS: dict[str, tuple[Finding, str, str]] = {
    "reached": (judge_reach("a", about("a")), "OK", "answers; its Python is /venv/bin/python"),
    "refused": (judge_reach("a", "Permission denied."), "FAIL", "could not be asked over ssh: Permission denied."),
    "same": (
        judge_versions([about("a"), about("b")]),
        "OK",
        "quorate 0.1.0, torch 2.13.0, Python 3.12, the same on all",
    ),
    "builds": (judge_versions([about("a"), about("b", torch="2.13.0+cpu")]), "OK", "quorate 0.1.0, torch 2.13.0"),
    "torch": (
        judge_versions([about("a"), about("b", torch="2.12.1")]),
        "FAIL",
        "torch differs: 2.13.0 on a, 2.12.1 on b",
    ),
    "missing": (
        judge_versions([about("a"), about("b", quorate=None)]),
        "FAIL",
        "quorate is missing on b (for /venv/bin/python)",
    ),
    "python": (judge_versions([about("a"), about("b", "3.11.7")]), "WARN", "Python differs: 3.12 on a, 3.11 on b"),
    "too old, and empty": (judge_versions([about("b", "3.9.1", quorate=None)]), "FAIL", "Python is 3.9.1 on b"),
    "far too old": (judge_reach("a", "its Python is 3.6.8, and"), "FAIL", "its Python is 3.6.8, and"),
    "too old": (judge_versions([about("a"), about("b", "3.10.1")]), "FAIL", "Python is 3.10.1 on b"),
    "hours": (judge_days([("a", Day(0.0, 0.01)), ("b", Day(7200.0, 0.01))]), "WARN", "b is 7200.0 s ahead of a"),
    "milliseconds": (
        judge_days([("a", Day(0.004, 5e-4)), ("b", Day(0.0, 5e-4))]),
        "OK",
        "a is 4 ms ahead of b, give or take 1 ms",
    ),
    "one day": (judge_days([("a", Day(0.0, 0.01)), ("b", Day(0.002, 0.01))]), "OK", "the same on all, to within 20 ms"),
    "its own": (judge_address("b", "127.0.0.1", "lo", "a"), "FAIL", "a leads to 127.0.0.1 there, which is b itself"),
    "an address": (judge_address("b", "10.0.0.2", "eth0", "a"), "OK", "10.0.0.2 (eth0)"),
    "open": (judge_connection("a > b", "10.0.0.2:4242", None), "OK", "a free port is reached"),
    "dropped": (
        judge_connection("a > b", "10.0.0.2:4242", "timed out"),
        "FAIL",
        "what is sent to 10.0.0.2:4242 is dropped on the way",
    ),
    "rejected": (
        judge_connection("a > b", "10.0.0.2:4242", "No route to host"),
        "FAIL",
        "10.0.0.2:4242 cannot be reached (No route to host)",
    ),
    "near": (judge_latency("a > b", 2e-4), "OK", "0.2 ms to and fro"),
    "far": (judge_latency("a > b", 0.03), "WARN", "30 ms to and fro"),
    "broad": (judge_bandwidth("a > b", 1.25e9), "OK", "10 Gbit/s"),
    "narrow": (judge_bandwidth("a > b", 1.25e6), "WARN", "10 Mbit/s"),
    "stopped": (judge_bandwidth("a > b", 100.0), "FAIL", "next to nothing comes through"),
    "whole": (
        judge_mtu("a > b", (1500, 1500), {"small": True, "large": True}),
        "OK",
        "1500, and packets of that size come through",
    ),
    "two sizes": (judge_mtu("a > b", (9000, 1500), {"small": True, "large": True}), "WARN", "9000 at one end and 1500"),
    "lost": (
        judge_mtu("a > b", (1500, 1500), {"small": True, "large": False}),
        "FAIL",
        "packets of 1500 bytes are lost",
    ),
    "no datagrams": (judge_mtu("a > b", (1500, 1500), {"small": False, "large": False}), "OK", "is not known"),
    "meets": (judge_master_port("a", 29500, None, {"b": None}), "OK", "29500 of a is reached"),
    "shut": (judge_master_port("a", 29500, None, {"b": "timed out"}), "FAIL", "b cannot reach port 29500 of a"),
    "taken": (judge_master_port("a", 29500, "Address already in use", {}), "WARN", "29500 cannot be listened at on a"),
}


@pytest.mark.parametrize(("finding", "level", "found"), ANSWERS.values(), ids=ANSWERS)
def test_what_is_found_is_one_sentence_and_what_is_wrong_has_a_fix(finding: Finding, level: str, found: str) -> None:
    assert finding.level == level and found in finding.found
    assert bool(finding.fix) == (level != "OK")
    assert not finding.found.endswith(".") or finding.found.endswith("denied.")


@pytest.mark.parametrize("text", ["a", "", "a,", "a,a", "a,-oProxyCommand=x", ",b"])
def test_hosts_are_two_or_more(text: str) -> None:
    with pytest.raises(ConfigurationError, match="name two hosts or more, each once, with commas between them"):
        hosts.hosts_in(text)


def test_hosts_are_named_with_commas_between_them() -> None:
    assert hosts.hosts_in("a, me@b,c") == ["a", "me@b", "c"]


def test_wrong_hosts_are_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", "--hosts", "a"])
    assert ended.value.code == 2 and "name two hosts or more" in capsys.readouterr().err


def test_this_machine_is_asked_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    assert words_on(socket.gethostname(), "true") == ["sh", "-c", "true"]
    monkeypatch.setenv("QUORATE_SSH", "ssh -F 'my config'")
    assert words_on("b", "echo 1")[:3] == ["ssh", "-F", "my config"]
    assert words_on("b", "echo 1")[-2:] == ["b", "sh -c 'echo 1'"]


@pytest.fixture
def here() -> Iterator[Far]:
    found = Far("localhost")
    yield found
    found.close()


def test_one_that_is_asked_answers(here: Far) -> None:
    told = here.ask("about", packages=["quorate", "no such package"])
    assert told["versions"]["no such package"] is None and told["versions"]["quorate"] is not None
    assert os.path.realpath(told["executable"]) == os.path.realpath(sys.executable)
    where: dict[str, Any] = {"address": "127.0.0.1", "port": here.ask("listen", address="127.0.0.1", port=0)["port"]}
    assert here.ask("connect", **where)["seconds"] < 3.0
    assert 0 < here.ask("ping", times=5, **where)["seconds"] < 1.0
    assert here.ask("fill", **where)["rate"] > 1e4
    assert here.ask("datagrams", mtu=1500, **where) == {"small": True, "large": True}
    with pytest.raises(OSError, match=r"(?i)in use"):
        here.ask("listen", **where)


def test_shells_may_greet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "words_on", lambda host, command: ["sh", "-c", f"echo; echo 12 months; {command}"])
    told = Far("b")
    try:
        assert told.ask("resolve", name="127.0.0.1") == {"address": "127.0.0.1"}
    finally:
        told.close()


def test_one_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "words_on", lambda host, command: ["sh", "-c", "exec sleep 60"])
    told = Far("b")
    try:
        with pytest.raises(OSError, match=r"no answer within 0.05 s"):
            told.ask("day", 0.05)
    finally:
        told.close()


def test_hosts_that_do_not_answer_are_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "words_on", lambda host, command: ["sh", "-c", "echo 'no, thanks' >&2; exit 255"])
    found = list(hosts.findings(["a", "b"]))
    assert [(one.name, one.level.value) for one in found] == [("host a", "FAIL"), ("host b", "FAIL")]
    assert all(one.found == "could not be asked over ssh: no, thanks" for one in found)
