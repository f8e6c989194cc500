"""The consumed part of an epoch, and its remainder for workers that may be others than before.

An epoch is divided among the workers of one run; where that run ends in the middle, the remainder is divided among the
workers of the next. `Dealt` describes one such division and its progress, so a list of them determines the remainder,
at any number of workers: each removes the consumed examples from the epoch's order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import BY_ROUND, CLIENTS, DYNAMIC, KEPT, OWN, REPEATED, SAMPLED, STATIC, Share, StaticShare

Spans = tuple[tuple[int, int], ...]
"""A set of whole numbers: sorted pairs (first, last + 1)."""
Changes = dict[int, tuple[int, ...]]
"""By the first epoch for which they hold: the ranks among which epochs are divided, where they are others than in the
epoch before."""


def union(spans: Iterable[tuple[int, int]]) -> Spans:
    """Return all numbers in `spans`, which may be in any order and overlap."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return tuple(merged)


def numbers_in(spans: Spans) -> Iterable[int]:
    """Return the numbers in `spans`, ascending."""
    return chain.from_iterable(range(*span) for span in spans)


def members_in(changes: Mapping[int, Sequence[int]], epoch: int, size: int) -> tuple[int, ...]:
    """Return the ranks among which `epoch` is divided, with `size` workers at the start."""
    since = max((first for first in changes if first <= epoch), default=None)
    return tuple(range(size)) if since is None else tuple(changes[since])


@dataclass(frozen=True, kw_only=True)
class Dealt:
    """A division of an epoch (or of its remainder) among `size` workers, and their consumed batches.

    A static share has the numbers of each rank's own batches, by rank; a dynamic one those of all workers, in
    one entry. Numbers beyond the last batch are allowed and mean nothing.
    """

    share: str
    size: int
    batch_size: int
    drop_last: bool
    consumed: tuple[Spans, ...]

    def left(self, order: Tensor) -> Tensor:
        """Return the part of `order` that no worker has consumed, in order. A padded example counts as itself."""
        examples = len(order)
        consumed = torch.zeros(examples, dtype=torch.bool)
        for rank, spans in enumerate(self.consumed):
            own_places = None if self.share == DYNAMIC else self._of(rank).places(examples)
            for begin, end in spans:
                places = slice(*(min(number * self.batch_size, examples) for number in (begin, end)))
                consumed[places if own_places is None else own_places[places]] = True
        return order[~consumed]

    def _of(self, rank: int) -> StaticShare:
        return StaticShare(rank=rank, size=self.size, drop_last=self.drop_last)


def left_of(order: Tensor, past: Iterable[Dealt]) -> Tensor:
    """Return the remainder of an epoch's `order` after these successive divisions."""
    for dealt in past:
        order = dealt.left(order)
    return order


@dataclass(frozen=True, kw_only=True)
class Begun:
    """One worker's progress in an epoch that was begun: earlier divisions, and the numbers of its own batches since."""

    past: tuple[Dealt, ...] = ()
    consumed: Spans = ()


@dataclass(frozen=True, kw_only=True)
class Position:
    """One worker's position in its data: the checked state of a loader."""

    rank: int
    size: int
    share: str
    batch_size: int
    drop_last: bool
    examples: int
    seed: int
    shuffle: bool
    trained: bool
    """Whether it has returned batches to train on; a loader only for evaluation has no remainder."""
    epoch: int
    begun: dict[int, Begun]
    """By epoch: `epoch` itself, if it is begun; later ones, begun by workers that were ahead; with a dynamic share the
    one before, for workers that are behind."""
    changes: Changes = field(default_factory=dict)
    """The ranks among which a static share is divided, after deaths and joins."""

    @classmethod
    def of(
        cls,
        share: Share,
        batch_size: int,
        examples: int,
        epoch: int,
        begun: dict[int, Begun],
        trained: bool,
        changes: Changes | None = None,
    ) -> Position:
        """Return the position of the worker with `share`."""
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
            changes=dict(changes or {}),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the position as plain JSON values."""
        plain: dict[str, Any] = {
            **vars(self),
            "begun": {str(epoch): begun_as_json(each) for epoch, each in self.begun.items()},
            "changes": [[epoch, list(members)] for epoch, members in sorted(self.changes.items())],
        }
        return plain

    @classmethod
    def read(cls, state: dict[str, Any]) -> Position:
        """Return the position that `as_json` has described. Raises `ConfigurationError` for anything else."""
        try:
            begun = {int(epoch): begun_from(each) for epoch, each in state["begun"].items()}
            fields = cls.__dataclass_fields__.keys() - {"begun", "changes"}
            plain = {name: _checked(name, state[name]) for name in fields}
            position = cls(**plain, begun=begun, changes=_changes(state.get("changes", [])))
            position._check_bounds()
            return position
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"this is not the state of a loader ({type(error).__name__}: {error})") from error

    def _check_bounds(self) -> None:
        """Raise `ValueError` for more batches than examples: reading a state must not cost more than its data."""
        own = [begun.consumed for begun in self.begun.values()]
        spans = chain(own, (each for begun in self.begun.values() for dealt in begun.past for each in dealt.consumed))
        most = self.examples * (self.size if self.share in (REPEATED, BY_ROUND) else 1)
        if any(end > most for each in spans for _, end in each):
            raise ValueError(f"a batch's number is larger than {most}")

    @property
    def sharing(self) -> tuple[str, int, int, bool]:
        """The division of the epoch."""
        return self.share, self.size, self.batch_size, self.drop_last

    def is_shared_as(self, share: Share, batch_size: int) -> bool:
        """Return whether the same batches have the same numbers in `share`, on every worker separately."""
        is_alike = self.sharing == (share.kind, share.size, batch_size, share.drop_last)
        return share.kind != DYNAMIC and is_alike and not self.changes

    def check(self, share: Share, examples: int) -> None:
        """Raise `ConfigurationError` where the remainder is unknown, since the data or its order has changed."""
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
        """Return the numbers of its own batches that this worker has consumed in `epoch`, in the last division."""
        progress = self.begun.get(epoch)
        if progress is not None:
            return progress.consumed
        return ((0, self.examples),) if epoch < self.epoch and self.share != DYNAMIC else ()


MOST_APART = 1000
"""The number of epochs by which one worker may be ahead of another where the remainder is divided again."""


def deal_again(workers: Sequence[Position]) -> tuple[int, dict[int, Begun]]:
    """Return the epoch in which a new set of workers continues, and the remainders of epochs.

    It is the first epoch of an old worker; later epochs have the remainders of workers that were ahead. A missing old
    worker (it was dead) has consumed nothing that is known. Raises `ConfigurationError` where old workers were too far
    apart.
    """
    if any(worker.share == OWN for worker in workers):
        raise ConfigurationError(
            'where every worker has files of its own (read="own"), nobody else can go on with what one has left; go on '
            f"with {workers[0].size} workers, and the same batch_size and drop_last"
        )
    if any(worker.share == SAMPLED for worker in workers):
        raise ConfigurationError(
            "each worker's sampler draws for it alone (num_replicas, rank), so no other number of workers can continue "
            f"in the middle of an epoch. Continue with {workers[0].size} workers, or pass a sampler that draws for all"
        )
    if any(worker.share in (REPEATED, BY_ROUND) for worker in workers):
        raise ConfigurationError(
            "if every worker also computes batches of others, no other number of workers can continue in the middle of "
            f"an epoch. Continue with {workers[0].size} workers, and the same batch_size and drop_last"
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
    begun_epochs = {epoch for worker in workers for epoch in worker.begun if epoch >= first}
    remainders: dict[int, Begun] = {}
    for epoch in sorted(begun_epochs.union(range(first, last))):
        past = next((each.begun[epoch].past for each in workers if epoch in each.begun), ())
        remainders[epoch] = Begun(past=(*past, _dealt(workers, epoch)))
    return first, remainders


def _dealt(workers: Sequence[Position], epoch: int) -> Dealt:
    first = workers[0]
    by_rank = {worker.rank: worker.consumed_in(epoch) for worker in workers}
    changes = {since: members for worker in workers for since, members in worker.changes.items()}
    members = members_in(changes, epoch, first.size)
    if first.share == DYNAMIC:
        consumed: tuple[Spans, ...] = (union(chain.from_iterable(by_rank.values())),)
    elif first.share == KEPT:  # all are at one step of all parts
        consumed = (first.consumed_in(epoch),) * first.size
    else:
        consumed = tuple(by_rank.get(rank, ()) for rank in members)
    return Dealt(
        share=first.share, size=len(members), batch_size=first.batch_size, drop_last=first.drop_last, consumed=consumed
    )


def begun_as_json(begun: Begun) -> dict[str, Any]:
    """Return the progress as plain JSON values."""
    past = [{**vars(dealt), "consumed": [_pairs(spans) for spans in dealt.consumed]} for dealt in begun.past]
    return {"past": past, "consumed": _pairs(begun.consumed)}


def _pairs(spans: Spans) -> list[list[int]]:
    return [list(span) for span in spans]


def begun_from(state: dict[str, Any]) -> Begun:
    """Return the progress that `begun_as_json` has described."""
    past = []
    for each in state["past"]:
        plain = {name: _checked(name, each[name]) for name in Dealt.__dataclass_fields__ if name != "consumed"}
        past.append(Dealt(**plain, consumed=tuple(map(_spans, each["consumed"]))))
    return Begun(past=tuple(past), consumed=_spans(state["consumed"]))


def _spans(pairs: Any) -> Spans:
    spans = tuple((_checked("first", begin), _checked("end", end)) for begin, end in pairs)
    flat = [number for span in spans for number in span]
    if flat != sorted(set(flat)):
        raise ValueError(f"{pairs} are no spans")
    return spans


def _changes(pairs: Any) -> Changes:
    changes: Changes = {}
    for epoch, ranks in pairs:
        members = tuple(_checked("rank", rank) for rank in ranks)
        if not members or len(set(members)) < len(members):
            raise ValueError(f"{ranks} are no members of an epoch")
        changes[_checked("epoch", epoch)] = members
    return changes


_LEAST = {"size": 1, "batch_size": 1, "seed": None}
_MOST = {"size": 1_000_000, "rank": 1_000_000}


def _checked(name: str, value: Any) -> Any:
    """Return `value`, if it has the type of `name`: a word, a truth value, or a whole number from 0."""
    if name == "share":
        is_right = value in (STATIC, DYNAMIC, OWN, CLIENTS, SAMPLED, REPEATED, BY_ROUND, KEPT)
    elif name in ("drop_last", "shuffle", "trained"):
        is_right = isinstance(value, bool)
    else:
        least = _LEAST.get(name, 0)
        is_right = type(value) is int and (least is None or value >= least) and value <= _MOST.get(name, value)
    if not is_right:
        raise ValueError(f"{name} is {value!r}")
    return value
