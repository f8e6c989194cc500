"""A model for a planner, of what `launch.warm.timing` has found of a script.

What is not measured is assumed: the two parts of a block's backward pass take equally long; a block sums twice what it
hands on over a tensor axis, as a transformer's attention and perceptron do; what it keeps is divided there as its
numbers are, but for 10 of 34 parts (Korthikanti et al. 2022, section 4). What is in no block lies and computes with the
first block where its parameters come before that one's, and else with the last; its seconds go to the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quorate.planning.model import Block, Model

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
                saved_cut=_DIVIDED * share,
            )
        )
    return Model(
        name=told["model"],
        blocks=blocks,
        batch=batch or examples * workers,
        bytes_each=sum(one["bytes"] for one in sizes) / numbers,
        gathered_each=sum(one["gathered_bytes"] for one in sizes) / numbers,
        kept_each=sum(one["kept_like"] for one in sizes) / numbers,
        update=times["update"] / numbers,
        outside=times["outside"],
        mapped=tuple(times.get("mapped", (1.0, 1.0))),
        copied=times.get("copied", 0.0),
        refused={int(count): _short(why) for count, why in told["cuts"].items() if isinstance(why, str)},
        known_tensors=(1, *(int(count) for count, why in told["cuts"].items() if not isinstance(why, str))),
        can_be_cut=bool(cut),
    )


def _of_no_block(sizes: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Numbers that come before the first block, and other ones."""
    first = next((place for place, one in enumerate(sizes) if one["block"]), len(sizes))
    before = sum(one["numbers"] for one in sizes[:first])
    return before, sum(one["numbers"] for one in sizes[first:] if not one["block"])


def _short(why: str) -> str:
    return why.split(";")[0] if len(why) > _WORDS else why
