"""The options in force in a step of an optimizer that several workers share, and those that its own steps write.

Optimizers of other packages keep counts, estimates and flags in their parameter groups, and some lower their learning
rate in `step`. An option that a step was seen to write is the optimizer's own from then on: what the newest step has
left is in force in the next one, on every worker. It travels only after the script has written it between two steps.
All other options are the script's: those of the round are in force during the step, and the worker's own come back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.replica.plain_step import number_of, options_of

Options = list[dict[str, Any]]
"""Of each parameter group, by name, as JSON."""

WRITES = " writes"
"""Behind the name of an own option: how often the script had written it."""


class OptionsInForce:
    """The options of one optimizer whose steps several workers have in common.

    All workers make the same steps, so they find the same options to be the optimizer's own. Cost: a look at each
    option of each parameter group before and after a step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.moved = 0
        """The number of steps of schedulers: what they write is the script's, also inside a step."""
        self._left: Options = []
        """What the newest step has left of the optimizer's own options."""
        self._others: list[set[str]] = []
        """Own options that are no numbers."""
        self._told: Options = []
        """What contributions have said last of each option."""
        self._given: Options = []
        """What the script has written over own options since the newest step, as it was given."""
        self._writes: dict[tuple[int, str], int] = {}

    def to_give(self) -> Options:
        """The options that go with a contribution."""
        self._extend()
        found = options_of(self._optimizer)
        for place, (options, own) in enumerate(zip(found, self._left, strict=True)):
            for key in own.keys() & options.keys():
                value, given = options.pop(key), self._given[place]
                if _is_same(value, own[key]):
                    continue
                if key not in given or not _is_same(given[key], value):
                    given[key], self._writes[place, key] = value, self._writes.get((place, key), 0) + 1
                options |= {key: value, key + WRITES: self._writes[place, key]}
        return found

    def complete(self, options: Sequence[dict[str, Any]]) -> Options:
        """The options of a round and the optimizer's own; call it once for each step."""
        self._extend()
        found = []
        for place, told in enumerate(options[: len(self._left)]):  # the last groups may have come since
            known, own = self._told[place], self._left[place]
            stays = {key: x for key, x in own.items() if key not in told or not _is_written(key, told, known)}
            found.append({key: x for key, x in told.items() if not key.endswith(WRITES)} | stays)
            known.update(told)
        return found

    @contextmanager
    def in_force(self, complete: Options, changed: Options | None = None) -> Iterator[None]:
        """Inside, these options are in force, as `changed` for this step: a rate that is multiplied, a momentum of 0.

        What the step writes stays. Other options are again what they were.
        """
        forced, moved = complete if changed is None else changed, self.moved
        groups = self._optimizer.param_groups
        before = [{key: _before(x) for key, x in group.items() if key != "params"} for group in groups]
        put_options(groups, forced)
        seen = [{key: _seen(x) for key, x in group.items() if key != "params"} for group in groups]
        try:
            yield
        finally:
            by_scheduler = self.moved != moved
            for place, group in enumerate(groups):
                base = complete[place] if place < len(complete) else {}
                there = forced[place] if place < len(forced) else {}
                self._take_over(place, group, before[place], seen[place], (base, there), by_scheduler=by_scheduler)
                self._given[place].clear()

    def _take_over(
        self,
        place: int,
        group: dict[str, Any],
        before: dict[str, Any],
        seen: dict[str, Any],
        options: tuple[dict[str, Any], dict[str, Any]],
        *,
        by_scheduler: bool,
    ) -> None:
        """Keep what the step has written into one group, and let the rest be what it was."""
        own, others, (base, forced) = self._left[place], self._others[place], options
        for key, value in list(group.items()):
            if key == "params":
                continue
            is_written = key not in seen or not _is_unwritten(value, seen[key])
            number = number_of(value) if is_written or key in own else None
            if is_written and not by_scheduler and number is None:
                others.add(key)
            elif (is_written and not by_scheduler) or key in own:
                left = base[key] if not is_written and key in base else _unchanged(number, base, forced, key)
                own[key] = left
                if not _is_same(left, number):
                    group[key] = _like(value, left)
            elif not is_written and key in forced and key in before:
                group[key] = _restored(value, before[key])

    # -- copies of a replica, checkpoints, servers

    def kept(self) -> dict[str, Any]:
        """The own options and what has been told, as JSON; the values of other options are in the groups."""
        self._extend()
        return {
            "left": [dict(group) for group in self._left],
            "others": [sorted(some) for some in self._others],
            "told": [dict(group) for group in self._told],
        }

    def go_on(self, kept: dict[str, Any]) -> None:
        """Be where `kept` was given."""
        self._left, self._told = ([dict(group) for group in kept[name]] for name in ("left", "told"))
        self._others, self._given, self._writes = [set(some) for some in kept["others"]], [], {}
        for place, told in enumerate(self._told):
            self._writes |= {(place, key[: -len(WRITES)]): x for key, x in told.items() if key.endswith(WRITES)}
        self._extend()
        put_options(self._optimizer.param_groups, self._left)

    @property
    def are_some_own(self) -> bool:
        """Whether steps have written options."""
        return any(self._left) or any(self._others)

    @property
    def left(self) -> Options:
        """What the newest step has left of the optimizer's own options, as far as JSON has it."""
        self._extend()
        groups = self._optimizer.param_groups
        return [
            own | {key: group[key] for key in others if group.get(key) is None or isinstance(group[key], str)}
            for own, others, group in zip(self._left, self._others, groups, strict=True)
        ]

    def _extend(self) -> None:
        """Groups may have been added."""
        for _ in range(len(self._optimizer.param_groups) - len(self._told)):
            self._told.append({})
        for some in (self._left, self._given):
            some += [{} for _ in range(len(self._told) - len(some))]
        self._others += [set() for _ in range(len(self._told) - len(self._others))]


def own_options_in(kept: dict[str, Any]) -> list[set[str]]:
    """The names of the optimizer's own options in what `OptionsInForce.kept` gave, by group."""
    return [set(left) | set(others) for left, others in zip(kept["left"], kept["others"], strict=True)]


def put_options(groups: Sequence[dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
    """Let `options` be those of these parameter groups."""
    for group, numbers in zip(groups, options, strict=False):
        for key, number in numbers.items():
            if key not in group:
                group[key] = number
            else:
                group[key] = _like(group[key], number)


def _like(value: Any, number: Any) -> Any:
    """`number` as an option that is `value` now."""
    if isinstance(value, Tensor) and isinstance(number, int | float):
        return value.fill_(number)
    if isinstance(number, list):
        return type(value)(number) if isinstance(value, list | tuple) else list(number)
    return number


def _before(value: Any) -> Any:
    """An option with its number, where it is a tensor, which steps may write in place."""
    return (value, number_of(value)) if isinstance(value, Tensor) else (value, None)


def _restored(value: Any, before: tuple[Any, Any]) -> Any:
    old, number = before
    return old.fill_(number) if isinstance(old, Tensor) and number is not None else old


def _seen(value: Any) -> tuple[Any, Any]:
    """An option as a step finds it: itself, and its version or its number."""
    return value, value._version if isinstance(value, Tensor) else number_of(value)


def _is_unwritten(value: Any, seen: tuple[Any, Any]) -> bool:
    """Whether an option is what the step has found."""
    old, mark = seen
    if isinstance(value, Tensor):
        return value is old and bool(value._version == mark)
    number = number_of(value)
    return value is old if number is None else _is_same(number, mark)


def _unchanged(number: Any, base: dict[str, Any], forced: dict[str, Any], key: str) -> Any:
    """What a step has left of an option, without what was changed for this step alone."""
    was, put = base.get(key), forced.get(key)
    if _is_same(was, put) or not all(type(x) in (int, float) for x in (number, was, put)) or not put:
        return number
    return was * (number / put)


def _is_written(key: str, told: dict[str, Any], known: dict[str, Any]) -> bool:
    """Whether contributions tell of an own option what they have not told before."""
    writes = told.get(key + WRITES)
    if writes is None:
        return known.get(key + WRITES) is None and not _is_same(told[key], known.get(key))
    return not (_is_same(told[key], known.get(key)) and writes == known.get(key + WRITES))


def _is_same(some: Any, other: Any) -> bool:
    is_nan = all(isinstance(x, float) and math.isnan(x) for x in (some, other))
    return is_nan or bool(type(some) is type(other) and some == other)
