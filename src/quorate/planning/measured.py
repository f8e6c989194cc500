"""A planner's model from the measurements of a script by `planning.timing`.

Unmeasured quantities are assumed. The two parts of a block's backward pass take equally long. A block sums twice its
output over a tensor axis, as a transformer's attention and perceptron do. Its activations are divided there as its
numbers are, except for 10 of 34 parts (Korthikanti et al. 2022, section 4). Parameters in no block belong to the first
block if they come before its own, and else to the last; their seconds belong to the last.

Additional seconds of two workers in shards belong to gathers and to the reduction, and grow with the numbers. The
seconds of two workers on a tensor axis determine which part of a pass is divided: of w + c seconds for an example two
take w + c / 2. Both are without the seconds in which they wait for an exchange. For workers that share cores both are
given again in seconds of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.planning.model import Block, Model

TIMED_STEPS = 6
"""Steps of a script that are looked at: one for memory, one more to warm up, and the timed ones."""
MOST_TIMED_STEPS = 500
"""A script that prints a line in each step is not to fill the screen."""
TIMED_SECONDS = 5.0
"""For which steps are timed where a script makes more: what a machine does besides changes from second to second."""

_DIVIDED = 24 / 34
_WORDS = 60


def model_from(measurements: Mapping[str, Any], batch: int | None, workers: int) -> Model:
    """Return the model; `batch` None: as many examples for each worker as the script has alone."""
    times, sizes = measurements["times"], measurements["memory"]["sizes"]
    examples = max(1, times["examples"])
    numbers = sum(size["numbers"] for size in sizes)
    names = list(times["blocks"]) or [""]
    cut: Mapping[str, int] = next(
        (
            blocks_cut
            for blocks_cut in measurements["cuts"].values()
            if not isinstance(blocks_cut, str) and any(blocks_cut.values())
        ),
        {},
    )
    before, behind = _of_no_block(sizes)
    fixed = times["fixed"]
    alone = [sum(seconds[index] for seconds in times["blocks"].values()) + times["rest"][index] for index in (0, 1)]
    spread = times.get("spread", ())
    pieces = times.get("pieces", {})
    shares, there = _divided(pieces["tensor"], alone, fixed) if "tensor" in pieces else (None, None)
    blocks = []
    for place, name in enumerate(names):
        forward, backward = times["blocks"].get(name, (0.0, 0.0))
        numbers_here = sum(size["numbers"] for size in sizes if name and size["block"] == name)
        numbers_here += before if place == 0 else 0
        saved = measurements["activations"].get(name, 0) if name else 0
        if place == len(names) - 1:
            numbers_here += behind
            forward, backward = forward + times["rest"][0], backward + times["rest"][1]
            saved += measurements["activations"].get("", 0)
        divided = cut.get(name, 0) + (cut.get("", 0) if name == names[-1] and behind else 0)
        share = min(1.0, divided / numbers_here) if numbers_here else 0.0
        handed = times["outputs"].get(name, 0) / examples
        blocks.append(
            Block(
                name=name or "all of it",
                forward=forward * (1 - fixed[0]) / examples,
                backward=backward * (1 - fixed[1]) / 2 / examples,
                weight=backward * (1 - fixed[1]) / 2 / examples,
                fixed=(forward * fixed[0], backward * fixed[1]),
                numbers=numbers_here,
                saved=saved / examples,
                output=handed,
                sums=2 * handed,
                cut=share,
                seconds_cut=shares,
                fixed_cut=there and (there[0] * forward / alone[0], there[1] * backward / alone[1]),
                saved_cut=_DIVIDED * share,
            )
        )
    bytes_each, gathered_each = (
        sum(size[quantity] for size in sizes) / numbers for quantity in ("bytes", "gathered_bytes")
    )
    copied = times.get("copied", 0.0)
    around = (2 * copied * gathered_each * numbers, 2 * copied * bytes_each * numbers)
    if "shards" in pieces:
        around = _around_exchanges(pieces["shards"], alone, times["outside"])
    by_processor = None
    if measurements.get("device", "cpu") == "cpu" and any(measured.get("processor") for measured in pieces.values()):
        of_processor = {axis: {**measured, **_scaled(measured, times)} for axis, measured in pieces.items()}
        by_processor = model_from({**measurements, "times": {**times, "pieces": of_processor}}, batch, workers)
    return Model(
        name=measurements["model"],
        blocks=blocks,
        batch=batch or examples * workers,
        bytes_each=bytes_each,
        gathered_each=gathered_each,
        kept_each=sum(size["kept_like"] for size in sizes) / numbers,
        update=times["update"] / numbers,
        outside=times["outside"],
        crowding=times.get("crowding", 1.0),
        by_processor=by_processor,
        spread=spread,
        gathering=around[0] / numbers,
        reducing=around[1] / numbers,
        refused={int(count): _short(why) for count, why in measurements["cuts"].items() if isinstance(why, str)},
        known_tensors=(1, *(int(count) for count, why in measurements["cuts"].items() if not isinstance(why, str))),
        can_be_cut=bool(cut),
    )


def _scaled(measured: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the seconds of the processor as seconds of a worker that does not wait, without the original ones."""
    seconds = {name: x / times.get("processor", 1.0) for name, x in measured.get("processor", {}).items()}
    return {**seconds, "processor": {}}


def _around_exchanges(in_shards: Mapping[str, Any], alone: Sequence[float], outside: float) -> tuple[float, float]:
    """Return a worker's seconds around a gather and around a reduction of all numbers, from two in shards (ZeRO 3)."""
    gather = max(0.0, in_shards["outside"] + in_shards["model"] - outside - alone[0])
    behind = max(0.0, in_shards["backward"] - alone[1])
    return gather, max(0.0, behind - gather)


def _divided(
    cut: Mapping[str, Any], alone: Sequence[float], fixed: Sequence[float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the divided share of the seconds for examples, and the fixed seconds, of a forward and of a backward pass.

    They are from two workers of a tensor axis.
    """
    shares, seconds = [], []
    for own_seconds, its_fixed, two, their_fixed in zip(
        alone, fixed, (cut["model"], cut["backward"]), cut["fixed"], strict=True
    ):
        each, there = own_seconds * (1 - its_fixed), two * (1 - their_fixed)
        whole = min(max(2 * there - each, 0.0), each)
        shares.append(1 - whole / each if each else 0.0)
        seconds.append(two * their_fixed + max(0.0, there - each))
    return (shares[0], shares[1]), (seconds[0], seconds[1])


def _of_no_block(sizes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many numbers in no block come before the first block, and how many after it."""
    first = next((place for place, size in enumerate(sizes) if size["block"]), len(sizes))
    before = sum(size["numbers"] for size in sizes[:first])
    return before, sum(size["numbers"] for size in sizes[first:] if not size["block"])


def _short(why: str) -> str:
    return why.split(";")[0] if len(why) > _WORDS else why
