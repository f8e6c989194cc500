"""A check that all workers passed the same data to `loader`: each compares a sample with that of the first worker."""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.core.fields import Fields
from quorate.data.files.dataset import Files, OwnFiles, RemoteFiles

_ITEMS, _READS = 5, 3
"""Items that are read, and reads of each, so that augmentation with a generator of its own is noticed."""
_SECONDS = 1.0
"""Longest time of reading."""
_PATIENCE = 2.0
"""Seconds for which a worker waits for others to compare."""
_INTEGERS, _FLOATS = 4096, 64
"""Numbers of a tensor that are compared."""
_NEAR = 0.05
"""A share of the mean size: decoders and processors of several machines differ by less."""
_AGREED = Files | OwnFiles | RemoteFiles
"""Data on which the workers have agreed when it was made."""
_SAME = (
    "it distributes one dataset, with the same examples in the same order on every worker; split and shuffle it with "
    "the same seed on all of them. For data of its own on each worker use a DataLoader in place of quorate.loader, or "
    'quorate.files(..., read="own")'
)


@dataclass(frozen=True)
class Item:
    """The digest of an item: a checksum of exact parts, and numbers that may differ a little."""

    exact: int
    floats: tuple[tuple[float, ...], ...] = ()

    def is_like(self, other: Item) -> bool:
        """Return whether both may be the same item, read on two machines."""
        if self.exact != other.exact or [*map(len, self.floats)] != [*map(len, other.floats)]:
            return False
        return all(map(_are_near, self.floats, other.floats))


@dataclass(frozen=True, slots=True)
class Sample(Fields):
    """The data of a worker."""

    rank: int
    examples: int | None
    choices: Mapping[str, Any]  # open: arguments of `loader`, by name
    items: Mapping[str, Any]  # open: the fields of some `Item`s, by index


class NoItem(Exception):
    """Raised for an item with a value of a kind that is not compared."""


def check_same_data(wire: Wire, number: int, dataset: Any, **choices: object) -> Callable[[], None]:
    """Raise `ConfigurationError` if the first worker that made loader `number` has other data or other `choices`.

    No worker waits here: the first one writes its sample, the others compare. The returned function waits, for two
    seconds at most, until all have compared; call it before the first update. Workers that join later compare nothing.
    Cost: two messages to the board, and reading a few items three times, for at most a second.
    """
    if wire.size == 1 or wire.is_newcomer:
        return _wait_for_nobody
    examples = None if isinstance(dataset, OwnFiles) else len(dataset)
    items = {} if isinstance(dataset, _AGREED) else sample(dataset, wire.clock.now)
    return _check(wire, number, examples, items, choices)


def check_same_choices(wire: Wire, number: int, **choices: object) -> Callable[[], None]:
    """Check as `check_same_data`, for a stream, whose items are compared when they are read."""
    return _wait_for_nobody if wire.size == 1 or wire.is_newcomer else _check(wire, number, None, {}, choices)


def _check(
    wire: Wire, number: int, examples: int | None, items: Mapping[int, Item], choices: Mapping[str, object]
) -> Callable[[], None]:
    sampled = {str(index): [item.exact, item.floats] for index, item in items.items()}
    own_sample = Sample(wire.rank, examples, choices, sampled)
    key = f"data/{number}"
    if not wire.board.swap(key, None, own_sample.to_bytes()):
        first = wire.board.get(key)
        if first is not None:
            _compare(Sample.from_bytes(first), own_sample, items)
    wire.board.set(f"{key}/{wire.rank}", b"same")
    return partial(_wait, wire, key)


def _wait_for_nobody() -> None:
    """Do nothing, as nothing was compared."""


def _wait(wire: Wire, key: str) -> None:
    with suppress(WireTimeout):  # workers that take longer compare when they come
        wire.board.wait([f"{key}/{rank}" for rank in range(wire.size) if rank not in wire.dead], _PATIENCE)


def _compare(first: Sample, own_sample: Sample, items: Mapping[int, Item]) -> None:
    here, there, examples = f"on rank {own_sample.rank}", f"on rank {first.rank}", own_sample.examples
    for name, value in own_sample.choices.items():
        if value != first.choices.get(name):
            raise ConfigurationError(
                f"quorate.loader was given {name}={value!r} {here} and {name}={first.choices.get(name)!r} {there}; "
                "workers would distribute different epochs, so give it the same on every worker"
            )
    if examples != first.examples:
        raise ConfigurationError(
            f"quorate.loader was given {examples} examples {here} and {first.examples} {there}; {_SAME}"
        )
    for index, item in items.items():
        other = first.items.get(str(index))
        if other is not None and not item.is_like(Item(other[0], tuple(map(tuple, other[1])))):
            raise ConfigurationError(
                f"quorate.loader was given other data {here} than {there}: example {index} of {examples} differs; "
                + _SAME
            )


def sample(dataset: Any, now: Callable[[], float]) -> Mapping[int, Item]:
    """Return a few items of `dataset` by index: none where some cannot be compared, or differ when read again."""
    items: dict[int, Item] = {}
    begin = now()
    with _generators_put_back() as are_untouched:
        try:
            apart = _apart(dataset)
            for index in sorted({round(n * (len(dataset) - 1) / (_ITEMS - 1)) for n in range(_ITEMS)}):
                readings = set()
                for _ in range(_READS):
                    readings.add(item_of(_read(apart, index)))
                    if now() - begin > _SECONDS:
                        return items
                if len(readings) > 1 or not are_untouched():
                    return {}
                (items[index],) = readings
        except Exception:  # the dataset's own; the training loop meets it at its place
            return {}
    return items


def item_of(value: Any) -> Item:
    """Return the digest of tensors, arrays, numbers and texts, and of lists, tuples and dictionaries of these. Raises
    `NoItem`."""
    exact: list[bytes] = []
    floats: list[tuple[float, ...]] = []
    _look_at(value, exact, floats)
    return Item(zlib.crc32(b"\0".join(exact)), tuple(floats))


def _look_at(value: Any, exact: list[bytes], floats: list[tuple[float, ...]]) -> None:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        x = value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)
        exact.append(f"{x.dtype}{tuple(x.shape)}".encode())
        is_near = x.dtype == torch.uint8 or x.is_floating_point()
        picked = _picked(x, _FLOATS if is_near else _INTEGERS)
        if is_near:
            floats.append(tuple(float(f"{number:.5g}") for number in picked.double().tolist()))
        else:
            exact.append(str(picked.tolist()).encode())
    elif isinstance(value, float):
        exact.append(b"float")
        floats.append((value,))
    elif value is None or isinstance(value, bool | int | str | bytes | complex):
        exact.append(repr(value).encode())
    elif isinstance(value, list | tuple):
        exact.append(f"{type(value).__name__}{len(value)}".encode())
        for part in value[:_INTEGERS]:
            _look_at(part, exact, floats)
    elif isinstance(value, dict):
        exact.append(f"dict{len(value)}".encode())
        for key, part in value.items():
            exact.append(repr(key).encode() if isinstance(key, str | int) else b"")
            _look_at(part, exact, floats)
    else:
        raise NoItem(type(value).__name__)


def _picked(x: Tensor, most: int) -> Tensor:
    """Return at most `most` numbers, spread over `x`."""
    flat = x.reshape(-1)
    step = max(1, -(-flat.numel() // most))
    return flat[::step].cpu()


def _are_near(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    sizes = [abs(x) for x in (*ours, *theirs) if abs(x) < float("inf")]
    near = _NEAR * sum(sizes) / max(1, len(sizes))
    return all(x == y or abs(x - y) <= near or (x != x and y != y) for x, y in zip(ours, theirs, strict=True))


def _apart(dataset: Any) -> Any:
    """Return a shallow copy to read items from: it opens files lazily, and the original, which workers of a DataLoader
    may inherit, does not."""
    if isinstance(dataset, list | tuple | Tensor | np.ndarray):
        return dataset
    apart = copy.copy(dataset)
    inner = getattr(dataset, "__dict__", {})
    if "dataset" in inner:
        apart.dataset = _apart(dataset.dataset)
    if isinstance(inner.get("datasets"), list | tuple):
        apart.datasets = type(dataset.datasets)([_apart(part) for part in dataset.datasets])
    return apart


def _read(dataset: Any, index: int) -> Any:
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__([index])[0]
    return dataset[index]


def _words(state: Any) -> bytes:
    return b" ".join(
        value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in _flat(state)
    )


def _flat(state: Any) -> Iterator[Any]:
    if isinstance(state, dict):
        for value in state.values():
            yield from _flat(value)
    else:
        yield state


@contextmanager
def _generators_put_back() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether nothing was drawn inside so far."""
    numpy_words = _words(np.random.get_state(legacy=False))
    states = torch.get_rng_state(), np.random.get_state(legacy=False), random.getstate()
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def are_untouched() -> bool:
        return (
            torch.equal(torch.get_rng_state(), states[0])
            and _words(np.random.get_state(legacy=False)) == numpy_words
            and random.getstate() == states[2]
        )

    try:
        yield are_untouched
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)
