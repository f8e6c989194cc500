"""The pictures of README and of the tutorial, drawn by the charts of the report from recorded comparisons.

    quorate compare digits -n 4 --baseline ddp --strategy eager-solo --seeds 1 --imbalance one-of:240ms \
      --min-step-time 60ms --batch 24 --epochs 4 --evaluations 1 --name timeline
    python benchmarks/report_pictures.py timeline runs/timeline docs/pictures/timeline.svg

    quorate compare -n 4 --baseline ddp --strategy eager-solo --seeds 5 --metric top1 --target 0.9 \
      --imbalance one-of:80ms --min-step-time 15ms --name tutorial train.py
    python benchmarks/report_pictures.py quality runs/tutorial docs/pictures/first-training.svg

    make demo
    python benchmarks/report_pictures.py page runs/compare-digits-... docs/pictures/report.png

`train.py` is the script of docs/tutorial/first-training.md. In timelines the minimum step time stands for compute, and
the smaller parts of a step are one. The top of a page is photographed by chromium.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chart_style import chart_style
from PIL import Image

from quorate.report.charts import drawing
from quorate.report.charts.activities import patterns
from quorate.report.charts.lines import Axes, Line, finite, line_chart
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page import asset
from quorate.report.summary import summarize
from quorate.report.topics import quality, timeline
from quorate.report.wording import seconds_in_words

WIDTH, HEAD = 900.0, 34.0
PAGE = "1280,1150"
"""Pixels of the top of a page: width and height."""
SECONDS = 60.0
ACTIVITIES = {"pace": "compute", **dict.fromkeys(("data", "decode", "encode", "update"), "other")}
NAMES = {"ddp": "torch DDP"}


def timelines(folder: Path) -> Iterator[tuple[str, Markup]]:
    """Yield the title and the chart of each strategy; all are as long as the shortest of them."""
    parts = {arm.name: timeline.TOPIC.of(arm) for arm in summarize(folder).arms}
    shown = {NAMES.get(name, name): part.timeline for name, part in parts.items() if part is not None}
    seconds = min(lane.spans[-1][2] for lanes in shown.values() for lane in lanes)
    for name, lanes in shown.items():
        spans = [
            [
                (ACTIVITIES.get(kind, kind), begin, min(end, seconds))
                for kind, begin, end in lane.spans
                if begin < seconds
            ]
            for lane in lanes
        ]
        gradients = sum(kind == "compute" and begin < seconds for lane in lanes for kind, begin, _ in lane.spans)
        title = f"{name}: {gradients} gradients in {seconds_in_words(seconds)}"
        rows = [(f"worker {lane.rank}", lane_spans) for lane, lane_spans in zip(lanes, spans, strict=True)]
        yield title, timeline.lane_chart(rows, seconds=seconds, title="time", width=WIDTH, label=title)


def qualities(folder: Path) -> Iterator[tuple[str, Markup]]:
    """Yield the title and the chart of the quality over time, with the mean times to the target."""
    summary = summarize(folder)
    assert summary.metric is not None and summary.target is not None
    lines = []
    for look, arm in enumerate(summary.arms):
        curves = [finite(curve.seconds, curve.quality) for curve in quality.TOPIC.of(arm).curves]
        reached = arm.time_to_target.mean if arm.time_to_target else None
        lines.append(Line(name=NAMES.get(arm.name, arm.name), look=look, curves=curves, reached=reached))
    axes = Axes(
        x="training time", x_kind="seconds", y=summary.metric.name, target=summary.target,
        target_words=f"target {summary.target:g}",
    )  # fmt: skip
    title = f"{summary.metric.name} over time, {len(summary.fairness.seeds)} seeds"
    yield title, line_chart(lines, axes, width=WIDTH, height=360.0, label=title)


def picture(charts: Iterator[tuple[str, Markup]]) -> str:
    """Return the charts below each other, with their titles and the style of the report."""
    parts: list[Markup] = []
    titles: list[str] = []
    top = 0.0
    for title, chart in charts:
        titles.append(title)
        height = float(re.findall(r'viewBox="0 0 \S+ (\S+)"', chart)[0])
        inside = Markup(re.sub(r"^<svg[^>]*>|</svg>$", "", chart))
        parts.append(drawing.text(1.0, top + 20.0, title, class_="total"))
        parts.append(element("g", inside, transform=f"translate(0 {top + HEAD:g})"))
        top += HEAD + height + 8.0
    sheet = asset("charts.css")
    style = chart_style() + sheet[sheet.index(".a-compute") : sheet.index(".estimate")]
    width, height = WIDTH + 24.0, top + 4.0
    return element(
        "svg", element("style", Markup(style + ".chart .total { font-size: 15px; }\n")), patterns(),
        element("rect", x=-12, y=-4, width=width, height=height, rx=6, fill="var(--card)"), joined(parts),
        viewBox=f"-12 -4 {width:g} {height:g}", width=width, height=height, class_="chart", role="img",
        aria_label="; ".join(titles), xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def photograph(page: Path, picture: Path) -> None:
    """Write the top of a page as PNG."""
    program = shutil.which("chromium") or sys.exit("there is no chromium, which draws the page")
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={home}",
             f"--window-size={PAGE}", f"--screenshot={picture.absolute()}", page.absolute().as_uri()],
            stderr=subprocess.DEVNULL, timeout=SECONDS, check=True,
        )  # fmt: skip
    with Image.open(picture) as drawn:
        drawn.quantize(256).save(picture, optimize=True)


def main() -> None:
    """Write one picture of a comparison."""
    parser = argparse.ArgumentParser(description="Draw a chart of a comparison, or the top of its page.")
    parser.add_argument("chart", choices=("timeline", "quality", "page"))
    parser.add_argument("folder", type=Path, help="such as runs/NAME")
    parser.add_argument("picture", type=Path, help="the SVG, or PNG of the page, to write")
    options = parser.parse_args()
    if options.chart == "page":
        photograph(options.folder / "report.html", options.picture)
        return
    charts = timelines if options.chart == "timeline" else qualities
    options.picture.write_text(picture(charts(options.folder)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
