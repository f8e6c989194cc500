"""Variables that somebody has set by hand, and wrongly: one sentence, and status 2."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.launch.local import orphans
from quorate.launch.local.orphans import watch_launcher
from quorate.launch.run.overrides import overrides_here
from quorate.launch.worker.between_hosts import congestion_here, limits_here
from tests.support.programs import run

ALONE = "import quorate; quorate.join()"


@pytest.fixture(autouse=True)
def _is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are watched by mistake end no other test."""
    monkeypatch.setattr(orphans, "_until_it_ends", lambda watched: None)


@pytest.mark.parametrize("number", ["x", "-1", "77777", "0.5", "99999999999999999999", ""])
def test_what_is_no_pipe_of_a_launcher(monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    monkeypatch.setenv("QUORATE_LAUNCHER_FD", number)
    with pytest.raises(ConfigurationError, match=f"^QUORATE_LAUNCHER_FD={number} is not a pipe of a launcher"):
        watch_launcher()


def test_an_open_file_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file:
        monkeypatch.setenv("QUORATE_LAUNCHER_FD", str(file.fileno()))
        with pytest.raises(ConfigurationError, match="is not a pipe of a launcher"):
            watch_launcher()


def test_a_share_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_DATA_SHARE", "statik")
    with pytest.raises(ConfigurationError, match='^unknown share "statik"; did you mean "static"'):
        overrides_here()


@pytest.mark.parametrize(
    "wrong",
    [
        {"QUORATE_LAUNCHER_FD": "x"},
        {"QUORATE_IMBALANCE": "trace:/dev/zero"},
        {"QUORATE_CHAOS": "1", "QUORATE_FAILURES": "mtbf=1s"},
        {"QUORATE_FAILURES": "mtbf=1s"},
        {
            "QUORATE_MAX_WORKERS": "999999999",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        },
    ],
    ids=lambda wrong: str(next(iter(wrong))),
)
def test_it_is_one_sentence(wrong: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(ALONE)
    ended = run(["alone.py"], cwd=tmp_path, env={**os.environ, **wrong})
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert ended.stderr.startswith("quorate: ") and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(("written", "seconds"), [("", 5.0), ("2s", 2.0), ("500ms", 0.5), ("1min", 60.0)])
def test_the_silence_between_hosts(written: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SILENCE", written)
    assert limits_here().silence == seconds


@pytest.mark.parametrize("written", ["5", "soon", "0.1", "2h", "-1s"])
def test_a_silence_that_is_none(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_SILENCE", written)
    with pytest.raises(ConfigurationError, match="QUORATE_SILENCE|the silence after which"):
        limits_here()


def test_the_congestion_control_between_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_CONGESTION", " ")
    assert congestion_here() == ""
    monkeypatch.setenv("QUORATE_CONGESTION", "nonsense")
    expected = "; this user may choose " if sys.platform.startswith("linux") else " can be set on Linux only"
    with pytest.raises(ConfigurationError, match=f"^QUORATE_CONGESTION=nonsense.*{expected}"):
        congestion_here()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it can be chosen on Linux only")
def test_every_system_has_reno(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_CONGESTION", "reno")
    assert congestion_here() == "reno"
