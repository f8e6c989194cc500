"""How the pictures of benchmarks look: the colours of the report's pages, for light and dark."""

from __future__ import annotations

from importlib import resources


def chart_style() -> str:
    """CSS of an SVG on its own: colours, fonts, and how the report's charts look."""
    assets = resources.files("quorate.report") / "assets"
    page = (assets / "page.css").read_text(encoding="utf-8")
    colours = page[page.index(":root") : page.index("* { box-sizing")]
    charts = (assets / "charts.css").read_text(encoding="utf-8")
    return (
        colours
        + ".chart { font: 12px var(--sans); }\n"
        + charts[charts.index(".chart text") : charts.index(".a-compute")]
    )
