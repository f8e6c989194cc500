"""The tensor axis: the traffic of each layer that several workers compute together."""

from __future__ import annotations

from collections.abc import Iterator

from quorate.report.charts.markup import Markup
from quorate.report.figures.run import MeasuredRun
from quorate.report.parts import TableColumns, View, arms_table, framed, further, paragraphs
from quorate.report.schema import Part
from quorate.report.topic import Arms, Topic, data_of
from quorate.report.wording import bytes_alike, shares_alike

LEAD = "If several workers compute a layer together, they exchange activations and gradients of activations for it."
MEANINGS = (
    "Bytes that one worker sent in one forward and backward pass, in the first run. They grow with the batch and the "
    "sequence length, not only with the size of the layers; each pass waits for them."
)
LAYERS = 48
"""The most layers listed of each arm."""


class LayerTraffic(Part):
    """One layer that several workers compute together."""

    name: str
    bytes_out: int
    """Bytes that a worker sends for it in one forward and backward pass."""


class LayersSummary(Part):
    """The traffic of layers along the tensor axis, in the first run of an arm that ended well."""

    seed: int
    rank: int
    """The rank whose bytes these are."""
    tensor: int
    """Workers that compute layers together."""
    layers: tuple[LayerTraffic, ...]
    """The busiest first."""


def layers_of(run: MeasuredRun) -> LayersSummary | None:
    """Return the traffic of the first rank that has recorded it, the busiest layer first; None without such a rank."""
    for rank in run.records.ranks:
        if rank.layers is not None:
            layers = [LayerTraffic(name=name, bytes_out=sent) for name, sent in rank.layers.sent.items()]
            layers.sort(key=lambda layer: (-layer.bytes_out, layer.name))
            workers = rank.distributed.get("tensor") or 1
            return LayersSummary(seed=run.seed, rank=rank.rank, tensor=workers, layers=tuple(layers))
    return None


def _body(view: View, arms: Arms[LayersSummary]) -> Iterator[Markup]:
    rows = [(arm, summary, layer) for arm, summary in arms for layer in summary.layers[:LAYERS]]
    note = further("layers", (len(summary.layers) - LAYERS for _, summary in arms))
    yield framed(view, "Bytes of each layer", arms_table(rows, _COLUMNS), paragraphs(MEANINGS, note))


_COLUMNS: TableColumns[LayersSummary, LayerTraffic] = (
    ("layer", lambda summary, layer: layer.name, None),
    ("workers", lambda summary, layer: f"{summary.tensor}", None),
    ("sent per pass", lambda summary, layer: layer.bytes_out, bytes_alike),
    (
        "share of all",
        lambda summary, layer: layer.bytes_out / max(1, sum(each.bytes_out for each in summary.layers)),
        shares_alike,
    ),
)
TOPIC = Topic(
    name="layers",
    title="Tensor axis",
    lead=LEAD,
    part=LayersSummary,
    measure=layers_of,
    body=_body,
    data={"layers": data_of("name bytes_out", lambda summary: summary.layers)},
)
