"""The survey of hosts before a comparison starts on them, with agents on this machine in place of ssh."""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.link import check_hosts
from quorate.launch.hosts.reach import Hosts
from tests.support.hosts_here import ssh_to_here

OTHER = """
    import json, sys
    from quorate.launch.hosts.frames import MARK, Pipes
    from quorate.core.installed import version_of

    launcher = Pipes(0, 1)
    launcher.sendall(MARK)
    launcher.send("hello", json.dumps({"version": version_of("quorate"), "host": "other"}))
    while (frame := launcher.next()) is not None:
        if frame[0] == b"look":
            launcher.send("seen", sys.argv[1])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path


def other(folder: Path, seen: str) -> str:
    """Return a command for a host whose agent has seen this."""
    (folder / "other.py").write_text(textwrap.dedent(OTHER))
    return f"{shlex.quote(sys.executable)} {folder / 'other.py'} '{seen}'"


def test_hosts_that_have_all_of_it(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    check_hosts(Hosts(text="a:2,b:2", ssh=ssh_to_here(folder)), "train.py", Path("runs") / "x")
    assert sorted(path.name for path in folder.iterdir()) == sorted([*before, "ssh"])


def test_a_host_that_cannot_be_reached(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="host away cannot be reached by ssh: no route to away"):
        check_hosts(Hosts(text="a,away:2", ssh=ssh_to_here(folder)), "train.py", Path("runs"))


@pytest.mark.parametrize(
    ("seen", "sentence"),
    [
        ("{}", "host a has no train.py in .*, where this machine has it; put it there, too"),
        ('{"train.py": "0"}', "host a has another train.py than this machine; put the same one there"),
    ],
)
def test_a_host_without_the_script(folder: Path, seen: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        check_hosts(Hosts(text="a", ssh=other(folder, seen)), "train.py", Path("runs"))


def test_records_that_would_be_on_another_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorate.launch.hosts.link._LOOKS_FOR", 0.2)
    digest = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # of nothing
    ssh = other(folder, f'{{"train.py": "{digest}"}}')
    sentence = re.escape("the records would be in runs/x on host a, which is not the folder of that name on ")
    with pytest.raises(ConfigurationError, match=sentence):
        check_hosts(Hosts(text="a,b", ssh=ssh), "train.py", Path("runs") / "x")
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
