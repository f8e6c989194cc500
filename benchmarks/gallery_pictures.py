"""The bar charts of `docs/explanation/gallery.md`: published figures of benchmarks, as SVGs.

`python benchmarks/gallery_pictures.py` writes them to `docs/pictures`. A test looks for
their figures in the pages of benchmarks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chart_style import chart_style

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element
from quorate.report.charts.scales import Scale

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDTH, LEFT, RIGHT, ROW, TOP, FOOT = 760.0, 300.0, 690.0, 26.0, 52.0, 44.0


@dataclass(frozen=True)
class Bar:
    """One side, with its figure as it is published."""

    name: str
    figure: str
    is_ours: bool = True
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class Picture:
    """One claim."""

    name: str
    title: str
    axis: str
    benchmark: str
    bars: tuple[Bar, ...]


PICTURES_OF = (
    Picture(
        "gallery-late-worker",
        "One random worker of 8 is 300 ms late in every step",
        "gradients per second (more is better)",
        "light_imbalance",
        (
            Bar("torch DDP", "13.2", is_ours=False),
            Bar("all-reduce", "13.6"),
            Bar("eager-majority", "20.5"),
            Bar("eager-solo", "24.5"),
        ),
    ),
    Picture(
        "gallery-slow-worker",
        "One of 4 workers is always three times slower",
        "gradients per second, divided by those of torch DDP",
        "persistent_straggler",
        (
            Bar("torch DDP", "1", is_ours=False),
            Bar("quorum of a majority", "2.27", True, "2.25", "2.30"),
            Bar("eager-solo", "2.30", True, "2.25", "2.35"),
            Bar("if nobody ever waited (computed)", "2.37", is_ours=False),
        ),
    ),
    Picture(
        "gallery-unequal-batches",
        "Batches as unequal as videos: time to equal top-1",
        "times as fast as torch DDP",
        "severe_imbalance",
        (
            Bar("torch DDP", "1", is_ours=False),
            Bar("eager-majority, one seed", "1.24"),
            Bar("eager-solo", "1.39"),
            Bar("adaptive", "1.43"),
            Bar("quorum of 4 of 8", "1.64"),
            Bar("torch DDP, batches sorted by length", "2.19", is_ours=False),
        ),
    ),
    Picture(
        "gallery-stalled-worker",
        "One of 4 workers stops for 5 s: the longest halt of the others",
        "seconds (less is better)",
        "stalled",
        (
            Bar("torch DDP", "5.06", is_ours=False),
            Bar("quorum of a majority", "0.082"),
            Bar("eager-solo", "0.083"),
        ),
    ),
    Picture(
        "gallery-killed-worker",
        "A worker of 4 is killed: time to the next update of the others",
        "seconds (less is better)",
        "death",
        (
            Bar("torch DDP, restarted by torchrun", "8.50", False, "8.21", "12.20"),
            Bar("torchft, default timeouts", "5.10", is_ours=False),
            Bar("torchft, low timeouts", "0.130", False, "0.113", "0.251"),
            Bar("all-reduce, on_death=continue", "0.083"),
            Bar("quorum of a majority", "0.067"),
        ),
    ),
    Picture(
        "gallery-no-slow-worker",
        "Nobody is slow: all-reduce of Quorate beside torch DDP, 2 processes on CPUs",
        "throughput, divided by that of torch DDP",
        "balanced",
        (
            Bar("torch DDP", "1", is_ours=False),
            Bar("5 M parameters", "1.214", True, "1.129", "1.244"),
            Bar("26 M parameters", "1.152", True, "1.118", "1.172"),
            Bar("convolutional net", "1.016", True, "0.971", "1.059"),
        ),
    ),
    Picture(
        "gallery-gpu",
        "One worker on one H100: what Quorate costs (a loss)",
        "tokens per second, divided by those of a plain loop",
        "gpu",
        (
            Bar("plain loop", "1", is_ours=False),
            Bar("all-reduce, bypassed (default)", "0.99"),
            Bar("all-reduce, its whole algorithm", "0.81"),
        ),
    ),
    Picture(
        "gallery-slow-network",
        "Four hosts over 1 Gbit/s, 10.8 M parameters",
        "seconds per step (less is better)",
        "slow_network",
        (
            Bar("torch DDP", "0.793", is_ours=False),
            Bar("torch DDP, fp16 hook", "0.534", is_ours=False),
            Bar("torch DDP, PowerSGD hook, rank 4", "0.437", is_ours=False),
            Bar("all-reduce (a loss)", "0.835"),
            Bar("half, float16 (a loss to the hook)", "0.589"),
            Bar("power-sgd, rank 4", "0.429"),
            Bar("top-k, 1 %", "0.451"),
        ),
    ),
)


def drawn(picture: Picture) -> str:
    """Return a picture as SVG: a bar from 0 for each side, with its figure and its interval."""
    height = TOP + ROW * len(picture.bars) + FOOT
    foot = height - FOOT
    x = Scale(0.0, max(float(bar.high or bar.figure) for bar in picture.bars), LEFT, RIGHT)
    parts = [
        element("style", Markup(chart_style())),
        element("rect", x=0, y=0, width=WIDTH, height=height, fill="var(--card)"),
        drawing.text(12, 24, picture.title, class_="name"),
        drawing.axis_below(x, foot, TOP - 8, picture.axis),
        *(_row(bar, x, TOP + ROW * place) for place, bar in enumerate(picture.bars)),
    ]
    label = f"{picture.title}; {picture.axis}: " + ", ".join(f"{bar.name} {bar.figure}" for bar in picture.bars)
    svg: dict[str, str | float] = {
        "class_": "chart",
        "viewBox": f"0 0 {WIDTH:g} {height:g}",
        "width": WIDTH,
        "height": height,
        "role": "img",
        "aria_label": label,
    }
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", **svg)


def _row(bar: Bar, x: Scale, top: float) -> Markup:
    middle, end = top + ROW / 2, x(float(bar.figure))
    parts = [
        drawing.text(LEFT - 10, middle + 4, bar.name, class_="name", anchor="end"),
        element("rect", x=LEFT, y=top + 5, width=end - LEFT, height=ROW - 10, fill="var(--c, var(--faint))"),
    ]
    if bar.low:
        low, end = x(float(bar.low)), x(float(bar.high))
        parts.append(drawing.line(low, middle, end, middle, class_="axis"))
        parts += [drawing.line(place, middle - 4, place, middle + 4, class_="axis") for place in (low, end)]
    parts.append(drawing.text(end + 8, middle + 4, bar.figure, class_="name"))
    return drawing.group(*parts, class_=drawing.colour_of(1) if bar.is_ours else None)


def files(pictures: Sequence[Picture] = PICTURES_OF) -> dict[Path, str]:
    """Return the text of each file."""
    return {PICTURES / f"{picture.name}.svg": drawn(picture) + "\n" for picture in pictures}


if __name__ == "__main__":
    for file, text in files().items():
        file.write_text(text, encoding="utf-8")
