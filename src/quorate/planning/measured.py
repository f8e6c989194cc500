"""A model for a planner, of what `launch.warm.timing` has found of a script.

What is not measured is assumed: the two parts of a block's backward pass take equally long; a block sums twice what it
hands on over a tensor axis, as a transformer's attention and perceptron do; what it keeps is divided there as its
numbers are, but for 10 of 34 parts (Korthikanti et al. 2022, section 4). What is in no block lies and computes with the
first block where its parameters come before that one's, and else with the last; its seconds go to the last.

What two workers take more in shards than one alone belongs to gathers and to the reduction, and grows with the numbers.
What two take on a tensor axis says which part of a pass is divided: of w + c seconds for an example two take w + c / 2.
For workers that share cores both is said once more by seconds of the processor, in which those that wait are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.planning.model import Block, Model
from quorate.planning.waiting import slowest

_DIVIDED = 24 / 34
_WORDS = 60


def model_from(told: Mapping[str, Any], batch: int | None, workers: int) -> Model:
    """`batch` None: as many examples for each worker as the script has alone."""
    times, sizes = told["times"], told["memory"]["sizes"]
    examples = max(1, times["examples"])
    numbers = sum(one["numbers"] for one in sizes)
    names = list(times["blocks"]) or [""]
    cut: Mapping[str, int] = next(
        (of for of in told["cuts"].values() if not isinstance(of, str) and any(of.values())), {}
    )
    before, behind = _of_no_block(sizes)
    fixed = times["fixed"]
    alone = [sum(one[way] for one in times["blocks"].values()) + times["rest"][way] for way in (0, 1)]
    spread = times.get("spread", ())
    pieces = {axis: _without_waiting(found, spread) for axis, found in times.get("pieces", {}).items()}
    shares, there = _divided(pieces["tensor"], alone, fixed) if "tensor" in pieces else (None, None)
    blocks = []
    for place, name in enumerate(names):
        forward, backward = times["blocks"].get(name, (0.0, 0.0))
        mine = sum(one["numbers"] for one in sizes if name and one["block"] == name)
        mine += before if place == 0 else 0
        saved = told["activations"].get(name, 0) if name else 0
        if place == len(names) - 1:
            mine += behind
            forward, backward = forward + times["rest"][0], backward + times["rest"][1]
            saved += told["activations"].get("", 0)
        divided = cut.get(name, 0) + (cut.get("", 0) if name == names[-1] and behind else 0)
        share = min(1.0, divided / mine) if mine else 0.0
        handed = times["outputs"].get(name, 0) / examples
        blocks.append(
            Block(
                name=name or "all of it",
                forward=forward * (1 - fixed[0]) / examples,
                backward=backward * (1 - fixed[1]) / 2 / examples,
                weight=backward * (1 - fixed[1]) / 2 / examples,
                fixed=(forward * fixed[0], backward * fixed[1]),
                numbers=mine,
                saved=saved / examples,
                output=handed,
                sums=2 * handed,
                cut=share,
                seconds_cut=shares,
                fixed_cut=there and (there[0] * forward / alone[0], there[1] * backward / alone[1]),
                saved_cut=_DIVIDED * share,
            )
        )
    bytes_each, gathered_each = (sum(one[what] for one in sizes) / numbers for what in ("bytes", "gathered_bytes"))
    copied = times.get("copied", 0.0)
    around = (2 * copied * gathered_each * numbers, 2 * copied * bytes_each * numbers)
    if "shards" in pieces:
        around = _around_exchanges(pieces["shards"], alone, times["outside"])
    by_processor = None
    if told.get("device", "cpu") == "cpu" and any(found.get("processor") for found in pieces.values()):
        of_processor = {axis: {**found, **_scaled(found, times)} for axis, found in pieces.items()}
        by_processor = model_from({**told, "times": {**times, "pieces": of_processor}}, batch, workers)
    return Model(
        name=told["model"],
        blocks=blocks,
        batch=batch or examples * workers,
        bytes_each=bytes_each,
        gathered_each=gathered_each,
        kept_each=sum(one["kept_like"] for one in sizes) / numbers,
        update=times["update"] / numbers,
        outside=times["outside"],
        crowding=times.get("crowding", 1.0),
        by_processor=by_processor,
        spread=spread,
        gathering=around[0] / numbers,
        reducing=around[1] / numbers,
        refused={int(count): _short(why) for count, why in told["cuts"].items() if isinstance(why, str)},
        known_tensors=(1, *(int(count) for count, why in told["cuts"].items() if not isinstance(why, str))),
        can_be_cut=bool(cut),
    )


def _without_waiting(found: Mapping[str, Any], spread: Sequence[float]) -> dict[str, Any]:
    """Two workers' seconds but for those in which one has waited for a slower one: these are foreseen on their own."""
    times = slowest(spread, 2) if found.get("processor") else 1.0
    return {what: x / times if isinstance(x, float) else x for what, x in found.items()}


def _scaled(found: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Its seconds of the processor, as seconds of a worker that waits for nobody; they are found no more."""
    seconds = {what: x / times.get("processor", 1.0) for what, x in found.get("processor", {}).items()}
    return {**seconds, "processor": {}}


def _around_exchanges(in_shards: Mapping[str, Any], alone: Sequence[float], outside: float) -> tuple[float, float]:
    """Seconds of a worker around a gather and around a reduction of all numbers, of two in shards (ZeRO 3)."""
    gather = max(0.0, in_shards["outside"] + in_shards["model"] - outside - alone[0])
    behind = max(0.0, in_shards["backward"] - alone[1])
    return gather, max(0.0, behind - gather)


def _divided(
    cut: Mapping[str, Any], alone: Sequence[float], fixed: Sequence[float]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """By two workers of a tensor axis, of a forward and of a backward pass: the share of the seconds for examples that
    is divided, and the seconds that are fixed there."""
    shares, seconds = [], []
    for one, its_fixed, two, their_fixed in zip(
        alone, fixed, (cut["model"], cut["backward"]), cut["fixed"], strict=True
    ):
        each, there = one * (1 - its_fixed), two * (1 - their_fixed)
        whole = min(max(2 * there - each, 0.0), each)
        shares.append(1 - whole / each if each else 0.0)
        seconds.append(two * their_fixed + max(0.0, there - each))
    return (shares[0], shares[1]), (seconds[0], seconds[1])


def _of_no_block(sizes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Numbers that come before the first block, and other ones."""
    first = next((place for place, one in enumerate(sizes) if one["block"]), len(sizes))
    before = sum(one["numbers"] for one in sizes[:first])
    return before, sum(one["numbers"] for one in sizes[first:] if not one["block"])


def _short(why: str) -> str:
    return why.split(";")[0] if len(why) > _WORDS else why
