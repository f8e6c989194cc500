"""`--hosts`: what it says, and what it cannot say; and the plan that comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.cli.main import main
from quorate.core.errors import ConfigurationError
from quorate.launch.hosts.reach import layout_from


def test_hosts_have_their_ranks() -> None:
    layout = layout_from("a:2,me@b:1, [fd00::1]:2,c")
    assert [(place.host, list(place.ranks)) for place in layout.places] == [
        ("a", [0, 1]),
        ("me@b", [2]),
        ("fd00::1", [3, 4]),
        ("c", [5]),
    ]
    assert layout.size == 6 and [layout.place_of(rank) for rank in range(6)] == [0, 0, 1, 2, 2, 3]
    assert layout.in_words == "a (2), me@b (1), fd00::1 (2), c (1)"


@pytest.mark.parametrize(
    "text", ["", "a:0", "a:x", "a:1,,b:1", "a b:1", "-oProxyCommand=x:1", "a:2000", ":4", "a:1,a:2"]
)
def test_what_is_no_list_of_hosts(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--hosts"):
        layout_from(text)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")


def said_by(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["run", *words, "train.py"])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.usefixtures("script")
def test_a_dry_run_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    status, said = said_by(capsys, "--hosts", "a:2,b:2", "--ssh", "ssh -p 2222", "--dry-run")
    summary, *commands = said.splitlines()
    assert status == 0 and summary.startswith("would start 4 workers on a (2), b (2) of train.py, strategy: ")
    assert [command.startswith("ssh -p 2222 -T ") for command in commands] == [True, True]
    assert [command.split(" -- ")[1].partition(" ")[0] for command in commands] == ["a", "b"]
    status, said = said_by(capsys, "--hosts", "a:2,b:2", "--dry-run", "--json")
    plan = json.loads(said)
    assert (plan["workers"], plan["hosts"], list(plan["commands"])) == (4, "a:2,b:2", ["a", "b"])


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "3", "--hosts", "a:2"], "-n is 3, and --hosts a:2 has 2 workers"),
        (["--virtual", "2", "--hosts", "a:2"], "--virtual cannot be given with --hosts"),
        (["--restart", "2", "--hosts", "a:2"], "--restart cannot be given with --hosts"),
        (["--ssh", "x"], "--ssh can be given with --hosts only"),
        (["--silence", "5s"], "--silence can be given with --hosts only"),
        (["--hosts", "a:2", "--silence", "1ms"], "is from 0.5 to 3600 seconds"),
        (["--hosts", "a:2", "--silence", "soon"], '"soon" in "--silence soon" is not a duration'),
        (["--hosts", "a:2", "--ssh", "'x"], "is not a command"),
        (["--hosts", "a:2", "--env", "1x=2"], '--env "1x=2" is not a variable'),
    ],
)
def test_what_cannot_be(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, said = said_by(capsys, *words, "--dry-run")
    assert status == 2 and sentence in said
