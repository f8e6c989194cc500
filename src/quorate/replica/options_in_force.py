"""The options in force in a step of an optimizer that several workers share, and those that its own steps write.

Optimizers of other packages keep counts, estimates and flags in their parameter groups, and some lower their learning
rate in `step`. An option that a step was seen to write belongs to the optimizer from then on. Its value after the
newest step is in force in the next one, on every worker. It travels only after the script has written it between two
steps. All other options are the script's: those of the round are in force during the step, and the worker's own come
back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from quorate.replica.plain_step import number_of, options_of

Options = list[dict[str, Any]]
"""For each parameter group the options by name, as JSON."""

WRITES = " writes"
"""Suffix of the name of an own option, for the number of times the script had written it."""


class OptionsInForce:
    """The options of one optimizer whose steps several workers have in common.

    All workers make the same steps, so the same options are written on all. Cost: two comparisons per option and step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.moved = 0
        """The number of steps of schedulers: options that they write are the script's, also inside a step."""
        self._left: Options = []
        """The optimizer's own options after the newest step."""
        self._others: list[set[str]] = []
        """Own options that are not numbers."""
        self._received: Options = []
        """The newest value of each option in contributions."""
        self._edits: Options = []
        """The values that the script has written over own options since the newest step."""
        self._writes: dict[tuple[int, str], int] = {}
        self._groups: Options = []
        """The parameter groups at the newest step."""
        self._newest: tuple[list[tuple[Any, ...]], Options] | None = None
        """The values of all groups at the newest call of `to_give`, and its result, if only these determine it."""

    def to_give(self) -> Options:
        """Return the options for a contribution; the same object as before where the groups have not changed."""
        self._extend()
        values = [tuple(group.values()) for group in self._optimizer.param_groups]
        if self._newest is not None and not any(self._left) and _are_identical(values, self._newest[0]):
            return self._newest[1]
        groups = self._options_to_give()
        self._newest = (values, groups) if not any(self._left) and all(map(_is_plain, values)) else None
        return groups

    def _options_to_give(self) -> Options:
        groups = options_of(self._optimizer)
        for place, (options, own) in enumerate(zip(groups, self._left, strict=True)):
            for key in own.keys() & options.keys():
                value, edits = options.pop(key), self._edits[place]
                if _is_same(value, own[key]):
                    continue
                if key not in edits or not _is_same(edits[key], value):
                    edits[key], self._writes[place, key] = value, self._writes.get((place, key), 0) + 1
                options |= {key: value, key + WRITES: self._writes[place, key]}
        return groups

    def complete(self, options: Sequence[dict[str, Any]]) -> Options:
        """Return the options of a round and the optimizer's own; call it once for each step."""
        self._extend()
        groups = []
        for place, received in enumerate(options[: len(self._left)]):  # groups may have been added since
            before, own = self._received[place], self._left[place]
            stays = {key: x for key, x in own.items() if key not in received or not _is_written(key, received, before)}
            groups.append({key: x for key, x in received.items() if not key.endswith(WRITES)} | stays)
            before.update(received)
        return groups

    @contextmanager
    def in_force(self, complete: Options, changed: Options | None = None) -> Iterator[None]:
        """Put `complete` or, for this step, `changed` in force inside; restore what the step has not written."""
        forced, moved = complete if changed is None else changed, self.moved
        groups = self._optimizer.param_groups
        is_plain = not any(self._left) and _are_plain(groups)
        before = list(map(dict, groups)) if is_plain else [_marked(group, _before) for group in groups]
        put_options(groups, forced)
        is_plain = is_plain and _are_plain(groups)
        seen = list(map(dict, groups)) if is_plain else [_marked(group, _seen) for group in groups]
        try:
            yield
        finally:
            by_scheduler = self.moved != moved
            for place, group in enumerate(groups):
                put = forced[place] if place < len(forced) else {}
                if is_plain and _are_identical([tuple(group.values())], [tuple(seen[place].values())]):
                    for key in put:
                        if key in before[place]:
                            group[key] = before[place][key]
                    continue
                marks = (before[place], seen[place])
                if is_plain:
                    marks = _marked(before[place], _before), _marked(seen[place], _seen)
                base = complete[place] if place < len(complete) else {}
                self._take_over(place, group, *marks, (base, put), by_scheduler=by_scheduler)
                self._edits[place].clear()

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
        """Keep the options that the step has written into one group, and restore the others."""
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
        """Return the own options and the received ones, as JSON; the values of other options are in the groups."""
        self._extend()
        return {
            "left": [dict(group) for group in self._left],
            "others": [sorted(names) for names in self._others],
            "told": [dict(group) for group in self._received],
        }

    def go_on(self, kept: dict[str, Any]) -> None:
        """Continue from the return value of `kept`."""
        self._left, self._received = ([dict(group) for group in kept[name]] for name in ("left", "told"))
        self._others, self._edits, self._writes = [set(names) for names in kept["others"]], [], {}
        for place, received in enumerate(self._received):
            self._writes |= {(place, key[: -len(WRITES)]): x for key, x in received.items() if key.endswith(WRITES)}
        self._extend()
        put_options(self._optimizer.param_groups, self._left)

    @property
    def are_some_own(self) -> bool:
        """Whether steps have written options."""
        return any(self._left) or any(self._others)

    @property
    def left(self) -> Options:
        """The optimizer's own options after the newest step, as far as JSON represents them."""
        self._extend()
        groups = self._optimizer.param_groups
        return [
            own | {key: group[key] for key in others if group.get(key) is None or isinstance(group[key], str)}
            for own, others, group in zip(self._left, self._others, groups, strict=True)
        ]

    def _extend(self) -> None:
        """Make room for parameter groups that were added, and forget those that were removed."""
        groups, count = self._optimizer.param_groups, len(self._optimizer.param_groups)
        if count < len(self._groups):
            self._forget([place for place, group in enumerate(self._groups) if not _is_in(group, groups)])
        self._groups = list(groups)
        if len(self._received) == len(self._left) == len(self._edits) == len(self._others) == count:
            return
        for _ in range(count - len(self._received)):
            self._received.append({})
        for groups in (self._left, self._edits):
            groups += [{} for _ in range(len(self._received) - len(groups))]
        self._others += [set() for _ in range(len(self._received) - len(self._others))]

    def _forget(self, removed: Sequence[int]) -> None:
        """Forget the options of the parameter groups at these places."""
        for options in (self._received, self._left, self._edits, self._others):
            for place in reversed(removed):
                del options[place : place + 1]
        kept = [place for place in range(len(self._groups)) if place not in removed]
        place_of = {before: place for place, before in enumerate(kept)}
        writes = self._writes.items()
        self._writes = {(place_of[place], key): count for (place, key), count in writes if place in place_of}
        self._newest = None

    @contextmanager
    def with_removed_groups(self) -> Iterator[None]:
        """Put the parameter groups that the script has removed since the newest step back inside.

        Steps that are made there are of gradients from before.
        """
        groups = self._optimizer.param_groups
        removed = [group for group in self._groups if not _is_in(group, groups)]
        now = list(groups)
        if removed:
            groups[:] = self._groups + [group for group in now if not _is_in(group, self._groups)]
        try:
            yield
        finally:
            if removed:
                groups[:] = now


def _is_in(group: dict[str, Any], groups: Iterable[dict[str, Any]]) -> bool:
    """Return whether this parameter group is one of `groups`, which may have been loaded since."""
    return any(group is other or group["params"] is other["params"] for other in groups)


def own_options_in(kept: dict[str, Any]) -> list[set[str]]:
    """Return the names of own options in a return value of `OptionsInForce.kept`, by group."""
    return [set(left) | set(others) for left, others in zip(kept["left"], kept["others"], strict=True)]


def put_options(groups: Sequence[dict[str, Any]], options: Sequence[dict[str, Any]]) -> None:
    """Set the options of these parameter groups."""
    for group, numbers in zip(groups, options, strict=False):
        for key, number in numbers.items():
            is_as_it_is = key not in group or (type(number) in _PLAIN and not isinstance(group[key], Tensor))
            group[key] = number if is_as_it_is else _like(group[key], number)


def _like(value: Any, number: Any) -> Any:
    """Return `number` in the type of the option `value`."""
    if isinstance(value, Tensor) and isinstance(number, int | float):
        return value.fill_(number)
    if isinstance(number, list):
        return type(value)(number) if isinstance(value, list | tuple) else list(number)
    return number


_PLAIN = {int, float, bool, str, tuple, type(None)}
"""Types of options that a step cannot write in place."""
_PLAIN_OR_PARAMETERS = _PLAIN | {list}


def _is_plain(values: Iterable[Any]) -> bool:
    """Return whether all values of a group but its parameters are of a plain type, so that identity tells a change."""
    types = list(map(type, values))
    return types.count(list) == 1 and _PLAIN_OR_PARAMETERS.issuperset(types)


def _are_plain(groups: Iterable[dict[str, Any]]) -> bool:
    return all(map(_is_plain, map(dict.values, groups)))


def _are_identical(values: Sequence[tuple[Any, ...]], others: Sequence[tuple[Any, ...]]) -> bool:
    if len(values) != len(others):
        return False
    for group, other in zip(values, others, strict=True):
        if len(group) != len(other) or not all(map(is_, group, other)):
            return False
    return True


def _marked(group: dict[str, Any], mark: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the marks of the values of a group, without parameters."""
    return {key: mark(x) for key, x in group.items() if key != "params"}


def _before(value: Any) -> Any:
    """Return an option with its number, if it is a tensor, which steps may write in place."""
    return (value, number_of(value)) if isinstance(value, Tensor) else (value, None)


def _restored(value: Any, before: tuple[Any, Any]) -> Any:
    old, number = before
    return old.fill_(number) if isinstance(old, Tensor) and number is not None else old


def _seen(value: Any) -> tuple[Any, Any]:
    """Return an option before a step, with its version or its number."""
    return value, value._version if isinstance(value, Tensor) else number_of(value)


def _is_unwritten(value: Any, seen: tuple[Any, Any]) -> bool:
    """Return whether the step has left an option as it was."""
    old, mark = seen
    if isinstance(value, Tensor):
        return value is old and bool(value._version == mark)
    number = number_of(value)
    return value is old if number is None else _is_same(number, mark)


def _unchanged(number: Any, base: dict[str, Any], forced: dict[str, Any], key: str) -> Any:
    """Return the value of an option after a step, without the change for this step alone."""
    was, put = base.get(key), forced.get(key)
    if _is_same(was, put) or not all(type(x) in (int, float) for x in (number, was, put)) or not put:
        return number
    return was * (number / put)


def _is_written(key: str, received: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether contributions carry a new value of an own option."""
    writes = received.get(key + WRITES)
    if writes is None:
        return before.get(key + WRITES) is None and not _is_same(received[key], before.get(key))
    return not (_is_same(received[key], before.get(key)) and writes == before.get(key + WRITES))


def _is_same(some: Any, other: Any) -> bool:
    is_nan = all(isinstance(x, float) and math.isnan(x) for x in (some, other))
    return is_nan or bool(type(some) is type(other) and some == other)


class OptionsByPlace:
    """The options of an optimizer for each place in the training, in synchronous steps.

    A scheduler is stepped as often as the training has made steps (`train.schedules`), so its options are for the place
    of the worker's replica. A script that writes other numbers before every step of its own means that step. If this
    worker has made more steps than the training, the options of its step of the same number count.
    """

    def __init__(self) -> None:
        self._last: list[dict[str, Any]] | None = None
        self._moved = self._in_a_row = 0
        self._by_step: dict[int, list[dict[str, Any]]] = {}

    @property
    def is_by_hand(self) -> bool:
        """Whether the script writes the options before every step."""
        return self._in_a_row > 1

    def of(
        self, options: list[dict[str, Any]], step: int, progress: float, moved: int
    ) -> tuple[list[dict[str, Any]], float]:
        """Return the options for the contribution of this worker's `step` (from 1), and the place that they mean.

        `options` are those in force; `moved` counts the steps of schedulers.
        """
        is_written = self._last is not None and options != self._last and moved == self._moved
        if options != self._last:
            self._in_a_row = self._in_a_row + 1 if is_written else 0
        self._last, self._moved = options, moved
        self._by_step[step] = options
        for old in [past for past in self._by_step if past <= int(progress)]:
            del self._by_step[old]
        if not self.is_by_hand:
            return options, progress
        place = min(step - 1, int(progress))
        return self._by_step.get(place + 1, options), float(place)
