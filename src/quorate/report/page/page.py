"""The report as one HTML file: no network, no fonts or scripts from elsewhere, and every number from the summary."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from importlib.resources import files

from quorate.report.charts.activities import patterns
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.arrival import arrival
from quorate.report.page.exclusions import exclusions
from quorate.report.page.fairness import fairness
from quorate.report.page.faults import faults, joined_later
from quorate.report.page.layers import layers
from quorate.report.page.memory import memory
from quorate.report.page.merges import merges
from quorate.report.page.noise import noise
from quorate.report.page.outer import outer
from quorate.report.page.parts import View, chip
from quorate.report.page.quality import quality
from quorate.report.page.replicas import replicas
from quorate.report.page.reproduce import reproduce
from quorate.report.page.rounds import rounds
from quorate.report.page.servers import servers
from quorate.report.page.stages import stages
from quorate.report.page.steps import steps
from quorate.report.page.timeline import timeline
from quorate.report.page.verdict import verdict
from quorate.report.schema import Summary
from quorate.report.wording import counted

SECTIONS: tuple[tuple[str, str, Callable[[View], Markup]], ...] = (
    ("verdict", "Verdict", verdict),
    ("fairness", "Fairness", fairness),
    ("quality", "Quality", quality),
    ("noise", "Gradient noise", noise),
    ("exclusions", "Left out", exclusions),
    ("steps", "Time per step", steps),
    ("arrival", "Arrival skew", arrival),
    ("rounds", "Rounds", rounds),
    ("servers", "Servers", servers),
    ("merges", "Merges", merges),
    ("outer", "Outer steps", outer),
    ("replicas", "Replicas", replicas),
    ("stages", "Stages", stages),
    ("layers", "Tensor axis", layers),
    ("memory", "Memory", memory),
    ("timeline", "Timeline", timeline),
    ("faults", "Faults", faults),
    ("joined", "Who joined", joined_later),
    ("reproduce", "Reproduce", reproduce),
)
"""In order: the anchor, the words of the link, and the section; an empty section is left out."""


def page(summary: Summary) -> str:
    """Return the whole file; it links to `summary.json` and the CSV files that lie beside it.

    A section whose figures the summary lacks is left out or gives the reason. Names are escaped, and the page forbids
    itself to load anything or to run a script but its own. Cost: some 0.1 s and 300 kB for a few arms.
    """
    view = View(summary)
    shown = [(name, words, body) for name, words, section in SECTIONS if (body := section(view))]
    return document(summary.title, _header(view), shown, _footer(view), is_virtual=view.is_virtual)


def document(
    title: str, header: Markup, sections: Sequence[tuple[str, str, Markup]], footer: Markup, *, is_virtual: bool
) -> str:
    """Return a whole file; `sections` are anchors, the words of links, and bodies."""
    script = asset("page.js")
    contents = element(
        "nav", *(element("a", words, href=f"#{name}") for name, words, _ in sections), aria_label="Sections"
    )
    main = element("main", *(body for _, _, body in sections))
    body = element(
        "body",
        patterns(),
        element("div", header, contents, main, footer, class_="page"),
        element("script", Markup(script)),
        class_="virtual" if is_virtual else "measured",
    )
    return "<!doctype html>\n" + element("html", _head(title, script), body, lang="en") + "\n"


def _head(title: str, script: str) -> Markup:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(asset("page.css")), Markup(asset("charts.css"))),
    )


def asset(name: str) -> str:
    """Return one of our style sheets or scripts, as text."""
    return files("quorate.report").joinpath("assets", name).read_text(encoding="utf-8")


def _header(view: View) -> Markup:
    summary = view.summary
    how = chip("virtual time: simulated, not measured", "virtual-chip") if view.is_virtual else chip("measured", "good")
    chips = [how, chip(counted(summary.workers, "worker")), chip(counted(len(summary.fairness.seeds), "seed"))]
    if summary.imbalance is not None:
        chips.append(chip(f"imbalance {summary.imbalance}"))
    if summary.pace is not None:
        chips.append(chip(f"pace {summary.pace}"))
    if summary.target is not None and summary.metric is not None:
        chips.append(chip(f"target {summary.metric.name} {summary.target:g}"))
    return heading("run" if view.is_single else "comparison", summary.title, chips)


def heading(kind: str, title: str, chips: Sequence[Markup]) -> Markup:
    """Return the head of a page."""
    return element(
        "header",
        element("p", f"Quorate · {kind}", class_="brand"),
        element("h1", title),
        element("p", *chips, class_="chips"),
    )


def _footer(view: View) -> Markup:
    versions = view.summary.reproduce.packages
    version = versions.get("quorate")
    made = f"Made by Quorate {version}" if version else "Made by Quorate"
    return element("footer", element("p", joined([f"{made} from the records of these runs, and from nothing else."])))
