"""The cases that are run of laws with many: see `make test`, `make test CASES=all` and `make soak`.

The choice follows from the names of laws and cases alone, so that it is the same in every run.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

T = TypeVar("T")


ROOM = Path(__file__).parents[2] / "src" / "quorate" / "strategies" / "presets"


class Few(Protocol):
    """The fixture `few`."""

    def __call__(self, cases: Sequence[T]) -> list[T]: ...


PRESETS = {path.stem.replace("_", "-") for path in ROOM.glob("[a-z]*.py")}
"""Strategies that are another one with settings: a law of their own says so, and where one case of each law is run
(`--cases one`) it is of another strategy, and needs no hosts of its own."""
STEPS = {"one": 1_000_000, "fifth": 5, "third": 3}
"""`--cases`: of a law with several cases one of so many is run."""


def without_repetition(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into all cases, and those whose branches others of their law take; `make soak` runs these, too.

    A law over all strategies takes every third preset: laws beside each other take other ones. Of a law over the
    product of several `parametrize`, with more than eight cases, each value is in two.
    """
    laws: dict[str, list[pytest.Item]] = {}
    for item in items:
        laws.setdefault(_law(item), []).append(item)
    run = {id(item) for law, cases in laws.items() for item in _of_a_product(_of_few_presets(law, cases))}
    return [item for item in items if id(item) in run], [item for item in items if id(item) not in run]


def _of_few_presets(law: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    others = PRESETS.difference(sorted(PRESETS)[_place(law, 3) :: 3])
    return [case for case in cases if not _is_over_all(case) or not _is_of_a_preset(case, others)] or cases


def _of_a_product(cases: list[pytest.Item]) -> list[pytest.Item]:
    axes = [mark.args[0] for mark in cases[0].iter_markers("parametrize")]
    if len(axes) < 2 or len(cases) <= 8:
        return cases
    names = [axis.replace(" ", "").split(",") if isinstance(axis, str) else axis for axis in axes]
    values = [[tuple(repr(_params(case).get(name)) for name in axis) for axis in names] for case in cases]
    first = covering([(*case, number) for number, case in enumerate(map(tuple, values))], ignored=1)
    chosen = {case[-1] for case in first}
    rest = [(*case, number) for number, case in enumerate(map(tuple, values)) if number not in chosen]
    chosen.update(case[-1] for case in covering(rest, ignored=1))
    return [case for number, case in enumerate(cases) if number in chosen]


def _place(law: str, count: int) -> int:
    return zlib.crc32(law.encode()) % count


def _params(item: pytest.Item) -> Mapping[str, object]:
    params: Mapping[str, object] = getattr(getattr(item, "callspec", None), "params", {})
    return params


def _is_over_all(item: pytest.Item) -> bool:
    names = getattr(sys.modules.get("tests.support.every_strategy"), "NAMES", None)
    return names is not None and getattr(getattr(item, "module", None), "NAMES", None) is names


def sampled(items: list[pytest.Item], step: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Split tests into those that are run, of each law one case and of laws with many every `step`-th, and the others.

    Laws beside each other begin at different cases, so that together they cover all strategies.
    """
    laws = [_law(item) for item in items]
    if step == STEPS["one"]:
        kept = items
        for is_aside in (_needs_hosts, _is_of_a_preset):
            usual = {_law(item) for item in kept if not is_aside(item)}
            kept = [item for item in kept if _law(item) not in usual or not is_aside(item)]
        run = sampled(kept, step - 1)[0]
        chosen = {id(item) for item in run}
        return run, [item for item in items if id(item) not in chosen]
    counts, places = Counter(laws), Counter[str]()
    run, others = list[pytest.Item](), list[pytest.Item]()
    for item, law in zip(items, laws, strict=True):
        spacing = min(step, counts[law])
        place, places[law] = places[law], places[law] + 1
        is_run = place % spacing == _place(law, spacing)
        (run if is_run else others).append(item)
    return run, others


def _law(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def _needs_hosts(item: pytest.Item) -> bool:
    return any(mark.name == "on_hosts" for mark in getattr(item, "own_markers", ()))


def _is_of_a_preset(item: pytest.Item, presets: Collection[str] = PRESETS) -> bool:
    return any(isinstance(value, str) and value in presets for value in _params(item).values())


def covering(cases: Sequence[tuple[Any, ...]], ignored: int = 0) -> list[tuple[Any, ...]]:
    """Return few cases, in their order, in which each value appears that appears at its position in any of them.

    The last `ignored` positions do not count.
    """
    keys = [[(place, repr(value)) for place, value in enumerate(case[: len(case) - ignored])] for case in cases]
    missing = {key for case_keys in keys for key in case_keys}
    uses, chosen = Counter[tuple[int, str]](), set[int]()
    while missing:
        best = min(
            (number for number in range(len(cases)) if not missing.isdisjoint(keys[number])),
            key=lambda number: (
                -len(missing.intersection(keys[number])),
                sum(uses[key] for key in keys[number]),
                number,
            ),
        )
        chosen.add(best)
        uses.update(keys[best])
        missing.difference_update(keys[best])
    return [cases[number] for number in sorted(chosen)]


def two_of(cases: Sequence[T], law: str) -> list[T]:
    """Return two of the cases that one test goes through, others for each law."""
    first, distance = zlib.crc32(law.encode()) % len(cases), (len(cases) + 1) // 2
    return [cases[place] for place in sorted({first, (first + distance) % len(cases)})]
