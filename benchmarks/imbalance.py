"""Virtual seconds to equal quality of five strategies, while the imbalance grows from 0 to 4 times a step.

Eight virtual workers train a small network on the handwritten digits of scikit-learn, with noise in every pixel. A step
takes 0.1 s, and in every step one random worker takes longer by so many times a step. Quality is a loss on held-out
images. Each strategy is at its best rate for each imbalance, chosen with two seeds that do not count. Network and
compute times are simulated, so that the figures are the same on every machine. `--picture FILE` draws them as SVG.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "truth")]

import record  # noqa: E402
from chart_style import chart_style  # noqa: E402
from harness import SEEDS  # noqa: E402
from training import Late, Training, trained  # noqa: E402

from quorate.report.charts import drawing  # noqa: E402
from quorate.report.charts.markup import Markup, element, joined  # noqa: E402
from quorate.report.charts.scales import Scale  # noqa: E402

STEP, WORKERS, STEPS, LOSS = 0.1, 8, 150, 0.6
IMBALANCES = (0, 1, 2, 3, 4)
"""The delay of one random worker in each step, in steps."""
RATES, TUNING_SEEDS = (0.4, 0.8, 1.6), (8, 9)
SIDES: Mapping[str, Training] = {
    "all-reduce": Training(strategy="all-reduce"),
    "local-sgd, H = 8": Training(strategy="local-sgd", settings={"sync_every": 8}),
    "eager-majority": Training(strategy="eager-majority"),
    "parameter-server, async": Training(strategy="parameter-server", settings={"mode": "async"}),
    "eager-solo": Training(strategy="eager-solo"),
}
WIDTH, HEIGHT = 760.0, 360.0
Times = Mapping[tuple[str, int], float]
"""Median virtual seconds by strategy and imbalance."""


def seconds_to_loss(name: str, imbalance: int, seeds: Sequence[int], rates: Sequence[float]) -> list[float]:
    """Return the virtual seconds of each seed; infinite if the loss is never reached."""
    late = Late(STEP, STEP * imbalance, WORKERS)
    side = replace(SIDES[name], steps=STEPS, step_seconds=late, look_every=2, until=LOSS)

    def by_seed(rate: float, numbers: Sequence[int]) -> list[float]:
        runs = [replace(side, rate=rate, seed=seed, step_seconds=replace(late, seed=seed)) for seed in numbers]
        return [trained(run).seconds_to(LOSS) for run in runs]

    best = min(rates, key=lambda rate: sum(by_seed(rate, TUNING_SEEDS))) if len(rates) > 1 else rates[0]
    return by_seed(best, seeds)


def drawn(times: Times) -> str:
    """Return the picture: a line for each strategy."""
    left, right, top, bottom = 60.0, 520.0, 40.0, HEIGHT - 50.0
    reached = [seconds for seconds in times.values() if math.isfinite(seconds)]
    x, y = Scale(0.0, float(IMBALANCES[-1]), left, right), Scale(0.0, 1.1 * max(reached), bottom, top)
    label = "Virtual seconds to equal loss by imbalance, of five strategies with eight workers"
    parts = [
        element("style", Markup(chart_style())),
        element("rect", x=0, y=0, width=WIDTH, height=HEIGHT, fill="var(--card)"),
        drawing.text(8, 18, "virtual seconds to a held-out loss of 0.6, each at its best rate", class_="axis-title"),
        drawing.axis_left(y, left, right),
        drawing.line(left, bottom, right, bottom, class_="axis"),
        drawing.text(right, bottom + 34, "delay of one of 8 workers, in steps", class_="axis-title", anchor="end"),
        *(drawing.text(x(at), bottom + 16, f"{at}", class_="tick", anchor="middle") for at in IMBALANCES),
    ]
    ends: list[tuple[int, str, float, float]] = []
    for look, name in enumerate(SIDES):
        curve = [(x(at), y(times[name, at])) for at in IMBALANCES if math.isfinite(times.get((name, at), math.inf))]
        marks = [drawing.marker(a, b, look) for a, b in curve]
        line = element("path", d=drawing.path(curve), class_="line", stroke_dasharray=drawing.dashes_of(look) or None)
        parts.append(drawing.group(element("title", name), line, *marks, class_=drawing.colour_of(look)))
        ends.append((look, name, *curve[-1]))
    places = drawing.spread([end for *_, end in ends], [18.0] * len(ends), top - 4.0, bottom + 4.0)
    for (look, name, x_end, y_end), place in zip(ends, places, strict=True):
        lead = element("path", d=drawing.path([(x_end + 7, y_end), (right + 14, place)]), class_="leader")
        words = drawing.text(right + 18, place + 4, name, class_="name")
        parts.append(drawing.group(lead, words, class_=drawing.colour_of(look)))
    attributes: dict[str, str | float] = {"class_": "chart", "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}", "width": WIDTH}
    attributes |= {"height": HEIGHT, "role": "img", "aria_label": label}
    return element("svg", joined(parts), xmlns="http://www.w3.org/2000/svg", **attributes)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw an SVG")
    options = parser.parse_args()
    seeds, rates, imbalances = (SEEDS[:1], RATES[1:2], (0, 4)) if options.quick else (SEEDS, RATES, IMBALANCES)
    about = {"step": STEP, "workers": WORKERS, "loss": LOSS, "rates": rates, "seeds": list(seeds)}
    report, times = record.Report("imbalance", about), dict[tuple[str, int], float]()
    for name in SIDES:
        for imbalance in imbalances:
            values = seconds_to_loss(name, imbalance, seeds, rates)
            row = record.figure(f"late by {imbalance} steps: virtual seconds to the loss, {name}", values)
            report.rows.append(row)
            times[name, imbalance] = row.median
            sys.stderr.write(f"{row.name}: {row.median:.2f} ({row.low:.2f} to {row.high:.2f})\n")
    if options.picture is not None:
        options.picture.write_text(drawn(times) + "\n", encoding="utf-8")
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
