"""The page in a real browser: it says what summary.json says, complains of nothing, and fits on a telephone."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from quorate.report.page import page
from quorate.report.summary import summarize
from tests.support.made_records import make_comparison
from tests.support.made_summaries import failed_arm, made_summary
from tests.support.parsed_pages import Element, parsed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium (Debian: apt install chromium)")
UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "%": 0.01, "×": 1.0, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
FIGURES = ("quality", "time_to_target", "target_speedup", "examples_per_second", "speedup", "no_wait_share",
           "bytes_per_step", "peak_bytes")  # fmt: skip
MEASURE = """
const facts = {};
addEventListener("load", () => {
  for (const frame of document.querySelectorAll("iframe")) {
    const doc = frame.contentDocument, inside = frame.contentWindow;
    const shown = where => [...doc.querySelectorAll(where)].filter(one => one.getClientRects().length).length;
    const root = doc.documentElement;
    const panels = {};
    for (const name of ["bytes", "examples", "seconds"]) {
      doc.querySelector(`label[for=by-${name}]`).click();
      panels[name] = ["seconds", "examples", "bytes"].filter(one => shown(`.panel.${one}`));
    }
    const outside = [...doc.querySelectorAll("main *, header *")].filter(one =>
      !one.closest(".scroll") && !one.closest("svg") && one.getClientRects().length
      && one.getBoundingClientRect().right > root.clientWidth + 0.5).map(one => one.outerHTML.slice(0, 80));
    const pattern = doc.querySelector(".area.p-compute");
    const beside = doc.querySelector('table.arms td[data-field="target_speedup"]').getBoundingClientRect();
    const below = where => doc.querySelector(where).getBoundingClientRect().bottom;
    const words = doc.body.innerText.split(/\\s+/).length;
    facts[frame.width] = {
      wide: root.scrollWidth, room: root.clientWidth, outside, panels, desk: shown(".wide"), phone: shown(".slim"),
      fill: inside.getComputedStyle(pattern).fill, words, speedup: beside.right,
      headline: below(".headline"), verdict: below(".verdict"),
    };
  }
  document.body.textContent = JSON.stringify(facts);
});
"""


class Report:
    """A report on disk, and the browser that reads it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        summary = summarize(make_comparison(folder / "comparison", **changes))
        self.folder = folder
        self.html = page(summary)
        (folder / "report.html").write_text(self.html, encoding="utf-8")
        (folder / "summary.json").write_text(summary.model_dump_json(), encoding="utf-8")
        self.summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))

    def shown(self, name: str = "report.html") -> tuple[str, list[str]]:
        """The document after the browser has laid it out, and what it wrote to its console."""
        assert BROWSER is not None
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
                   "--disable-background-networking", "--enable-logging=stderr", "--v=0", "--window-size=1400,1000",
                   "--virtual-time-budget=2000", f"--user-data-dir={self.folder / 'profile'}")  # fmt: skip
        done = subprocess.run(
            [BROWSER, *options, "--dump-dom", (self.folder / name).as_uri()],
            capture_output=True, encoding="utf-8", timeout=90, check=True,
        )  # fmt: skip
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    def measured(self, page: str, *widths: int) -> dict[str, Any]:
        """What a page looks like in windows of these widths."""
        window = '<iframe width="{}" height="900" srcdoc="' + html.escape(page) + '"></iframe>'
        frames = "".join(window.replace("{}", str(width), 1) for width in widths)
        (self.folder / "windows.html").write_text(
            f"<!doctype html><meta charset=utf-8><body>{frames}<script>{MEASURE}</script>", encoding="utf-8"
        )
        dom, console = self.shown("windows.html")
        assert not console
        facts: dict[str, Any] = json.loads(parsed(dom).one("body").text)
        return facts


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return Report(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def rendered(report: Report) -> tuple[Element, list[str]]:
    dom, console = report.shown()
    return parsed(dom), console


@pytest.fixture(scope="module")
def windows(report: Report) -> dict[str, Any]:
    return report.measured(report.html, 360, 390, 800, 1600)


def number_in(text: str) -> tuple[float, float]:
    """A written figure as a number, and half of its last digit."""
    found = re.fullmatch(r"([-\d.,]+)\s?([^\d.,]*)", text)
    assert found is not None, text
    digits, unit = found[1].replace(",", ""), UNITS[found[2]]
    return float(digits) * unit, 0.5 * 10.0 ** -len(digits.partition(".")[2]) * unit


def test_it_shows_the_numbers_of_the_summary(report: Report, rendered: tuple[Element, list[str]]) -> None:
    root, _ = rendered
    checked = 0
    for arm in report.summary["arms"]:
        for name in FIGURES:
            estimate, cell = arm[name], root.one("td", data_arm=arm["name"], data_field=name)
            if estimate is None:
                assert not re.search(r"\d", cell.text)
                continue
            assert float(cell.attributes["data-value"]) == estimate["mean"]
            value, half = number_in(cell.one(class_="mean").text)
            assert value == pytest.approx(estimate["mean"], abs=half * 1.001)
            for interval in cell.all(class_="interval"):
                is_whole = estimate["low"] is not None  # of two seeds the values are shown
                ends = [number_in(end) for end in interval.text.split(" – " if is_whole else ", ")]
                wanted = (estimate["low"], estimate["high"]) if is_whole else estimate["values"]
                for (value, half), end in zip(ends, wanted, strict=True):
                    assert value == pytest.approx(end, abs=half * 1.001)
            checked += 1
        reached, runs = arm["target_reached"]
        assert root.one("td", data_arm=arm["name"], data_field="target_reached").text == f"{reached} of {runs}"
    assert checked > 15
    assert report.summary["title"] in root.one("h1").text
    headline, *others = report.summary["verdict"].splitlines()
    assert root.one("p", "verdict").text == headline
    assert [line.text for line in root.all("p", "verdict-line")] == others


def test_it_complains_of_nothing(rendered: tuple[Element, list[str]]) -> None:
    assert not rendered[1]


def test_the_verdict_is_on_the_first_screen_and_the_page_is_short(windows: dict[str, Any]) -> None:
    for width, (screen, facts) in {"390": (844, windows["390"]), "1600": (900, windows["1600"])}.items():
        assert 0 < facts["headline"] < facts["verdict"] < screen, width
        assert facts["words"] <= 400, width


def test_nothing_sticks_out(windows: dict[str, Any]) -> None:
    assert [facts["room"] for facts in windows.values()] == [360, 390, 800, 1600]
    for width, facts in windows.items():
        assert facts["wide"] <= facts["room"], width
        assert not facts["outside"], width


def test_long_names_do_not_stick_out_either(report: Report) -> None:
    long = "name" * 30
    arms = tuple(arm.model_copy(update={"name": f"{arm.name}{long}"}) for arm in (*made_summary().arms, failed_arm()))
    summary = made_summary(
        arms=arms,
        title=long,
        verdict=f"{long} is the best; {long * 2} is not",
        warnings=(long,),
        pace=long,
        world="virtual",
    )
    for width, facts in report.measured(page(summary), 360, 1400).items():
        assert facts["wide"] <= facts["room"], width
        assert not facts["outside"], width


def test_a_telephone_gets_its_own_charts(windows: dict[str, Any]) -> None:
    assert windows["360"]["phone"] > 0 and windows["360"]["desk"] == 0
    assert windows["1600"]["phone"] == 0 and windows["1600"]["desk"] > 0


def test_a_telephone_shows_the_speed_up_beside_the_names(windows: dict[str, Any]) -> None:
    assert 120 < windows["390"]["speedup"] <= 390


def test_the_toggle_shows_one_at_a_time(windows: dict[str, Any]) -> None:
    assert windows["800"]["panels"] == {name: [name] for name in ("bytes", "examples", "seconds")}


def test_areas_have_patterns(windows: dict[str, Any]) -> None:
    assert "#p-compute" in windows["800"]["fill"]


def test_what_complains_is_heard(tmp_path: Path, report: Report) -> None:
    """The negative control: a page that breaks its own rule is reported by the browser."""
    broken = report.html.replace("</main>", "<script>alert(1)</script></main>")
    (report.folder / "broken.html").write_text(broken, encoding="utf-8")
    assert report.shown("broken.html")[1]
