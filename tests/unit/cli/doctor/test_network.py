"""How workers reach each other, judged: each fault injected; and the probes on this machine."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from quorate.cli.doctor import network
from quorate.cli.doctor.findings import Level
from quorate.cli.doctor.network import (
    judge_loopback,
    judge_name,
    judge_sockets,
    judge_token,
    judge_torchrun,
    probe_loopback,
    probe_name,
    probe_sockets,
    probe_token,
    probe_torchrun,
)
from quorate.wire.real.trust import LEAST_TOKEN


def test_no_loopback_no_training() -> None:
    assert judge_loopback(probe_loopback()).level is Level.OK
    finding = judge_loopback("network is unreachable")
    assert (finding.level, "ip link set lo up" in finding.fix) == (Level.FAIL, True)


def test_long_paths_are_too_long_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge_sockets(("/tmp", "/tmp", None)).level is Level.OK
    assert judge_sockets(("/tmp", "/tmp", "not permitted")).level is Level.FAIL
    deep = tmp_path / ("deep" * 20)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    finding = judge_sockets(probe_sockets())
    assert (finding.level, "TMPDIR" in finding.fix) == (Level.WARN, True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(network, "make_socket_folder", lambda: tmp_path / "nowhere" / "at all")
    assert judge_sockets(probe_sockets()).level is Level.FAIL


@pytest.mark.parametrize(
    ("address", "is_ours", "interface", "level"),
    [
        ("127.0.1.1", True, None, Level.OK),
        (None, False, None, Level.WARN),
        ("10.9.8.7", False, None, Level.WARN),
        (None, False, "eth0", Level.OK),
    ],
)
def test_a_name_that_leads_nowhere(address: str | None, is_ours: bool, interface: str | None, level: Level) -> None:
    finding = judge_name(("node", address, is_ours, interface))
    assert finding.level is level
    assert ("/etc/hosts" in finding.fix) == (level is Level.WARN)


def test_names_are_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    assert probe_name() == ("localhost", probe_name()[1], True, None)
    monkeypatch.setattr(socket, "gethostname", lambda: "no such name")
    assert probe_name()[1] is None


def test_restarts_by_torchrun_need_a_store_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    told = judge_torchrun((True, True, None))
    assert (told.level, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1" in told.fix) == (Level.WARN, True)
    assert judge_torchrun((True, True, "1")).level is Level.OK
    assert judge_torchrun((True, False, "1")).level is Level.WARN
    assert judge_torchrun((False, False, None)).level is Level.OK
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(network, "TORCHRUN_PORT", taken.getsockname()[1])
        assert not probe_torchrun()[1]


def test_a_token_that_would_be_refused_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORATE_TOKEN", raising=False)
    assert judge_token(probe_token()).level is Level.OK
    monkeypatch.setenv("QUORATE_TOKEN", "short")
    assert (judge_token(probe_token()).level, judge_token(probe_token()).found) == (
        Level.WARN,
        "QUORATE_TOKEN has 5 characters",
    )
    monkeypatch.setenv("QUORATE_TOKEN", "x" * LEAST_TOKEN)
    assert judge_token(probe_token()).level is Level.OK
