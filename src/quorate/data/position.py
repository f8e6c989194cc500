"""What of an epoch has been consumed, and what is left of it for workers that may be others than before.

An epoch is dealt out to the workers of one run; where that run ends in the middle, what is left is dealt out to the
workers of the next. `Dealt` says how one of them did it and how far it came, so a list of them says what is left, at
any number of workers: each removes from the epoch's order the examples that were consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import BY_ROUND, CLIENTS, DYNAMIC, OWN, REPEATED, STATIC, Share, StaticShare

Spans = tuple[tuple[int, int], ...]
"""A set of whole numbers: sorted pairs (first, one behind the last)."""


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """All numbers in `spans`, which may be in any order and overlap."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return tuple(found)


def numbers_in(spans: Spans) -> Iterable[int]:
    """The numbers in `spans`, ascending."""
    return chain.from_iterable(range(*span) for span in spans)


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """How `size` workers shared an epoch (or what was left of it), and which of their batches were consumed.

    A static share has the numbers of each rank's own batches, by rank; a dynamic one those of all workers, in
    one entry. Numbers beyond the last batch are allowed and mean nothing.
    """

    share: str
    size: int
    batch_size: int
    drop_last: bool
    consumed: tuple[Spans, ...]

    def left(self, order: Tensor) -> Tensor:
        """What of `order` no worker has consumed, in the same order. An example that was padded in counts as itself."""
        examples = len(order)
        gone = torch.zeros(examples, dtype=torch.bool)
        for rank, spans in enumerate(self.consumed):
            mine = None if self.share == DYNAMIC else self._of(rank).places(examples)
            for begin, end in spans:
                places = slice(*(min(number * self.batch_size, examples) for number in (begin, end)))
                gone[places if mine is None else mine[places]] = True
        return order[~gone]

    def _of(self, rank: int) -> StaticShare:
        return StaticShare(rank=rank, size=self.size, drop_last=self.drop_last)


def left_of(order: Tensor, past: Iterable[Dealt]) -> Tensor:
    """What of an epoch's `order` is left after it was dealt out like that, one time after the other."""
    for dealt in past:
        order = dealt.left(order)
    return order


@dataclass(frozen=True, kw_only=True)
class Begun:
    """One worker's place in an epoch that was begun: what was dealt out before, and its own batches' numbers since."""

    past: tuple[Dealt, ...] = ()
    consumed: Spans = ()


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where one worker is in its data: everything that a loader's state says, checked."""

    rank: int
    size: int
    share: str
    batch_size: int
    drop_last: bool
    examples: int
    seed: int
    shuffle: bool
    trained: bool
    """Whether it has given batches to train on; what is only evaluated on is never left over."""
    epoch: int
    begun: dict[int, Begun]
    """By epoch. That of `epoch`: where it is begun; later ones: where they were, by workers that were ahead; the one
    before: where the share is dynamic, for workers that are not as far."""

    @classmethod
    def of(
        cls, share: Share, batch_size: int, examples: int, epoch: int, begun: dict[int, Begun], trained: bool
    ) -> Position:
        """That of the worker with `share`."""
        return cls(
            rank=share.rank,
            size=share.size,
            share=share.kind,
            batch_size=batch_size,
            drop_last=bool(share.drop_last),
            examples=examples,
            seed=int(share.seed),
            shuffle=bool(share.shuffle),
            trained=trained,
            epoch=int(epoch),
            begun=begun,
        )

    def told(self) -> dict[str, Any]:
        """As plain JSON values."""
        plain: dict[str, Any] = {**vars(self), "begun": {str(epoch): told(each) for epoch, each in self.begun.items()}}
        return plain

    @classmethod
    def read(cls, state: dict[str, Any]) -> Position:
        """The inverse of `told`. Raises `ConfigurationError` for anything else."""
        try:
            begun = {int(epoch): begun_from(each) for epoch, each in state["begun"].items()}
            plain = {name: _checked(name, state[name]) for name in cls.__dataclass_fields__ if name != "begun"}
            found = cls(**plain, begun=begun)
            found._check_bounds()
            return found
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"this is not the state of a loader from quorate.shard ({type(error).__name__}: {error})"
            ) from error

    def _check_bounds(self) -> None:
        """Raise `ValueError` for more batches than examples: what is read must not cost more than the data it is of."""
        own = [begun.consumed for begun in self.begun.values()]
        spans = chain(own, (each for begun in self.begun.values() for dealt in begun.past for each in dealt.consumed))
        most = self.examples * (self.size if self.share in (REPEATED, BY_ROUND) else 1)
        if any(end > most for each in spans for _, end in each):
            raise ValueError(f"a batch's number is larger than {most}")

    @property
    def sharing(self) -> tuple[str, int, int, bool]:
        """How the epoch was cut."""
        return self.share, self.size, self.batch_size, self.drop_last

    def is_shared_as(self, share: Share, batch_size: int) -> bool:
        """Whether the same batches have the same numbers in `share`, on every worker by itself."""
        return share.kind != DYNAMIC and self.sharing == (share.kind, share.size, batch_size, share.drop_last)

    def check(self, share: Share, examples: int) -> None:
        """Raise `ConfigurationError` where what is left cannot be known, since the data or its order is another."""
        if self.share == BY_ROUND and any(begun.consumed for begun in self.begun.values()):
            raise ConfigurationError(
                "the position was kept in the middle of an epoch in which batches follow from rounds; go on from a "
                "checkpoint at the end of an epoch"
            )
        if self.examples != examples:
            raise ConfigurationError(
                f"the position was kept in a dataset of {self.examples} examples, and this one has {examples}; go on "
                "with the same dataset"
            )
        if self.begun and (self.seed, self.shuffle) != (share.seed, share.shuffle):
            raise ConfigurationError(
                f"the position was kept in an epoch with seed={self.seed} and shuffle={self.shuffle}, and this loader "
                f"has seed={share.seed} and shuffle={share.shuffle}; go on with the same"
            )

    def consumed_in(self, epoch: int) -> Spans:
        """The numbers of its own batches that this worker has consumed in `epoch`, where it has been dealt out last."""
        known = self.begun.get(epoch)
        if known is not None:
            return known.consumed
        return ((0, self.examples),) if epoch < self.epoch and self.share != DYNAMIC else ()


MOST_APART = 1000
"""The number of epochs by which one worker may be ahead of another where what is left is dealt out again."""


def deal_again(workers: Sequence[Position]) -> tuple[int, dict[int, Begun]]:
    """Where workers go on that are others than those of before: at which epoch, and what of which epochs is left.

    That is the first epoch in which one of the old ones still was, then what others have left of later ones. An old
    worker that is missing (it was dead) has consumed nothing that is known. Raises `ConfigurationError` where the old
    ones were too far apart.
    """
    if any(worker.share == OWN for worker in workers):
        raise ConfigurationError(
            'where every worker has files of its own (read="own"), nobody else can go on with what one has left; go on '
            f"with {workers[0].size} workers, and the same batch_size and drop_last"
        )
    if any(worker.share in (REPEATED, BY_ROUND) for worker in workers):
        raise ConfigurationError(
            "where every worker computes batches of others as well, nobody else can go on in the middle of an epoch; "
            f"go on with {workers[0].size} workers, and the same batch_size and drop_last"
        )
    first, last = min(worker.epoch for worker in workers), max(worker.epoch for worker in workers)
    if not any(worker.trained for worker in workers):
        return last, {}
    if workers[0].share == CLIENTS:
        return first, {}  # other workers play the clients: the round begins again
    if last - first > MOST_APART:
        raise ConfigurationError(
            f"workers were in epochs {first} to {last}; at most {MOST_APART} apart can go on with others than they were"
        )
    known = {epoch for worker in workers for epoch in worker.begun if epoch >= first}
    found: dict[int, Begun] = {}
    for epoch in sorted(known.union(range(first, last))):
        past = next((each.begun[epoch].past for each in workers if epoch in each.begun), ())
        found[epoch] = Begun(past=(*past, _dealt(workers, epoch)))
    return first, found


def _dealt(workers: Sequence[Position], epoch: int) -> Dealt:
    one = workers[0]
    by_rank = {worker.rank: worker.consumed_in(epoch) for worker in workers}
    if one.share == DYNAMIC:
        consumed: tuple[Spans, ...] = (union(chain.from_iterable(by_rank.values())),)
    else:
        consumed = tuple(by_rank.get(rank, ()) for rank in range(one.size))
    return Dealt(share=one.share, size=one.size, batch_size=one.batch_size, drop_last=one.drop_last, consumed=consumed)


def told(begun: Begun) -> dict[str, Any]:
    """As plain JSON values."""
    past = [{**vars(dealt), "consumed": [_pairs(spans) for spans in dealt.consumed]} for dealt in begun.past]
    return {"past": past, "consumed": _pairs(begun.consumed)}


def _pairs(spans: Spans) -> list[list[int]]:
    return [list(span) for span in spans]


def begun_from(state: dict[str, Any]) -> Begun:
    """The inverse of `told`."""
    past = []
    for each in state["past"]:
        plain = {name: _checked(name, each[name]) for name in Dealt.__dataclass_fields__ if name != "consumed"}
        past.append(Dealt(**plain, consumed=tuple(map(_spans, each["consumed"]))))
    return Begun(past=tuple(past), consumed=_spans(state["consumed"]))


def _spans(pairs: Any) -> Spans:
    found = tuple((_checked("first", begin), _checked("end", end)) for begin, end in pairs)
    flat = [number for span in found for number in span]
    if flat != sorted(set(flat)):
        raise ValueError(f"{pairs} are no spans")
    return found


_LEAST = {"size": 1, "batch_size": 1, "seed": None}
_MOST = {"size": 1_000_000}


def _checked(name: str, value: Any) -> Any:
    """`value`, if it is what `name` is: a word, a truth, or else a whole number that is not negative."""
    if name == "share":
        is_right = value in (STATIC, DYNAMIC, OWN, CLIENTS, REPEATED, BY_ROUND)
    elif name in ("drop_last", "shuffle", "trained"):
        is_right = isinstance(value, bool)
    else:
        least = _LEAST.get(name, 0)
        is_right = type(value) is int and (least is None or value >= least) and value <= _MOST.get(name, value)
    if not is_right:
        raise ValueError(f"{name} is {value!r}")
    return value
