"""`quorate watch`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorate.cli.main import main
from quorate.report.live import server
from tests.support.made_records import make_comparison, make_run


def status_of(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def test_a_run_of_yesterday_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of("watch", "--text", str(make_run(tmp_path / "x", steps=60))) == 0
    text = capsys.readouterr().out
    words = " ".join(text.split())  # a long path wraps its line
    assert "/x: 4 workers all-reduce, step 60, 2" in words and " rank 3 arrived last " in words
    assert text.splitlines()[-1].startswith("ended well")


def test_a_run_that_has_only_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"workers": 3}))
    assert status_of("watch", "--text", str(tmp_path)) == 0
    assert "starting: 0 of 3 workers have joined" in capsys.readouterr().out


def test_what_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "train-1", steps=2)
    assert status_of("watch", "train-2") == 2
    assert 'there is no run "train-2"' in (said := capsys.readouterr().err) and 'did you mean "train-1"?' in said
    assert status_of("watch", str(tmp_path)) == 2
    assert "no worker has left records in" in capsys.readouterr().err
    make_comparison(tmp_path / "compared", seeds=(0,), fails=False, steps=2)
    assert status_of("watch", "compared") == 2
    assert "holds a comparison; name one of its runs: " in capsys.readouterr().err


def test_the_page_until_it_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("quorate.cli.watch.time.sleep", interrupted)
    folder = make_run(tmp_path / "x", steps=2)
    assert status_of("watch", str(folder)) == 0
    address, how = capsys.readouterr().out.splitlines()
    assert address.startswith("http://127.0.0.1:") and "ssh -L " in how
    with server.LiveServer(folder) as taken:
        assert status_of("watch", "--port", str(taken.port), str(folder)) == 2
    assert "leave out --port for a free one" in capsys.readouterr().err
