"""The live page in a real browser: it follows a run that goes on, stops asking at its end, and fits on a telephone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from quorate.records.records import records_of
from quorate.report.charts.markup import Markup
from quorate.report.live.page import LivePage
from quorate.report.live.server import LiveServer
from tests.support.made_records import make_run
from tests.support.parsed_pages import Element, parsed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (Debian: apt install chromium)")


def shown(address: str, folder: Path, *, width: int = 1300) -> Element:
    """The document some seconds after it was opened; the browser complains of nothing."""
    assert BROWSER is not None
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
               "--enable-logging=stderr", "--v=0", f"--window-size={width},1000", "--virtual-time-budget=4000",
               f"--user-data-dir={folder / 'profile'}")  # fmt: skip
    done = subprocess.run(
        [BROWSER, *options, "--dump-dom", address], capture_output=True, encoding="utf-8", timeout=90, check=True
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return parsed(done.stdout)


class Growing(LivePage):
    """Its run takes its other half between the first state and the second."""

    def __init__(self, folder: Path, made: Path) -> None:
        super().__init__(folder)
        self.made, self.asked = made, 0

    def state(self, *, lists: bool = False) -> Markup:
        self.asked += 1
        if self.asked > 1:
            for rank in range(4):
                shutil.copy(records_of(self.made, rank), self.run.folder)
        return super().state(lists=lists)


def test_it_follows_a_run_that_goes_on(tmp_path: Path) -> None:
    made, folder = make_run(tmp_path / "made", steps=60), tmp_path / "train-1"
    folder.mkdir()
    shutil.copy(made / "run.json", folder)
    for rank in range(4):
        rows = records_of(made, rank).read_text().splitlines(True)
        records_of(folder, rank).write_text("".join(rows[:30]))
    with LiveServer(folder) as server:
        server.page = Growing(folder, made)
        page = shown(server.address, tmp_path)
        assert server.page.asked == 2, "a run that has ended is not asked for again"
    assert "step 60" in page.one(class_="speed").text
    assert "every worker has ended" in page.text
    assert page.one(id="connection").attributes.get("hidden") is not None
    assert len(page.all("svg")) > 8 and "Rank 3 arrived last" in page.text


def test_a_wrong_token_is_said(tmp_path: Path) -> None:
    with LiveServer(make_run(tmp_path / "x", steps=5)) as server:
        page = shown(f"http://127.0.0.1:{server.port}/wrong/", tmp_path, width=380)
    assert "does not hold the token of the run" in page.text
