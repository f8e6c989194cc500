"""The page: one file, well-formed, closed to the network, and with the numbers of the summary."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from quorate.report.page import page
from quorate.report.schema import ArmSummary, Estimate, HostLoad, Summary
from quorate.report.summary import markdown, summarize
from quorate.report.topics import TOPICS
from quorate.report.topics.rounds import Change
from tests.support.made_records import make_comparison
from tests.support.made_summaries import failed_arm, made_arm, made_summary
from tests.support.parsed_pages import Element, parsed

FIGURES = ("quality", "time_to_target", "target_speedup", "examples_per_second", "speedup", "no_wait_share",
           "bytes_per_step", "peak_bytes")  # fmt: skip
NASTY = "</title></style></script><script>alert(1)</script><b>&\"' \x00\ud800 javascript:alert(1)"


def nasty_summary() -> Summary:
    """Markup in every place that can hold a user's words."""
    usual = made_summary()
    arms = [
        arm.model_copy(update={"name": f"{arm.name} {NASTY}", "strategy": NASTY, "settings": {NASTY: NASTY}})
        for arm in usual.arms
    ]
    arrival = arms[0].arrival
    assert arrival is not None
    arms[0] = arms[0].model_copy(update={"arrival": arrival.model_copy(update={"sentence": NASTY})})
    fairness = usual.fairness.model_copy(update={"equal": (NASTY,), "differed": {NASTY: {arms[0].name: NASTY}}})
    reproduce = usual.reproduce.model_copy(
        update={
            "command": (NASTY,), "started": NASTY, "git": {"commit": NASTY, "dirty": True}, "packages": {NASTY: NASTY},
            "machine": {NASTY: {NASTY: [NASTY]}}, "settings": {NASTY: NASTY},
        }
    )  # fmt: skip
    assert usual.metric is not None
    return usual.model_copy(
        update={
            "title": NASTY, "verdict": f"{NASTY}; {NASTY}", "warnings": (NASTY,), "baseline": NASTY, "imbalance": NASTY,
            "pace": NASTY, "metric": usual.metric.model_copy(update={"name": NASTY}), "fairness": fairness,
            "reproduce": reproduce, "arms": (*arms, failed_arm(NASTY, NASTY)),
            "tuning": tuple(trial.model_copy(update={"arm": NASTY}) for trial in usual.tuning),
        }
    )  # fmt: skip


def empty_summary() -> Summary:
    usual = made_summary()
    fairness = usual.fairness.model_copy(update={"equal": (), "differed": {}, "seeds": (), "warm_up_steps": 0})
    reproduce = usual.reproduce.model_copy(
        update={"command": (), "started": "", "git": None, "packages": {}, "machine": {}, "settings": {}}
    )
    nothing: dict[str, Any] = dict.fromkeys(("metric", "target", "baseline", "imbalance", "pace"))
    return usual.model_copy(
        update={**nothing, "arms": (), "tuning": (), "warnings": (), "fairness": fairness, "reproduce": reproduce}
    )


def strange_summary() -> Summary:
    """Arms without numbers, with numbers that are none, with single points and equal values."""
    arm = made_arm("one point", 0.5, 1.0, ranks=1, seeds=(0,))
    curve = arm.curves[0].model_copy(update={"seconds": (1.0,), "examples": (), "bytes": (0,), "quality": (math.nan,)})
    flat = arm.curves[0].model_copy(
        update={"seconds": (0.0, 0.0), "examples": (0, 0), "bytes": (0, 0), "quality": (0.5, 0.5)}
    )
    number = Estimate(mean=math.nan, low=None, high=None, values=(math.nan,))
    arms = [
        arm.model_copy(update={"curves": (curve,), "losses": (), "quality": number}),
        arm.model_copy(update={"name": "flat", "curves": (flat, curve), "losses": (flat,), "timeline": ()}),
        failed_arm(),
    ]
    return made_summary(arms=tuple(arms), baseline=None, seeds=(0,))


CASES = {
    "usual": made_summary,
    "one seed": lambda: made_summary(seeds=(0,)),
    "virtual": lambda: made_summary(world="virtual"),
    "a failed arm": lambda: made_summary(arms=(*made_summary().arms, failed_arm())),
    "no arm that works": lambda: made_summary(arms=(failed_arm(), failed_arm("other"))),
    "many ranks": lambda: made_summary(ranks=200),
    "two ranks": lambda: made_summary(ranks=2),
    "no target": lambda: made_summary(target=None),
    "no metric": lambda: made_summary(metric=None),
    "nothing": empty_summary,
    "strange": strange_summary,
    "nasty": nasty_summary,
}
every_case = pytest.mark.parametrize("case", CASES)


@cache
def read(case: str) -> tuple[str, Element]:
    html = page(CASES[case]())
    return html, parsed(html)


@every_case
def test_it_is_well_formed(case: str) -> None:
    html, root = read(case)
    assert html.startswith("<!doctype html>")
    charts = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    assert len(charts) == len(root.all("svg")) > 0
    for chart in charts:
        ElementTree.fromstring(chart)
    ids = [element.attributes["id"] for element in root.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    assert not [match for chart in charts for match in re.findall(r' (?:d|x|y|width|height)="[^"]*(?:nan|inf)', chart)]


@every_case
def test_it_has_all_sections_and_no_empty_one(case: str) -> None:
    _, root = read(case)
    names = [section.attributes["id"] for section in root.all("section")]
    arms = CASES[case]().arms
    left_out = {"rounds": not any(arm.rounds for arm in arms), "replicas": not any(arm.replicas for arm in arms)}
    left_out |= {
        "faults": not any(arm.faults or arm.goodput for arm in arms),
        "joined": not any(arm.joined for arm in arms),
    }
    left_out |= {"servers": not any(arm.servers for arm in arms), "memory": not any(arm.memory for arm in arms)}
    left_out |= {"stages": not any(arm.stages for arm in arms)}
    left_out |= {"layers": not any(arm.layers for arm in arms)}
    left_out |= {"merges": not any(arm.merges for arm in arms), "outer": not any(arm.outer for arm in arms)}
    left_out |= {"exclusions": not any(arm.exclusions for arm in arms)}
    left_out |= {"tuning": not any(arm.tuning for arm in arms)}
    left_out |= {"scale": not any(arm.scale for arm in arms), "shrink": not any(arm.shrink for arm in arms)}
    left_out |= {"noise": not any(arm.noise for arm in arms), "attention": not any(arm.attention for arm in arms)}
    assert names == [topic.name for topic in TOPICS if not left_out.get(topic.name)]
    for name in names:
        assert len(root.one("section", id=name).text) > 60


@every_case
def test_it_loads_nothing(case: str) -> None:
    _, root = read(case)
    assert not root.all("link") + root.all("img") + root.all("iframe") + root.all("object") + root.all("base")
    for element in root.all():
        assert not {"src", "srcset", "background", "action", "style"} & set(element.attributes)
        assert not [name for name in element.attributes if name.startswith("on")]
        where = element.attributes.get("href", "#")
        assert where.startswith(("#", "./")), where
    styles = "".join(part for style in root.all("style") for part in style.content if isinstance(part, str))
    assert "@import" not in styles
    assert set(re.findall(r"url\((.)", styles)) == {"#"}
    assert "http" not in styles


@every_case
def test_no_script_may_run(case: str) -> None:
    _, root = read(case)
    policy = root.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert not root.all("script") + root.all("button")
    assert "default-src 'none'" in policy and "script-src" not in policy


@every_case
def test_every_chart_is_told_in_words(case: str) -> None:
    _, root = read(case)
    for chart in root.all("svg", "chart"):
        assert chart.attributes["role"] == "img"
        assert len(chart.attributes["aria-label"]) > 30
    for other in root.all("svg"):
        assert "chart" in other.classes or other.attributes["aria-hidden"] == "true"


@every_case
def test_numbers_are_those_of_the_summary(case: str) -> None:
    _, root = read(case)
    summary = CASES[case]()
    cells = [cell for cell in root.all("td") if "data-field" in cell.attributes]
    shown = {(cell.attributes["data-arm"], cell.attributes["data-field"]): cell for cell in cells}
    assert len(shown) == len(cells)
    for arm in summary.arms:
        for name in FIGURES:
            if not any(getattr(arm, name) for arm in summary.arms) and name != "time_to_target":
                continue
            if name == "time_to_target" and summary.target is None and not arm.time_to_target:
                continue
            check_cell(shown[escaped_as_read(arm.name), name], getattr(arm, name))


def escaped_as_read(name: str) -> str:
    """A name after it has been written and read: what XML cannot hold is replaced."""
    return name.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


def check_cell(cell: Element, estimate: Estimate | None) -> None:
    values = {key: cell.attributes.get(f"data-{key}") for key in ("value", "low", "high")}
    if estimate is None:
        assert set(values.values()) == {None}
        return
    assert float(values["value"] or "") == pytest.approx(estimate.mean, rel=0, abs=0, nan_ok=True)
    assert (values["low"] and float(values["low"])) == estimate.low
    assert (values["high"] and float(values["high"])) == estimate.high


def test_it_is_of_a_real_folder_too(tmp_path: Path) -> None:
    summary = summarize(make_comparison(tmp_path / "comparison"))
    root = parsed(page(summary))
    for arm in summary.arms:
        check_cell(root.one("td", data_arm=arm.name, data_field="examples_per_second"), arm.examples_per_second)
    assert root.one("section", id="quality").all("svg")
    assert root.one("section", id="arrival").all("svg")


def test_it_stays_below_a_megabyte() -> None:
    arms = [made_arm(f"strategy {n}", 0.7, 1.0 + n / 10, ranks=512, seeds=range(10)) for n in range(8)]
    assert len(page(made_summary(ranks=512, seeds=range(10), arms=tuple(arms))).encode()) < 1_000_000


def test_bold_is_only_what_is_better() -> None:
    _, root = read("usual")
    bold = {
        (cell.attributes["data-arm"], cell.attributes["data-field"])
        for table in root.all("table", "arms")
        for cell in table.all("td")
        if cell.all("strong")
    }
    assert bold == {("quorum", name) for name in ("time_to_target", "target_speedup", "examples_per_second", "speedup")}
    words = root.one("td", data_arm="quorum", data_field="quality").text
    assert "no significant difference" in words
    assert "worse" in root.one("td", data_arm="quorum", data_field="peak_bytes").text


def test_speed_ups_stand_beside_the_names() -> None:
    _, root = read("usual")
    first, further = root.all("table", "arms")
    assert [head.text for head in first.one("thead").all("th")] == [
        "strategy", "speed-up to the target", "final top1 ↑", "time to 0.62",
    ]  # fmt: skip
    assert [head.text for head in further.one("thead").all("th")] == [
        "strategy", "speed-up in examples/s", "examples/s", "share of no-wait ideal", "sent per step and rank",
        "peak memory", "target reached",
    ]  # fmt: skip
    without = parsed(page(made_summary(target=None, arms=tuple(
        arm.model_copy(update={"target_speedup": None, "time_to_target": None}) for arm in made_summary().arms
    ))))  # fmt: skip
    assert [head.text for head in without.one("table", "first").one("thead").all("th")] == [
        "strategy", "speed-up in examples/s", "final top1 ↑", "examples/s",
    ]  # fmt: skip


def test_a_column_has_one_unit_and_one_number_of_digits() -> None:
    arms = made_summary().arms
    times = (0.9504, 12.34, 1.5)
    changed = [
        arm.model_copy(update={"time_to_target": Estimate(mean=time, low=None, high=None, values=(time,))})
        for arm, time in zip(arms, times, strict=True)
    ]
    root = parsed(page(made_summary(arms=tuple(changed))))
    cells = root.all("td", data_field="time_to_target")
    assert [cell.one(class_="mean").text for cell in cells] == ["0.95 s", "12.34 s", "1.50 s"]


def test_a_miss_is_a_miss() -> None:
    arms = made_summary().arms
    missed = arms[2].model_copy(update={"time_to_target": None, "target_reached": (0, 3), "target_speedup": None})
    partly = arms[1].model_copy(update={"target_reached": (2, 3)})
    root = parsed(page(made_summary(arms=(arms[0], partly, missed))))
    cell = root.one("td", data_arm="quorum", data_field="time_to_target")
    assert cell.text == "missed"
    assert "data-value" not in cell.attributes
    assert root.one("td", data_arm="quorum", data_field="target_reached").text == "0 of 3"
    assert root.one("td", data_arm="all-reduce", data_field="target_reached").text == "2 of 3"


def test_a_failed_arm_is_there_with_why() -> None:
    _, root = read("a failed arm")
    assert "1 of 2 runs failed" in root.one("th", data_arm="gossip").text
    assert "1 of 2 runs stopped" in root.one("th", data_arm="gossip").text
    assert root.one("td", data_arm="gossip", data_field="quality").text == "failed"
    failures = root.one("div", "failures")
    assert "seed 0, ended with status 1: rank 1 was killed by SIGKILL" in failures.text
    assert "seed 1, did not end" in failures.text
    assert failures.all("a", href="./gossip/seed-0")
    assert "Not shown: gossip" in root.one("section", id="steps").text


def test_warnings_are_shown_before_the_table() -> None:
    html, root = read("usual")
    assert root.one(class_="warnings").text == "Caution Rank 3 was slowed down on purpose (pace 3=1.75)."
    assert html.index('class="warnings"') < html.index("<table")


def test_one_seed_is_called_one_seed() -> None:
    _, root = read("one seed")
    assert "one seed" in root.one("th", data_arm="quorum").text
    cell = root.one("td", data_arm="quorum", data_field="quality").text
    assert "one seed" in cell and "difference" not in cell
    for chart in root.one("div", "seconds").all("svg", "chart"):
        assert "one seed each" in chart.text and "quorum (one seed)" not in chart.text
        assert not chart.all("path", "band")
    assert all(chart.all("path", "band") for chart in read("usual")[1].one("div", "seconds").all("svg", "chart"))


def test_simulated_looks_unlike_measured() -> None:
    _, measured = read("usual")
    _, virtual = read("virtual")
    assert measured.one("body").classes == {"measured"}
    assert virtual.one("body").classes == {"virtual"}
    assert not measured.all(class_="badge") + measured.all(class_="virtual-chip")
    assert all(figure.one(class_="badge").text == "virtual time" for figure in virtual.all("figure"))
    assert "virtual training time" in virtual.one("div", "seconds").all("svg")[0].text
    assert "virtual" not in measured.text
    assert "virtual time to 0.62" in virtual.one("table", "first").text


def test_the_toggle_shows_time_first() -> None:
    _, root = read("usual")
    choices = [choice.attributes["id"] for choice in root.all("input", type="radio", name="against")]
    assert choices == ["by-seconds", "by-examples", "by-bytes"]
    assert [c.attributes["id"] for c in root.all("input") if "checked" in c.attributes] == ["by-seconds"]
    assert {label.attributes["for"] for label in root.one("div", "toggle").all("label")} == set(choices)
    assert root.one("div", "first").classes == {"panel", "seconds", "first"}


def test_examples_that_were_not_counted_have_no_axis() -> None:
    arms = [
        arm.model_copy(
            update={
                "curves": tuple(curve.model_copy(update={"examples": ()}) for curve in arm.curves),
                "losses": tuple(curve.model_copy(update={"examples": ()}) for curve in arm.losses),
            }
        )
        for arm in made_summary().arms
    ]
    root = parsed(page(made_summary(arms=tuple(arms))))
    assert [choice.attributes["id"] for choice in root.all("input")] == ["by-seconds", "by-bytes"]


def test_every_rank_has_a_lane_up_to_sixteen() -> None:
    few = read("usual")[1].one("section", id="timeline")
    many = read("many ranks")[1].one("section", id="timeline")
    assert [text.text for text in few.all("svg")[0].all("text", "row-name")] == [
        "rank 0", "rank 1", "rank 2", "rank 3 (slow)",
    ]  # fmt: skip
    assert len(many.all("svg")[0].all("text", "row-name")) == 16
    assert "16 of 200 ranks: 0, 1, 2" in many.text
    assert "ranks:" not in few.text


def test_many_ranks_share_rows() -> None:
    _, root = read("many ranks")
    arrival = root.one("section", id="arrival")
    assert "0–3 (3 slow)" in arrival.all("svg")[0].text
    assert "The 16 latest of 200 ranks" in arrival.text
    assert len(arrival.all("figure")[0].one("tbody").all("tr")) == 16


def test_rounds_are_shown_where_there_are_any() -> None:
    _, root = read("usual")
    section = root.one("section", id="rounds")
    rounds = made_summary().arms[2].rounds
    assert rounds is not None
    row = section.all("figure")[0].one("tbody").one("tr")
    shown = [
        float(cell.attributes["data-value"]) for cell in row.all("span", "mean") if "data-value" in cell.attributes
    ]
    assert shown == [
        estimate.mean
        for estimate in (rounds.count, rounds.per_second, rounds.fresh_share, rounds.effective_batch,
                    rounds.waiting_share, rounds.waiting_in_step)
        if estimate is not None
    ]  # fmt: skip
    captions = [figure.one("figcaption").text for figure in section.all("figure")]
    assert captions == [
        "Costs and gains of the quorum", "Staleness of gradients", "Workers in a round",
        "Applied gradients by rank", "Share of time spent waiting",
    ]  # fmt: skip
    assert "Not shown: ddp and all-reduce (no rounds were recorded)." in section.text
    labels = [chart.attributes["aria-label"] for chart in section.all("svg", "wide") or section.all("svg", "chart")]
    assert "quorum, 73% fresh; 0: 73%, 1: 21%" in labels[0]
    assert "1: 11%, 2: 22%, 3: 45%, 4: 22%" in labels[2], "workers are counted from 1"
    assert "least: rank 3, 17%" in labels[4]


def test_what_was_changed_on_the_way_is_told_with_its_reason() -> None:
    arms = made_summary().arms
    assert arms[2].rounds is not None
    changes = (Change(seed=1, number=1234, settings={"wait_for": 2}, why="it brings <more>"),)
    rounds = arms[2].rounds.model_copy(update={"changes": changes})
    root = parsed(page(made_summary(arms=(*arms[:2], arms[2].model_copy(update={"rounds": rounds}))))).one(
        "section", id="rounds"
    )
    assert "Changes of settings" in root.text
    for words in ("1,234", "wait_for 2", "it brings <more>"):
        assert words in root.text
    assert "What was changed" not in parsed(page(made_summary())).one("section", id="rounds").text


def test_without_waiting_known_there_is_no_chart_of_it() -> None:
    arms = made_summary().arms
    assert arms[2].rounds is not None
    rounds = arms[2].rounds.model_copy(update={"waiting_in_step": None, "effective_batch": None, "per_second": None})
    root = parsed(page(made_summary(arms=(*arms[:2], arms[2].model_copy(update={"rounds": rounds})))))
    section = root.one("section", id="rounds")
    assert len(section.all("figure")) == 4
    assert [cell.text for cell in section.all("figure")[0].one("tbody").all("td")].count("–") == 3


def test_the_timeline_says_who_was_not_waited_for() -> None:
    _, root = read("usual")
    section = root.one("section", id="timeline")
    ddp, quorum, _ = section.all("figure")
    assert not ddp.all("path", "round") and "late gradient" not in ddp.text
    assert len(quorum.all("path", "round")) == 1 + len(made_summary().arms[2].marks)
    assert "did not wait for" in section.text and "late gradient" in quorum.text
    assert re.search(r"Lines mark \d+ rounds, dots \d+ fresh and \d+ late", quorum.one("svg").attributes["aria-label"])


def test_lateness_where_nobody_waited_is_called_what_it_is() -> None:
    ddp, _, quorum = read("usual")[1].one("section", id="arrival").all("figure")
    assert "lateness" in ddp.text and "no meeting point" not in ddp.text and "first to arrive" in ddp.text
    assert "no meeting point" in quorum.text and "longer per step" in quorum.text
    assert "lateness" not in quorum.text and "first to arrive" not in quorum.text
    assert "no meeting point" in quorum.all("svg")[0].attributes["aria-label"]


def test_tuning_says_what_was_chosen() -> None:
    _, root = read("usual")
    rows = root.one("section", id="fairness").all("tr")
    row = next(row for row in rows if row.text.startswith("quorum"))
    assert [cell.text for cell in row.all("td")] == ["0.6640", "0.6940 ✓ chosen", "0.6640"]


def test_settings_that_differ_stand_side_by_side() -> None:
    _, root = read("usual")
    rows = [row.text for row in root.one("section", id="fairness").all("tr")]
    assert "wait_for – – 2" in rows


def test_the_command_can_be_run_as_it_stands() -> None:
    _, root = read("usual")
    assert root.one("code", id="command").text.endswith("--min-step-time 3=1.75 --name 'a name'")
    assert "clean" in root.one("section", id="reproduce").text


@pytest.mark.parametrize(("dirty", "words"), [(True, "with uncommitted"), (False, "clean"), (None, "is unknown")])
def test_the_commit_says_whether_the_tree_was_clean(dirty: bool | None, words: str) -> None:
    reproduce = made_summary().reproduce.model_copy(update={"git": {"commit": "abc", "dirty": dirty}})
    assert words in parsed(page(made_summary(reproduce=reproduce))).one("section", id="reproduce").text


def test_the_data_lie_beside_it() -> None:
    links = [a.attributes["href"] for a in read("usual")[1].one("section", id="reproduce").all("a")]
    assert links[0] == "./summary.json"
    assert len(links) > 4
    assert all(re.fullmatch(r"\./data/\w+\.csv", link) for link in links[1:])


def test_links_to_folders_are_escaped() -> None:
    outcome = failed_arm().runs[0].model_copy(update={"folder": "javascript:alert(1)/a b?#"})
    arm: ArmSummary = failed_arm().model_copy(update={"runs": (outcome,)})
    root = parsed(page(made_summary(arms=(arm,))))
    assert root.one("div", "failures").one("a").attributes["href"] == "./javascript%3Aalert%281%29/a%20b%3F%23"


def test_one_run_alone_is_no_comparison() -> None:
    run = made_arm("all-reduce", 0.7, 1.0, seeds=(0,)).model_copy(update={"speedup": None, "differences": {}})
    root = parsed(page(made_summary(arms=(run,), baseline=None, seeds=(0,))))
    assert root.one("p", "brand").text == "Quorate · run"
    assert "a single run" in root.one("section", id="fairness").text
    assert "Bold" not in root.one("section", id="verdict").text
    assert read("usual")[1].one("p", "brand").text == "Quorate · comparison"


def test_seeds_and_warm_up_are_told() -> None:
    assert "Seeds 0, 1 and 2; the first 5 steps of every rank are not counted." in read("usual")[1].text
    assert "Seed 0; the first 5 steps of every rank are not counted. With one seed" in read("one seed")[1].text


def test_a_verdict_is_a_headline_and_a_line_for_each_other_arm() -> None:
    long = "a part of the headline that takes some forty letters or more, " * 3
    root = parsed(page(made_summary(verdict=f"{long}\nanother arm\nand one more")))
    sentence = root.one("p", "verdict")
    assert "long" in sentence.classes and sentence.text == long.strip()
    assert [line.text for line in root.all("p", "verdict-line")] == ["another arm", "and one more"]


def test_it_is_short_until_something_is_unfolded() -> None:
    html, root = read("usual")
    assert len(root.one("body").shown) <= 350
    assert len(html.encode()) < 260_000
    assert [section.attributes["id"] for section in root.all("section") if "folded" not in section.classes] == [
        "verdict", "timeline", "quality", "table",
    ]  # fmt: skip
    for section in root.all("section", "folded"):
        assert section.shown == section.one("h2").text.split()


def headline(**changes: Any) -> Element:
    summary = made_summary()
    arms = [*summary.arms[:2], summary.arms[2].model_copy(update=changes)]
    return parsed(page(summary.model_copy(update={"arms": tuple(arms)}))).one("p", "headline")


def test_the_speed_up_is_read_at_a_glance() -> None:
    best = made_summary().arms[2]
    assert best.target_speedup is not None and best.speedup is not None
    usual = headline()
    assert usual.text == (f"{best.target_speedup.mean:.2f}× speed-up of quorum over ddp to top1 0.62, at equal quality")
    assert "better" in usual.classes
    same = headline(differences={"quality": "better", "time_to_target": "no significant difference"})
    assert (
        same.text == ("no significant difference in speed between quorum and ddp to top1 0.62, at better quality")
        and "same" in same.classes
    )
    missed = headline(target_reached=(2, 3), differences={**best.differences, "quality": "worse"})
    assert not missed.text.startswith(f"{best.speedup.mean:.2f}×"), "an arm that is worse is not the best"
    arms = tuple(arm for arm in made_summary().arms if arm.name != "all-reduce")
    differences = {**best.differences, "quality": "worse"}
    alone = (arms[0], best.model_copy(update={"differences": differences}))
    paid = parsed(page(made_summary(arms=alone))).one("p", "headline")
    assert paid.text.endswith("at worse quality") and paid.classes == {"headline", "worse"}
    other = headline(target_reached=(2, 3))
    assert "to top1" in other.text and "all-reduce" in other.text, "neither is one that missed the target"


def test_without_a_baseline_there_is_no_headline_figure() -> None:
    assert not read("nothing")[1].all("p", "headline")
    assert not parsed(page(made_summary(baseline=None))).all("p", "headline")


def test_other_work_stands_beside_the_verdict() -> None:
    html, _ = read("usual")
    assert "other-work" not in html.partition("</style>")[2]
    said = "the machine was busy with other work (1.6 of 2 cores) in 1 of 9 runs"
    busy = HostLoad(cores=2, used=0.4, other=1.6, load_average=3.0, pressure=0.8, is_busy=True)
    arm = made_summary().arms[0]
    runs = (arm.runs[0].model_copy(update={"load": busy}), *arm.runs[1:])
    arms = (arm.model_copy(update={"runs": runs}), *made_summary().arms[1:])
    summary = made_summary(other_work=said, arms=arms)
    root = parsed(page(summary))
    assert root.one("section", id="verdict").one("p", "other-work").text == f"T{said[1:]}."
    assert "1 run disturbed" in root.one("th", data_arm="ddp").text
    assert "disturbed" not in root.one("th", data_arm="quorum").text
    assert f"**T{said[1:]}.**" in markdown(summary).split("\n\n")[2]


def test_a_line_is_said_to_end_where_it_is_drawn_to_end() -> None:
    arms = made_summary().arms
    late = arms[0].curves[0].model_copy(update={"seconds": (1.0, 2.0, 4.0), "examples": (1, 2, 4),
                                                "bytes": (1, 2, 4), "quality": (0.1, 0.3, 0.9)})  # fmt: skip
    early = late.model_copy(update={"seconds": (1.0, 2.0, 3.0), "quality": (0.2, 0.4, 0.5)})
    changed = arms[0].model_copy(update={"curves": (late, early), "losses": ()})
    root = parsed(page(made_summary(arms=(changed,), baseline=None)))
    label = root.one("div", "seconds").all("svg", "chart")[0].attributes["aria-label"]
    assert "ddp ends at 0.5500 (mean of 2 seeds)" in label, "at 3 s one seed is at 0.6, the other at 0.5"


def test_it_is_made_without_torch() -> None:
    code = "import sys, quorate.report.page; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
