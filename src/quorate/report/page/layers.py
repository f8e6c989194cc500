"""The tensor axis: the traffic of each layer that several workers compute together."""

from __future__ import annotations

from quorate.report.charts.markup import Markup
from quorate.report.page.parts import View, alike, framed, paragraphs, section, table
from quorate.report.schema_mesh import LayersSummary, LayerTraffic
from quorate.report.wording import bytes_alike, shares_alike

LEAD = (
    "Where several workers compute layers together, they send each other activations, and the gradients of these, for "
    "each layer that is cut."
)
MEANINGS = (
    "Bytes that one worker sent in one forward and backward pass, in the first run. They grow with the batch and with "
    "the length of sequences, and not with the size of the model's layers alone; no pass goes on before they have come."
)
LAYERS = 48
"""The most layers listed of each arm."""
_HEADS = ["strategy", "layer", "workers", "sent in a pass", "of all"]


def layers(view: View) -> Markup:
    """Return the section, if some arm has layers that are computed together."""
    summaries = [(arm, arm.layers) for arm in view.summary.arms if arm.layers is not None]
    if not summaries:
        return Markup()
    entries = [(arm, summary, layer) for arm, summary in summaries for layer in summary.layers[:LAYERS]]
    figures = alike(
        [[layer.bytes_out, _share(summary, layer)] for _, summary, layer in entries], [bytes_alike, shares_alike]
    )
    rows = [
        [arm.name, layer.name, f"{summary.tensor}", *row]
        for (arm, summary, layer), row in zip(entries, figures, strict=True)
    ]
    hidden = sum(max(0, len(summary.layers) - LAYERS) for _, summary in summaries)
    note = f"Further layers: {hidden:,}; all of them are in the data." if hidden else ""
    shown = framed(view, "Bytes of each layer", table(_HEADS, rows), paragraphs(MEANINGS, note))
    return section("layers", "Tensor axis", LEAD, shown)


def _share(summary: LayersSummary, traffic: LayerTraffic) -> float:
    return traffic.bytes_out / max(1, sum(layer.bytes_out for layer in summary.layers))
