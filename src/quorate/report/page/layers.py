"""The tensor axis: what each layer that several workers compute together sends."""

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
"""That are listed of each arm, at most."""
_HEADS = ["strategy", "layer", "workers", "sent in a pass", "of all"]


def layers(view: View) -> Markup:
    """Only where some arm has layers that are computed together."""
    known = [(arm, arm.layers) for arm in view.summary.arms if arm.layers is not None]
    if not known:
        return Markup()
    some = [(arm, told, one) for arm, told in known for one in told.layers[:LAYERS]]
    figures = alike([[one.bytes_out, _share(told, one)] for _, told, one in some], [bytes_alike, shares_alike])
    rows = [[arm.name, one.name, f"{told.tensor}", *row] for (arm, told, one), row in zip(some, figures, strict=True)]
    hidden = sum(max(0, len(told.layers) - LAYERS) for _, told in known)
    note = f"Further layers: {hidden:,}; all of them are in the data." if hidden else ""
    shown = framed(view, "Bytes of each layer", table(_HEADS, rows), paragraphs(MEANINGS, note))
    return section("layers", "Tensor axis", LEAD, shown)


def _share(told: LayersSummary, one: LayerTraffic) -> float:
    return one.bytes_out / max(1, sum(layer.bytes_out for layer in told.layers))
