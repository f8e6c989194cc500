"""The charts: scales that are round and honest, things that do not stand on each other, bars that begin at 0."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.report.charts import activities, drawing
from quorate.report.charts.activities import Spending, share_chart
from quorate.report.charts.columns import Columns, column_chart
from quorate.report.charts.lines import Axes, Line, at, band, finite, line_chart, placed_names, thinned
from quorate.report.charts.markup import Markup, element, joined, number
from quorate.report.charts.scales import scale_of, unit_for
from quorate.report.figures.time_use import ACTIVITIES
from quorate.report.schema import Estimate
from quorate.report.topics.arrival import LEVELS, ArrivalRow, ArrivalRows, arrival_chart, coarser
from quorate.report.topics.rounds import Gain, gain_chart
from quorate.report.topics.steps import histograms
from quorate.report.topics.table import Ratio, ratio_chart
from quorate.report.topics.timeline import RoundLine, lane_chart

finite_floats = st.floats(-1e9, 1e9)
WIDTHS = pytest.mark.parametrize("width", [340.0, 940.0])


def drawn(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def of(chart: str, tag: str, class_: str) -> list[ElementTree.Element]:
    return [element for element in drawn(chart).iter(tag) if class_ in element.get("class", "").split()]


def words(chart: str) -> list[str]:
    return ["".join(text.itertext()) for text in drawn(chart).iter("text")]


def inked(chart: str) -> list[float]:
    """Every x at which a rectangle or a line of text begins."""
    return [float(element.get("x", "0")) for element in drawn(chart).iter() if element.tag in ("rect", "text")]


# Markup


def test_text_is_escaped_and_markup_is_not() -> None:
    inner = element("b", "<&>\"'", title='"<')
    assert inner == '<b title="&quot;&lt;">&lt;&amp;&gt;&quot;&#x27;</b>'
    assert element("p", inner, "&") == f"<p>{inner}&amp;</p>"
    assert isinstance(joined(["a"]), Markup)


def test_what_xml_cannot_hold_is_replaced() -> None:
    assert element("b", "a\x00b\ud800\x1b") == "<b>a\ufffdb\ufffd\ufffd</b>"


def test_attributes() -> None:
    assert element("input", checked=True, hidden=False, name=None, data_x=1.5, for_="y") == (
        '<input checked="" data-x="1.5" for="y">'
    )


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (0.125, "0.1"), (-0.001, "0"), (-2.5, "-2.5"), (100.0, "100")])
def test_coordinates_are_short(value: float, text: str) -> None:
    assert number(value) == text


# Scales


@given(st.lists(finite_floats, min_size=1, max_size=5), st.booleans(), st.booleans())
def test_scales_hold_every_value(values: list[float], from_zero: bool, round_ends: bool) -> None:
    scale = scale_of(values, 10.0, 110.0, from_zero=from_zero, round_ends=round_ends)
    nothing = 1e-6 * (scale.high - scale.low)
    assert nothing > 0.0 and scale.low <= min(values) + nothing and max(values) - nothing <= scale.high
    assert all(10.0 - 1e-6 <= scale(value) <= 110.0 + 1e-6 for value in values)
    if from_zero:
        assert scale.low <= 0.0 <= scale.high
    places = [scale(value) for value, _ in scale.ticks()]
    assert places == sorted(places) and len({text for _, text in scale.ticks()}) == len(places)


def test_ticks_are_round_and_in_the_unit() -> None:
    scale = scale_of([0.0, 0.0123], 0.0, 100.0, kind="seconds")
    assert scale.unit.name == "ms"
    assert [text for _, text in scale.ticks(4)] == ["0", "5", "10"]
    assert [value for value, _ in scale.ticks(4)] == pytest.approx([0.0, 0.005, 0.010])
    assert [text for _, text in scale_of([0.0, 5e6], 0.0, 1.0, kind="bytes").ticks(5)] == ["0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("kind", "greatest", "unit"),
    [("seconds", 5e-5, "µs"), ("seconds", 0.9, "ms"), ("seconds", 120.0, "s"), ("seconds", 900.0, "min"),
     ("seconds", 2e4, "h"), ("bytes", 900.0, "bytes"), ("bytes", 3e9, "GB"), ("count", 8000.0, ""),
     ("count", 6e4, "thousands")],
)  # fmt: skip
def test_units(kind: str, greatest: float, unit: str) -> None:
    assert unit_for(kind, greatest).name == unit  # type: ignore[arg-type]


def test_values_far_apart_stand_on_powers_of_ten() -> None:
    scale = scale_of([3e-6, 2.0], 0.0, 70.0, may_be_log=True)
    assert scale.is_log
    assert [value for value, _ in scale.ticks(8)] == pytest.approx([10.0**power for power in range(-6, 2)])
    assert scale(1e-3) - scale(1e-4) == pytest.approx(10.0)
    assert not scale_of([0.0, 2.0], 0.0, 70.0, may_be_log=True).is_log
    assert "logarithmic" in drawing.with_unit("loss", scale)


def test_no_values_make_a_scale_too() -> None:
    assert scale_of([], 0.0, 1.0).ticks()
    assert scale_of([math.nan, math.inf], 0.0, 1.0).ticks()


# Placing


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(1, 12)), max_size=8))
def test_what_is_spread_does_not_overlap(things: list[tuple[float, float]]) -> None:
    wanted, sizes = [middle for middle, _ in things], [size for _, size in things]
    places = drawing.spread(wanted, sizes, 0.0, 100.0)
    order = sorted(range(len(things)), key=lambda place: places[place])
    for first, second in pairwise(order):
        assert places[second] - places[first] >= (sizes[first] + sizes[second]) / 2.0 - 1e-6
        assert wanted[first] <= wanted[second]
    assert all(size / 2 - 1e-6 <= place <= 100.0 - size / 2 + 1e-6 for place, size in zip(places, sizes, strict=True))


def test_what_has_room_stays() -> None:
    assert drawing.spread([80.0, 20.0, 50.0], [10.0] * 3, 0.0, 100.0) == [80.0, 20.0, 50.0]
    assert drawing.spread([50.0, 50.0], [10.0] * 2, 0.0, 100.0) == [45.0, 55.0]


@given(st.lists(st.tuples(st.floats(-500, 500), st.floats(-500, 500)), min_size=1, max_size=20))
def test_a_path_goes_through_its_points(points: list[tuple[float, float]]) -> None:
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", drawing.path(points))]
    x = y = 0.0
    for (dx, dy), point in zip(zip(numbers[::2], numbers[1::2], strict=True), points, strict=True):
        x, y = x + dx, y + dy
        assert (x, y) == pytest.approx(point, abs=0.051)


def test_words_are_cut_to_fit() -> None:
    assert drawing.shortened("all-reduce", 200.0) == "all-reduce"
    assert drawing.text_width(drawing.shortened("a" * 90, 100.0)) <= 100.0
    assert drawing.shortened("a" * 90, 100.0).endswith("…")


def test_lines_are_told_apart_without_colour() -> None:
    looks = [(drawing.dashes_of(look), drawing.marker(0, 0, look)) for look in range(24)]
    assert len(set(looks)) == len(looks)
    lines = [(drawing.colour_of(look), drawing.dashes_of(look)) for look in range(24)]
    assert len(set(lines)) == len(lines)


def test_every_activity_has_a_colour_and_a_pattern_of_its_own() -> None:
    tiles = drawn(activities.patterns())
    drawings = {
        tile.get("id"): ElementTree.tostring(tile).decode().partition("<rect")[2] for tile in tiles.iter("pattern")
    }
    assert set(drawings) == {f"p-{name}" for name in ACTIVITIES}
    assert len({re.sub(r'class="a-\w+"', "", text) for text in drawings.values()}) == len(ACTIVITIES)
    assert set(activities.SHOWN) == set(ACTIVITIES)
    assert activities.class_of("something new") == "p-other"


def test_a_legend_names_activities_as_the_options_do() -> None:
    legend, _ = activities.key(["compute", "pace"], 400.0, 2.0)
    assert "minimum step time" in legend and "pace<" not in legend and "p-pace" in legend


# Bands and lines


def test_a_band_lies_where_all_seeds_are_known() -> None:
    rows = band([[(0.0, 0.0), (2.0, 2.0), (4.0, 2.0)], [(1.0, 3.0), (3.0, 5.0)]], 100)
    assert rows == [(1.0, 2.0, 1.0, 3.0), (2.0, 3.0, 2.0, 4.0), (3.0, 3.5, 2.0, 5.0)]
    assert band([], 9) == band([[]], 9) == band([[(0.0, 1.0)], [(1.0, 1.0)]], 9) == []


def test_between_points_is_a_straight_line() -> None:
    points = [(0.0, 0.0), (2.0, 4.0)]
    assert [at(points, x) for x in (-1.0, 0.5, 2.0, 9.0)] == [0.0, 1.0, 4.0, 4.0]


def test_thinned_keeps_the_ends() -> None:
    points = [(float(x), 0.0) for x in range(100)]
    assert len(thinned(points, 10)) == 10
    assert (thinned(points, 10)[0], thinned(points, 10)[-1]) == (points[0], points[-1])
    assert thinned(points, 100) == points


def test_what_is_no_number_is_not_drawn() -> None:
    assert finite([2.0, 1.0, 3.0], [math.nan, 5.0, math.inf]) == [(1.0, 5.0)]


LINES = [
    Line(name="ddp", look=0, curves=[[(1.0, 0.2), (10.0, 0.7)], [(1.0, 0.3), (11.0, 0.8)]], reached=8.0),
    Line(name="quorum", look=1, curves=[[(1.0, 0.4), (6.0, 0.72)]]),
]
AXES = Axes(x="training time", x_kind="seconds", y="top1", target=0.6, target_words="target 0.6")


@WIDTHS
def test_lines_bear_their_names_and_the_target(width: float) -> None:
    chart = line_chart(LINES, AXES, width=width, height=300, label="x")
    assert {"ddp", "quorum (one seed)", "target 0.6", "top1", "training time, s"} <= set(words(chart))
    assert len(of(chart, "path", "line")) == (4 if width < 400 else 2)
    assert len(of(chart, "path", "band")) == 1
    assert len(of(chart, "line", "drop")) == 1
    assert all(-1.0 <= x <= width for x in inked(chart))


def test_seeds_have_lines_only_where_there_is_no_band() -> None:
    together = [Line(name="a", look=0, curves=[[(0.0, 0.0), (1.0, float(n))] for n in range(5)])]
    apart = [Line(name="a", look=0, curves=[[(2.0 * n, 0.0), (2.0 * n + 1.0, 1.0)] for n in range(3)])]
    charts = [line_chart(lines, AXES, width=940, height=300, label="") for lines in (together, apart)]
    assert [(len(of(chart, "path", "band")), len(of(chart, "path", "seed"))) for chart in charts] == [(1, 0), (0, 3)]


def test_names_stand_at_the_ends_of_their_lines() -> None:
    chart = line_chart(LINES, AXES, width=940, height=300, label="")
    assert not of(chart, "path", "leader")
    ends = {}
    for group in drawn(chart).iter("g"):
        name, marks = group.findtext("title"), [element for element in group if element.get("class") == "mark"]
        if (
            name
            and marks
            and group.find("text") is None
            and not [element for element in group if element.get("class") == "drop"]
        ):
            shape = marks[-1]
            match = re.match(r"M([-\d.]+) ?(-?[\d.]+)", shape.get("d", ""))
            x, y = (match[1], match[2]) if match else (shape.get("cx"), shape.get("cy"))
            ends[name] = float(x or 0), float(y or 0)
    for text in of(chart, "text", "name"):
        x, y = ends["".join(text.itertext())]
        assert -10.0 < float(text.get("x", "")) - x < 20.0 and abs(float(text.get("y", "")) - y) < 25.0


def test_names_cover_neither_each_other_nor_the_lines() -> None:
    """Five curves that end close to each other, and one that goes on where another ends."""
    names = [f"strategy {number}" for number in range(6)]
    curves = [[(60.0, 200.0), (300.0 + 4 * number, 100.0 + 3 * number)] for number in range(5)]
    curves.append([(60.0, 80.0), (700.0, 80.0)])
    labels = placed_names(names, curves, left=60.0, right=940.0, top=34.0, bottom=256.0)
    boxes = [label.box for label in labels]
    for place, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 60.0 and right <= 940.0 and top > 15.0 and bottom < 270.0
        for other in boxes[:place]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] + 1.0 or other[3] <= top + 1.0
    assert labels[5].x > 700.0 and abs(labels[5].y - 84.0) < 1.0
    early, late = [(60.0, 200.0), (300.0, 100.0)], [(60.0, 100.0), (700.0, 100.0)]
    _, top, _, bottom = placed_names(["early", "late"], [early, late], left=60.0, right=940.0, top=34.0, bottom=256.0)[
        0
    ].box
    assert not top < 100.0 < bottom, "the line that goes on is hidden"


# Bars


@WIDTHS
def test_stacked_bars_begin_at_zero_and_add_up(width: float) -> None:
    steps = [Spending("a", {"compute": 0.06, "waiting": 0.03, "data": 0.01}), Spending("b", {"compute": 0.05})]
    chart = share_chart(steps, title="mean step", width=width, label="")
    bars = [bar for bar in of(chart, "rect", "area") if bar.find("title") is not None]
    places = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
    assert places[0][0] == places[3][0] == 1.0
    for (x, wide), (after, _) in pairwise(places[:3]):
        assert x + wide == pytest.approx(after, abs=0.02)
    total = places[2][0] + places[2][1] - 1.0
    assert [wide / total for _, wide in places] == pytest.approx([0.6, 0.1, 0.3, 0.5], abs=0.002)
    assert "compute 60%" in words(chart)
    assert {"100 ms", "50 ms"} <= set(words(chart)), "in one unit, with one number of digits"
    assert [(bar.findtext("title") or "").split(",")[0] for bar in bars][2] == "a: waiting for others 30.0 ms"


def test_small_parts_are_named_below() -> None:
    steps = [Spending("a", {"compute": 0.95, "encode": 0.02, "decode": 0.025, "other": 0.005})]
    chart = share_chart(steps, title="", width=940, label="")
    assert {"encode 2.0%", "decode 2.5%"} <= set(words(chart))
    assert not [text for text in words(chart) if text.startswith("other 0")]


@WIDTHS
def test_histograms_have_heights_from_zero_on_one_scale(width: float) -> None:
    rows: Any = [
        (
            SimpleNamespace(name=name),
            SimpleNamespace(edges=[0.0, 0.1, 0.2], counts=counts, p50=0.05, p95=0.15, p99=0.19),
        )
        for name, counts in (("a", [30, 10]), ("b", [10, 10]))
    ]
    chart = histograms(rows, {"a": 0, "b": 0}, title="step time", width=width, label="")
    heights = []
    for bins in of(chart, "path", "bins"):
        for foot, top, back in re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)H[\d.]+V([\d.]+)Z", bins.get("d", "")):
            assert foot == back
            heights.append(float(foot) - float(top))
    assert [height / heights[0] for height in heights] == pytest.approx([1.0, 1 / 3, 2 / 3, 2 / 3], abs=0.01)
    assert len(of(chart, "line", "percentile")) == 6
    assert len({line.get("stroke-dasharray") for line in of(chart, "line", "percentile")}) == 3
    assert words(chart).count("80%") == 2, "each side has an axis of shares"


@WIDTHS
def test_ratios_stand_around_the_same(width: float) -> None:
    rows = [
        Ratio(name="a", look=1, estimate=Estimate(mean=1.5, low=1.3, high=1.7, values=(1.4, 1.6)), words="1.50×"),
        Ratio(name="b", look=2, estimate=Estimate(mean=0.5, low=None, high=None, values=(0.5,)), words="0.50×"),
    ]
    chart = ratio_chart(rows, title="", width=width, label="")
    (same,) = of(chart, "line", "same")
    (interval,) = of(chart, "line", "range")
    middle = float(same.get("x1", ""))
    assert middle < float(interval.get("x1", "")) < float(interval.get("x2", "")) <= width
    assert {"1×", "as the baseline", "1.50×", "0.50×"} <= set(words(chart))
    assert len(of(chart, "line", "stroke")) == 3


# Arrivals and lanes


def test_coarser_keeps_the_late() -> None:
    heat = [[1.0, 3.0, None], [9.0, None, None], [0.0, 0.0, 5.0]]
    assert coarser(heat, 2, 2) == [[9.0, None], [0.0, 5.0]]
    assert coarser(heat, 9, 9) == heat
    assert coarser([], 9, 9) == []


def lateness(rows: int, columns: int = 4) -> ArrivalRows:
    heat = [[None if column == 0 else 0.01 * row / rows for column in range(columns)] for row in range(rows)]
    return ArrivalRows(
        rows=[ArrivalRow(name=f"rank {row}", mean=0.01, p95=0.02, is_slow=row == 1) for row in range(rows)],
        heat=heat, steps=range(1, columns + 1), longest=0.04, darkest=0.01,
    )  # fmt: skip


@WIDTHS
@pytest.mark.parametrize("rows", [2, 5, 64])
def test_arrivals_have_a_row_for_each_rank(rows: int, width: float) -> None:
    chart = arrival_chart(lateness(rows), title="lateness", width=width, label="")
    bars = "".join(path.get("d", "") for path in of(chart, "path", "late"))
    ends = [float(end) for end in re.findall(r"H([\d.]+)v", bars)]
    begins = [float(begin) for begin in re.findall(r"H([\d.]+)z", bars)]
    assert len(ends) == len(begins) == rows and len(set(ends)) == len(set(begins)) == 1
    assert of(chart, "path", "whisker")[0].get("d", "").count("M") == rows
    assert len(of(chart, "path", "slow")) == 1
    assert "rank 1" in words(chart)
    assert all(-1.0 <= x <= width for x in inked(chart))


def test_the_heat_map_is_made_of_every_cell_once() -> None:
    heat = [[0.0, 0.01, 0.01, None], [0.02, 0.0, 0.0, 0.0]]
    rows = [ArrivalRow(name=name, mean=0.0, p95=0.0) for name in "ab"]
    lateness = ArrivalRows(rows=rows, heat=heat, steps=(1, 2, 3, 4), longest=0.1, darkest=0.02)
    cells: dict[tuple[int, int], str] = {}
    (map_,) = [
        group
        for group in drawn(arrival_chart(lateness, title="", width=940, label="")).iter("g")
        if group.get("class") == "heat"
    ]
    for path in map_:
        x = y = 0
        for dx, dy, wide in re.findall(r"m(-?\d+) (-?\d+)h(\d+)", path.get("d", "")):
            x, y = x + int(dx), y + int(dy)
            for _ in range(int(wide)):
                assert cells.setdefault((y, x), path.get("class", "")) == path.get("class")
                x += 1
    half, dark = f"h{LEVELS // 2}", f"h{LEVELS}"
    assert [cells[0, x] for x in range(4)] == ["h0", half, half, "h-none"]
    assert [cells[1, x] for x in range(4)] == [dark, "h0", "h0", "h0"]
    assert len(cells) == 8


def test_lanes_hold_their_spans() -> None:
    lanes = [("rank 0", [("compute", 0.0, 0.5), ("waiting", 0.5, 0.75), ("compute", 0.75, 1.0)])]
    chart = lane_chart(lanes, seconds=1.0, title="time", width=940, label="")
    paths = {path.get("class", "").split()[1]: path.get("d", "") for path in of(chart, "path", "lane")}
    spans = re.findall(r"[Mm](-?[\d.]+) [\d.]+h([\d.]+)", paths["p-compute"])
    (begin, wide), (gap, last) = [(float(a), float(b)) for a, b in spans]
    assert wide == pytest.approx(2 * last, abs=0.2)
    assert gap == pytest.approx(last, abs=0.2)
    assert begin + wide + gap + last == pytest.approx(930.0, abs=0.3)
    assert set(paths) == {"p-compute", "p-waiting"}
    assert {"rank 0", "compute", "waiting", "time, s"} <= set(words(chart))


# Rounds


def columns(**more: Any) -> Columns:
    return Columns(**{"name": "quorum", "look": 2, "counts": (10, 0, 30), **more})


@WIDTHS
def test_columns_are_shares_from_zero(width: float) -> None:
    chart = column_chart([columns(note="mean 1.5")], title="rounds", width=width, label="columns of shares")
    (area,) = of(chart, "path", "bins")
    tops = [float(top) for top in re.findall(r"V([\d.]+)h", area.get("d", ""))]
    (foot,) = set(re.findall(r"M[\d.]+ ([\d.]+)V", area.get("d", "")))
    low, high = (float(foot) - top for top in tops)
    assert high == pytest.approx(3 * low, abs=0.15), "nothing is drawn for nothing"
    assert {"25%", "75%", "0", "1", "2", "mean 1.5", "rounds"} <= set(words(chart))


def test_columns_of_all_sides_are_on_one_scale() -> None:
    chart = column_chart([columns(), columns(counts=(1, 1))], title="n", width=940.0, label="columns", first=1)
    tops = [re.findall(r"M[\d.]+ ([\d.]+)V([\d.]+)", area.get("d", "")) for area in of(chart, "path", "bins")]
    heights = [[float(foot) - float(top) for foot, top in side] for side in tops]
    assert heights[0][1] / heights[1][0] == pytest.approx(0.75 / 0.5, abs=0.01)
    axes = [float(element.get("x2", 0)) for element in of(chart, "line", "axis")]
    assert len(set(axes)) == 1
    assert words(chart).count("3") == 2, "numbers begin at 1, and are the same for both"


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=900), st.sampled_from([340.0, 590.0]))
def test_any_number_of_columns_fits(counts: list[int], width: float) -> None:
    chart = column_chart([columns(counts=counts, level=1 / len(counts))], title="rank", width=width, label="columns")
    for area in of(chart, "path", "bins"):
        begins = [float(x) for x in re.findall(r"M([\d.]+)", area.get("d", ""))]
        assert begins and begins == sorted(begins) and begins[0] >= 0.0 and begins[-1] < width
    assert len(of(chart, "line", "percentile")) == 1
    assert "nan" not in chart


def test_columns_that_share_numbers_keep_the_level_of_one() -> None:
    """400 ranks that have the same: each column of several is as high as the line."""
    chart = column_chart([columns(counts=[7] * 400, level=1 / 400)], title="rank", width=340.0, label="columns")
    (level,) = of(chart, "line", "percentile")
    tops = {float(top) for top in re.findall(r"V([\d.]+)h", of(chart, "path", "bins")[0].get("d", ""))}
    assert min(tops) == pytest.approx(float(level.get("y1", 0)), abs=0.02)
    assert any("to a column" in text for text in words(chart))


@WIDTHS
def test_gains_are_bars_on_one_scale(width: float) -> None:
    rows = [Gain(name=name, look=1, was=was, would_be=0.4) for name, was in (("a", 0.1), ("b", 0.2), ("c", 0.0))]
    chart = gain_chart(rows, was="was", would_be="in step it would be", width=width, label="bars of waiting")
    full = [float(element.get("width", 0)) for element in of(chart, "rect", "area")]
    empty = [float(element.get("width", 0)) for element in of(chart, "rect", "estimate")]
    assert len(set(empty)) == 1 and full[1] / empty[0] == pytest.approx(0.5, abs=0.01)
    assert full[1] / full[0] == pytest.approx(2.0, abs=0.05)
    begins = [float(element.get("x", 0)) for element in drawn(chart).iter("text")]
    ends = [x + drawing.text_width(text) for x, text in zip(begins, words(chart), strict=True)]
    assert max(ends) <= width + 10


def test_gains_of_nothing() -> None:
    rows = [Gain(name="a", look=1, was=0.0, would_be=0.0)]
    assert "nan" not in gain_chart(rows, was="was", would_be="would be", width=340.0, label="bars of waiting")


def strokes(chart: str, name: str) -> list[tuple[float, float, float]]:
    """The begin, row and end of strokes that are written relative to each other."""
    (path,) = [path for path in drawn(chart).iter("path") if path.get("id", "").endswith(name)]
    places, x, y = [], 0.0, 0.0
    for right, down, length in re.findall(r"m(-?[\d.]+) (-?[\d.]+)h([\d.]+)", path.get("d", "")):
        x, y = x + float(right), y + float(down)
        places.append((x, y, x + float(length)))
        x += float(length)
    return places


def test_rounds_cross_the_lanes_and_gradients_lead_to_them() -> None:
    lanes = [("rank 0", [("compute", 0.0, 1.0)]), ("rank 1", [("compute", 0.0, 2.0)])]
    rounds = [
        RoundLine(name="round 1", time=1.0, gradients=[(0, 0.9, False), (1, -0.5, True)]),
        RoundLine(name="round 2", time=2.0, gradients=[(1, 1.5, True)]),
    ]
    chart = lane_chart(lanes, seconds=2.0, title="time", width=940.0, label="lanes with rounds", rounds=rounds)
    plain = lane_chart(lanes, seconds=2.0, title="time", width=940.0, label="lanes without")
    assert not of(plain, "path", "round") and "round" not in words(plain)
    _, first, second = of(chart, "path", "round")
    assert "round" in words(chart)
    xs = [float(re.findall(r"M([\d.]+)", element.get("d", ""))[0]) for element in (first, second)]
    tall = [
        [float(y) for y in re.findall(r" ([\d.]+)V([\d.]+)", element.get("d", ""))[0]] for element in (first, second)
    ]
    assert tall[0] == tall[1] and tall[0][1] - tall[0][0] > 2 * 27
    ways = strokes(chart, "ways")
    assert [end for _, _, end in ways] == pytest.approx([xs[0], xs[0], xs[1]], abs=0.2)
    left = float(of(chart, "line", "axis")[0].get("x1", 0))
    assert ways[1][0] == pytest.approx(left, abs=0.1), "a gradient from before begins where the scale does"
    assert ways[1][1] - ways[0][1] == 27.0 and ways[1][1] == ways[2][1]
    fresh, late = strokes(chart, "fresh"), strokes(chart, "late")
    assert len(fresh) == len(late) == 1, "what came before has no dot"
    assert late[0][0] == late[0][2] == pytest.approx((xs[0] + xs[1]) / 2, abs=0.1)
    assert len(of(chart, "use", "fresh")) == len(of(chart, "use", "late")) == 2, "a dot has a rim"
