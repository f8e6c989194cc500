"""`quorate doctor --memory`: what a worker of a script will hold, for ZeRO 0 to 3 over so many shards."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
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
    fits: bool | None  # None without a limit


def lines(answer: Mapping[str, Any], shards: int | None, limit: int | None, offload: str | None) -> Iterator[Line]:
    """Yield ZeRO 0, and 1 to 3 over `shards` or the usual numbers; `offload` None: as in the script."""
    from quorate.sharding.memory import MODES, Model, by_formula, held, numbers_sent

    model, offloaded = Model.from_json(answer["memory"]), offload_of(offload or answer.get("offload"))
    numbers = USUAL_SHARDS if shards is None else (shards,)
    for count, zero in product((1, *(number for number in numbers if number > 1)), MODES):
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
    """Return the bytes of a worker at most, by strategy; none with offloading or on a GPU."""
    from quorate.sharding.memory import VECTORS, Model, held_between_replicas

    if answer["device"] != "cpu" or answer.get("offload"):
        return {}
    model = Model.from_json(answer["memory"])
    return {strategy: held_between_replicas(model, strategy) for strategy in VECTORS}


def in_words(answer: Mapping[str, Any], layouts: Sequence[Line], limit: int | None) -> Iterator[str]:
    """Yield the model, a table of the layouts, and what it means; columns without bytes are left out."""
    sizes = answer["memory"]["sizes"]
    numbers, frozen = (sum(x["numbers"] for x in sizes if all_of or not x["is_trained"]) for all_of in (True, False))
    frozen_too = f", {frozen:,} of them frozen" if frozen else ""
    used = f", used in {answer['precision']}" if answer["precision"] else ""
    most = sorted(answer["activations"].items(), key=lambda entry: -entry[1])
    shown = ", ".join(f"{name or 'in no block'} {bytes_in_words(size)}" for name, size in most[:_BLOCKS_SHOWN])
    more = f", and {len(most) - _BLOCKS_SHOWN} more" if len(most) > _BLOCKS_SHOWN else ""
    yield from paragraphs(
        f"{answer['model']}: {numbers:,} numbers{frozen_too}{used}, on {answer['device']}; {answer['optimizer']}",
        f"blocks: {answer['blocks']}",
        f"activations of one batch: {shown or 'none'}{more}",
        "",
    )
    columns = {head: [layout.held[kind] for layout in layouts] for head, kind in _COLUMNS.items()}
    columns |= {"total": [layout.total for layout in layouts], "host": [layout.held["host"] for layout in layouts]}
    texts = {"ZeRO": [str(layout.zero) for layout in layouts], "N": [str(layout.workers) for layout in layouts]}
    for head, column in columns.items():
        if any(column):
            texts[head] = [bytes_in_words(size) if size else "–" for size in column]
    texts["sent"] = [number_in_words(layout.numbers_sent) for layout in layouts]
    if limit is not None:
        texts["fits"] = ["yes" if layout.fits else "no" for layout in layouts]
    yield from table(list(texts), list(zip(*texts.values(), strict=True)), terminal_width(), keys=2)
    yield from paragraphs(
        "",
        "Bytes of each of N workers; sent: numbers in a step. Full parameters (gather) and gradients (exch) come and "
        "go; total is as if all were there at once, without libraries, single operations, messages, and what the "
        "strategy keeps.",
        *(["host: what is offloaded to its memory, or to files, for each worker."] if "host" in texts else []),
    )
    if strategies := _strategies(answer):
        yield from paragraphs("", "Each of two replicas on one host holds at most, where no worker is late:")
        names = defaultdict(list)
        for strategy, size in sorted(strategies.items(), key=lambda entry: entry[1]):
            names[bytes_in_words(size)].append(strategy)
        yield from paragraphs(*(f"{words}: {', '.join(sorted(same))}" for words, same in names.items()))
    if limit is not None:
        first = min((layout for layout in layouts if layout.fits), key=lambda x: (x.workers, x.zero), default=None)
        room = f"fits into {bytes_in_words(limit)}"
        if first is not None and first.workers > 1:
            yield f"The first that {room} is ZeRO {first.zero} over {first.workers} workers."
        else:
            yield f"{'None of these' if first is None else 'One worker alone'} {room}."
