"""The report as one HTML file: no network, no fonts or scripts from elsewhere, and every number from the summary."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from quorate.report import topics
from quorate.report.charts.activities import patterns
from quorate.report.charts.markup import Markup, element, joined
from quorate.report.parts import View, chip
from quorate.report.schema import Summary
from quorate.report.wording import counted


def page(summary: Summary) -> str:
    """Return the whole file; it links to `summary.json` and the CSV files that lie beside it.

    A section whose figures the summary lacks is left out or gives the reason. Names are escaped, and the page forbids
    itself to load anything and to run scripts. Cost: some 0.1 s and 250 kB for a few arms.
    """
    names = [name for topic in topics.TOPICS for name in topic.data]
    view = View(summary, ("summary.json", *(f"data/{name}.csv" for name in names)))
    main = element("main", *sections(view))
    return document(summary.title, _header(view), main, _footer(view), is_virtual=view.is_virtual)


def sections(view: View) -> list[Markup]:
    """Return the sections of all topics."""
    return [topic.section(view) for topic in topics.TOPICS]


def document(title: str, *body: Markup, is_virtual: bool, script: str = "") -> str:
    """Return a whole file; its `script`, if any, is the only one that it may run."""
    whole = element(
        "body",
        patterns(),
        element("div", *body, class_="page"),
        *([element("script", Markup(script))] if script else []),
        class_="virtual" if is_virtual else "measured",
    )
    return "<!doctype html>\n" + element("html", _head(title, script), whole, lang="en") + "\n"


def policy(script: str) -> str:
    """Return the policy of a page: it may load nothing; with a script, only what its own server answers to that."""
    allowed = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    if not script:
        return allowed
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"{allowed}; connect-src 'self'; script-src 'sha256-{digest}'"


def _head(title: str, script: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(asset("page.css")), Markup(asset("charts.css"))),
    )


def asset(name: str) -> str:
    """Return a style sheet or a script of a page, as text."""
    return files("quorate.report").joinpath("assets", name).read_text(encoding="utf-8")


def _header(view: View) -> Markup:
    summary = view.summary
    how = chip("virtual time: simulated, not measured", "virtual-chip") if view.is_virtual else chip("measured", "good")
    most = "up to " if "workers" in summary.fairness.differed else ""
    chips = [
        how,
        chip(f"{most}{counted(summary.workers, 'worker')}"),
        chip(counted(len(summary.fairness.seeds), "seed")),
    ]
    if summary.imbalance is not None:
        chips.append(chip(f"imbalance {summary.imbalance}"))
    if summary.pace is not None:
        chips.append(chip(f"minimum step time {summary.pace}"))
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
    return element("footer", element("p", joined([f"{made} from the records of these runs."])))
