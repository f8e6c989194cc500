"""`quorate doctor --memory`: what a worker of a script will hold, for ZeRO 0 to 3 over so many shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quorate.cli.tables import paragraphs, table, terminal_width
from quorate.core.axes import offload_of
from quorate.report.wording import bytes_in_words, number_in_words

USUAL_SHARDS = (2, 4, 8, 16)
MOST_SHARDS = 1 << 20
_BLOCKS_SHOWN = 4
_COLUMNS = {
    "params": "parameters", "grads": "gradients", "optim": "optimizer", "gather": "gathered", "exch": "exchanged",
    "activ": "activations",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Line:
    """The memory of a worker in one layout of the model."""

    zero: int
    workers: int
    """Workers of one replica; with ZeRO 0 each has a replica."""
    held: Mapping[str, int]
    total: int
    by_formula: float
    numbers_sent: float
    fits: bool | None
    """None if no limit was asked for."""


def lines(answer: Mapping[str, Any], shards: int | None, limit: int | None, offload: str | None) -> Iterator[Line]:
    """Yield ZeRO 0, and 1 to 3 over `shards` or the usual numbers; `offload` None: as in the script."""
    from quorate.sharding.memory import MODES, Model, by_formula, held, numbers_sent

    model = Model.from_json(answer["memory"])
    offloaded = offload_of(offload or answer.get("offload"))
    numbers = USUAL_SHARDS if shards is None else (shards,)
    for count in (1, *(number for number in numbers if number > 1)):
        for zero in MODES:
            if (zero == 0) == (count == 1) or (zero == 0 and count == numbers[0]):
                sizes = held(model, zero, count, offloaded)
                yield Line(
                    zero=zero, workers=count, held=asdict(sizes), total=sizes.total,
                    by_formula=by_formula(model, zero, count), numbers_sent=numbers_sent(model, zero, count),
                    fits=None if limit is None else sizes.total <= limit,
                )  # fmt: skip


def as_json(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> str:
    """Return the measurement and the layouts as JSON."""
    about = {name: value for name, value in answer.items() if name != "memory"}
    about |= {"limit": limit, "workers": [asdict(layout) for layout in layouts], "strategies": _strategies(answer)}
    return json.dumps(about, indent=2, ensure_ascii=False)


def _strategies(answer: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of a worker between backward passes and steps, by strategy; none with offloading or on a GPU."""
    from quorate.sharding.memory import VECTORS, Model, held_between_replicas

    if answer["device"] != "cpu" or answer.get("offload"):
        return {}
    model = Model.from_json(answer["memory"])
    return {strategy: held_between_replicas(model, strategy) for strategy in VECTORS}


def in_words(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> Iterator[str]:
    """Yield the model, a table of the layouts, and what it means; columns without bytes are left out."""
    sizes = answer["memory"]["sizes"]
    numbers = sum(entry["numbers"] for entry in sizes)
    frozen = sum(entry["numbers"] for entry in sizes if not entry["is_trained"])
    still = f", {frozen:,} of them frozen" if frozen else ""
    used = f", used in {answer['precision']}" if answer["precision"] else ""
    most = sorted(answer["activations"].items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{name or 'in no block'} {bytes_in_words(size)}" for name, size in most[:_BLOCKS_SHOWN])
    more = f", and {len(most) - _BLOCKS_SHOWN} more" if len(most) > _BLOCKS_SHOWN else ""
    yield from paragraphs(
        f"{answer['model']}: {numbers:,} numbers{still}{used}, on {answer['device']}; {answer['optimizer']}",
        f"blocks: {answer['blocks']}",
        f"activations of one batch: {shown or 'none'}{more}",
        "",
    )
    shows = [kind for kind in _COLUMNS.values() if any(layout.held[kind] for layout in layouts)]
    host = ["host"] if any(layout.held["host"] for layout in layouts) else []
    kinds = [kind for kind, name in _COLUMNS.items() if name in shows]
    yield from table(
        ["ZeRO", "N", *kinds, "total", *host, "sent", *([] if limit is None else ["fits"])],
        [
            [str(layout.zero), str(layout.workers)]
            + [bytes_in_words(layout.held[name]) if layout.held[name] else "–" for name in shows]
            + [bytes_in_words(size) for size in (layout.total, *(layout.held[name] for name in host))]
            + [number_in_words(layout.numbers_sent), *([] if limit is None else ["yes" if layout.fits else "no"])]
            for layout in layouts
        ],
        terminal_width(),
        keys=2,
    )
    yield from paragraphs(
        "",
        "Bytes of each of N workers; sent: numbers in a step. Full parameters (gather) and gradients (exch) come and "
        "go; total is as if all were there at once, without libraries, single operations, messages, and what the "
        "strategy keeps.",
        *(["host: what is offloaded to its memory, or to files, for each worker."] if host else []),
    )
    if strategies := _strategies(answer):
        yield from paragraphs("", "Each of two replicas on one host holds, after a backward pass or a step:")
        yield from (f"  {strategy} {bytes_in_words(size)}" for strategy, size in strategies.items())
    if limit is not None:
        fitting = [layout for layout in layouts if layout.fits]
        first = min(fitting, key=lambda layout: (layout.workers, layout.zero), default=None)
        subject = "None of these" if first is None else "One worker alone"
        if first is not None and first.workers > 1:
            yield f"The first that fits into {bytes_in_words(limit)} is ZeRO {first.zero} over {first.workers} workers."
        else:
            yield f"{subject} fits into {bytes_in_words(limit)}."
