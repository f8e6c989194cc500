"""Who sends what to whom in an all-reduce, drawn from what virtual workers have sent; and what that costs, as tables.

    python benchmarks/all_reduce_pictures.py docs/pictures

writes `all-reduce-4.svg` and `all-reduce-6.svg`, with a diagram of space and time for each algorithm, and prints the
tables of docs/explanation/all-reduce-algorithms.md: formulas beside what was counted and measured in the virtual world,
and which algorithm is the fastest for which vector.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from all_reduce_messages import ALGORITHMS, Played, Sent, played
from chart_style import chart_style

from quorate.report.charts import drawing
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.charts.scales import Scale, Unit
from quorate.wire.virtual.network import Network

NETWORK = Network(latency=50e-6, bandwidth=1.25e9)
NUMEL = 48_000
"""192 kB: to send it takes three times as long as a message is on its way."""
SIZES = (4, 6)
LENGTHS = (250, 25_000, 2_500_000, 25_000_000)
"""Of float32: 1 kB to 100 MB."""
SHRUNK = 1_000
"""Long vectors are so many times shorter here, over links that are as many times slower: it takes as long."""
WIDTH, PANEL, LANE, TOP = 1120.0, 520.0, 46.0, 64.0
_STYLE = """
.adds { fill: var(--s1); fill-opacity: 0.28; stroke: var(--s1); }
.takes { fill: var(--s2); fill-opacity: 0.10; stroke: var(--s2); stroke-dasharray: 4 2; }
.lane { stroke: var(--faint); stroke-width: 1.4; }
.chart .piece { font-size: 10.5px; fill: var(--ink); }
"""


def picture(size: int) -> str:
    """All algorithms among `size` workers, on one scale of time."""
    all_played = [played(name, size, NUMEL, NETWORK) for name in ALGORITHMS]
    longest = max(one.seconds for one in all_played)
    tall = TOP + (size - 1) * LANE + 50.0
    height = 2 * tall + 58.0
    told = "; ".join(f"{one.name} {1e3 * one.seconds:.2f} ms" for one in all_played)
    label = f"Messages of four algorithms of all-reduce among {size} workers: {told}"
    parts = [
        element("style", Markup(chart_style() + _STYLE)),
        element("rect", x=0, y=0, width=WIDTH, height=height, fill="var(--card)"),
    ]
    for number, one in enumerate(all_played):
        left, top = 60.0 + number % 2 * (WIDTH / 2), number // 2 * tall
        parts.append(_panel(one, Scale(0.0, longest, left, left + PANEL - 70.0, Unit("ms", 1e-3)), top))
    parts.append(_legend(height - 36.0))
    box = f"0 0 {WIDTH:g} {height:g}"
    svg = {"class_": "chart", "viewBox": box, "width": WIDTH, "height": height, "role": "img", "aria_label": label}
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", **svg)


def _panel(one: Played, x: Scale, top: float) -> Markup:
    cost, first = one.algorithm.cost(one.size), top + TOP
    words = f"{one.chain} messages one after the other, at most {cost.sent:.3g} n out of a worker"
    lanes = [first + LANE * rank for rank in range(one.size)]
    end, bottom = x(one.seconds), lanes[-1] + 12.0
    parts = [
        drawing.text(x.begin - 44, top + 22, one.name, class_="total"),
        drawing.text(x.begin - 44, top + 40, words, class_="small"),
        drawing.axis_below(x, bottom, first - 8.0, "time"),
        *(drawing.line(x.begin, y, x.end, y, class_="lane") for y in lanes),
        *(drawing.text(x.begin - 8, y + 4, f"{rank}", class_="tick", anchor="end") for rank, y in enumerate(lanes)),
        drawing.line(end, first - 12.0, end, bottom, class_="same"),
        drawing.text(end - 4, first - 11.0, f"{1e3 * one.seconds:.2f} ms", class_="mark-label", anchor="end"),
    ]
    return joined([*parts, *(_band(one, message, x, lanes) for message in one.messages)])


def _band(one: Played, message: Sent, x: Scale, lanes: list[float]) -> Markup:
    """A message is as wide as it takes to be sent, and slants by its latency; its pieces stand in the middle of it."""
    sending = message.nbytes / one.network.bandwidth
    y1, y2 = lanes[message.source], lanes[message.to]
    x1, x2, x3, x4 = (
        x(time) for time in (message.leaves, message.leaves + sending, message.arrives, message.arrives - sending)
    )
    step = list(one.algorithm.steps(one.size, message.source))[message.step]
    assert step.send is not None
    pieces = step.send.pieces
    named = f"{pieces[0]}" if len(pieces) == 1 else f"{pieces[0]}-{pieces[-1]}"
    verb = "to be added" if step.send.adds else "complete"
    hint = f"piece {named}, {verb}: {message.nbytes} bytes from {message.source} to {message.to}"
    shape = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y1:.1f}L{x3:.1f} {y2:.1f}L{x4:.1f} {y2:.1f}Z"
    # Where a message passes other lanes, or another one the other way, its words stand nearer to its sender.
    share = 0.26 / abs(message.to - message.source)
    where = ((x1 + x2) / 2 + (x4 - x1) * share, y1 + (y2 - y1) * share + 4)
    words = drawing.text(*where, named, class_="piece", anchor="middle") if one.algorithm.pieces(one.size) > 1 else ""
    band = element("path", element("title", hint), d=shape, class_="adds" if step.send.adds else "takes")
    return drawing.group(band, *([words] if words else []))


def _legend(y: float) -> Markup:
    parts: list[Markup] = []
    words = (
        ("adds", "sums of some workers: who gets them adds its own"),
        ("takes", "sums of all workers: who gets them takes them"),
    )
    for place, (class_, text) in enumerate(words):
        left = 16.0 + WIDTH / 2 * place
        parts += [
            element("rect", x=left, y=y - 10, width=22, height=12, class_=class_),
            drawing.text(left + 30, y, text, class_="key"),
        ]
    says = (
        "A band leads from the worker that sends to the one that gets; its left edge is the first byte, its right one "
    )
    says += "the last. Numbers are pieces of the vector."
    parts.append(drawing.text(16.0, y + 22.0, says, class_="key"))
    return joined(parts)


def costs(sizes: tuple[int, ...]) -> Iterator[str]:
    """Formulas beside what virtual workers did."""
    heads = ("algorithm", "workers", "messages in a row: formula, counted", "bytes out of a worker", "time")
    yield f"| {' | '.join(heads)}: formula, measured |"
    yield "|---|---|---|---|---|"
    for size in sizes:
        for name in ALGORITHMS:
            one = played(name, size, NUMEL, NETWORK)
            cost = one.algorithm.cost(size)
            sent = f"{cost.sent:.3g} n, {one.sent / one.nbytes:.3g} n"
            time = f"{1e6 * one.formula:.0f}, {1e6 * one.seconds:.0f} µs"
            yield f"| `{name}` | {size} | {cost.messages}, {one.chain} | {sent} | {time} |"


def fastest(sizes: tuple[int, ...]) -> Iterator[str]:
    """Milliseconds by length of the vector, the fastest in bold."""
    yield "| workers | vector | " + " | ".join(f"`{name}`" for name in ALGORITHMS) + " |"
    yield "|---|---|---|---|---|---|"
    for size in sizes:
        for numel in LENGTHS:
            took = [_shrunk(name, size, numel).seconds for name in ALGORITHMS]
            least = min(took)
            cells = [f"**{1e3 * s:.3g}**" if s <= 1.005 * least else f"{1e3 * s:.3g}" for s in took]
            yield f"| {size} | {_bytes(4 * numel)} | " + " | ".join(cells) + " |"


def _shrunk(name: str, size: int, numel: int) -> Played:
    if numel < 100 * SHRUNK:
        return played(name, size, numel, NETWORK)
    return played(name, size, numel // SHRUNK, Network(NETWORK.latency, NETWORK.bandwidth / SHRUNK))


def _bytes(count: float) -> str:
    return f"{count / 1e6:g} MB" if count >= 1e6 else f"{count / 1e3:g} kB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="where the pictures are written (none without it)")
    asked = parser.parse_args()
    if asked.folder is not None:
        for size in SIZES:
            (asked.folder / f"all-reduce-{size}.svg").write_text(picture(size) + "\n", encoding="utf-8")
    print("\n".join(costs(SIZES)), end="\n\n", flush=True)
    print("\n".join(fastest((4, 6, 16, 64))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
