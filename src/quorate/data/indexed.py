"""A DataLoader over one worker's share of a dataset with a length and an index."""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quorate.core.clients import ClientRound, Turn
from quorate.core.errors import ConfigurationError
from quorate.data.arguments import Labelled, Loading, check_batch_size
from quorate.data.assignment import KeptShare, Share
from quorate.data.consumption import Consumed
from quorate.data.epoch_members import EpochMembers
from quorate.data.growth import Growing, Growth
from quorate.data.loader import Loader, Pass
from quorate.data.on_device import on_device
from quorate.data.orders import EpochOrder
from quorate.data.position import Begun, Position, begun_as_json, begun_from, deal_again, left_of, numbers_in, union
from quorate.wire.current import Place


class PassBatches:
    """A batch sampler: the index lists of the newest pass."""

    def __init__(
        self, share: Share, examples: int, batch_size: int, ask: Callable[[list[int]], None] | None = None
    ) -> None:
        """`ask` is called with each list one list ahead, where examples take time to arrive."""
        self._share, self._of, self._ask = share, (examples, batch_size), ask
        self.latest: Iteration | None = None

    def resize(self, share: Share, examples: int, batch_size: int) -> None:
        """Set the size of lists from the next pass on."""
        self._share, self._of = share, (examples, batch_size)

    def __len__(self) -> int:
        return self._share.number_of_batches(*self._of)

    def __iter__(self) -> Iterator[list[int]]:
        assert self.latest is not None, "a loader begins a pass before it iterates"
        return self.latest.fetch() if self._ask is None else _asked_ahead(self.latest.fetch(), self._ask)


def _asked_ahead(lists: Iterator[list[int]], ask: Callable[[list[int]], None]) -> Iterator[list[int]]:
    coming = next(lists, None)
    if coming is not None:
        ask(coming)
    while coming is not None:
        now, coming = coming, next(lists, None)
        if coming is not None:
            ask(coming)
        yield now


class IndexedLoader(Loader):
    """One worker's batches of a dataset with a length and an index.

    Every worker's loader has the same length (under a dynamic share: the same estimate of it). Wraps a torch DataLoader
    (`torch_loader`) rather than being one: its sampler is not the user's to change.

    Raises `ConfigurationError` for a batch size below 1, data that is empty or has no length, and, with
    `drop_last`, a batch larger than the share.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        share: Share,
        order: EpochOrder,
        loading: Loading,
        members: EpochMembers,
        place: Place,
        *,
        pauses: bool,
        device: torch.device | None = None,
        growing: Growing | None = None,
        meets: Callable[[], None] = lambda: None,
    ) -> None:
        """`meets` is called before the first batch that is trained on. Where `order` has batches, `batch_size` is 1."""
        self._order, self._examples = order, order.entries
        check_batch_size(batch_size, share, self._examples)
        loading.check()
        labelled = Labelled(dataset, loading.collate_fn) if loading.num_workers > 0 and not loading.in_order else None
        super().__init__(batch_size, share, place, pauses=pauses, meets=meets, labels=labelled is not None)
        self.dataset = dataset
        self._device, self._growing, self._members = device, growing, members
        self._batches = PassBatches(share, self._examples, batch_size, getattr(dataset, "ask", None))
        self.torch_loader = loading.over(dataset, self._batches, labelled)

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position, as plain JSON values. Cost: one pass over the epoch's consumed batches."""
        epoch, begun = self._begun(self._place.context(Consumed).steps)
        of_epoch = self._examples, epoch, begun, self._trained
        return Position.of(self.share, self.batch_size, *of_epoch, self._members.changes).as_json()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the loader with this `state_dict`, one worker alone.

        It is for a static share at the same world size and batch size, and for a world of one. Elsewhere the remainder
        is divided again, which needs all old workers' positions: `quorate.load()`, or `load_state_dicts`. Raises
        `ConfigurationError` there, for another dataset, and in the middle of an epoch for another seed or shuffle.
        """
        position = Position.read(state)
        if self._growing is not None:
            self._resize(position.batch_size)
        alone = position.size == self.share.size == 1
        if not alone and (position.rank != self.share.rank or not position.is_shared_as(self.share, self.batch_size)):
            raise ConfigurationError(
                "one worker's position is enough only for a static share with the same rank, world size, batch_size "
                "and drop_last; use quorate.load(), or give load_state_dicts the positions of all workers"
            )
        if alone:
            self.load_state_dicts([state])
        else:
            self._continue(position, [position])

    def load_state_dicts(self, workers: Sequence[dict[str, Any]]) -> None:
        """Continue from the loaders of all workers of a run; `workers` are their `state_dict`s, equal on all new
        workers.

        States of workers that died may be missing. Where shares are static, and as many and as large as before, each
        worker continues with its own. In other cases, examples that no old worker has consumed are divided like an
        epoch: padded or cut by the same rules. These cases are another world size, batch size, share or `drop_last`,
        and a dynamic share. If old workers were in different epochs, all continue in the earliest of them, and batches
        of later ones are not repeated. Raises `ConfigurationError` for no positions, for another dataset, and in the
        middle of an epoch for another seed or shuffle. Cost: a few passes over one epoch's order, when it is iterated.
        """
        argument: object = workers
        if argument is None or isinstance(argument, dict | str):
            kind = type(argument).__name__
            raise ConfigurationError(
                f"load_state_dicts takes a list with the state_dict() of every worker, not a {kind}"
            )
        saved = sorted(map(Position.read, workers), key=lambda each: each.rank)
        ranks = [each.rank for each in saved]
        if not saved or ranks != sorted(set(ranks)) or ranks[-1] >= saved[0].size:
            raise ConfigurationError(
                f"the positions of a run's workers must have different ranks, from 0 on; these have {ranks}"
            )
        if self._growing is not None and len(sizes := {each.batch_size for each in saved}) == 1:
            self._resize(sizes.pop())
        if len({(*each.sharing, each.examples, each.seed, each.shuffle) for each in saved}) > 1:
            raise ConfigurationError("these positions do not belong to one loader of one run: their settings differ")
        is_of_all = isinstance(self.share, KeptShare)  # the position of each worker is that of all
        if (is_of_all or len(saved) == saved[0].size) and saved[0].is_shared_as(self.share, self.batch_size):
            self._continue(saved[0] if is_of_all else saved[self.share.rank], saved)
            return
        saved[0].check(self.share, self._examples)
        epoch, left = deal_again(saved)
        self._go_on_at(epoch, left, trained=any(each.trained for each in saved))

    def _continue(self, position: Position, saved: Sequence[Position]) -> None:
        position.check(self.share, self._examples)
        self._members.fixed = max((epoch for each in saved for epoch in each.begun), default=-1)
        left = {epoch: begun for epoch, begun in position.begun.items() if epoch >= position.epoch}
        self._go_on_at(position.epoch, left, trained=position.trained)

    def whereabouts(self) -> dict[str, Any]:
        """Return the current pass, or else the next one, for a worker that joins; plain JSON values."""
        this = self._current
        epoch, passes, left = self._next_epoch, self._passes, dict(self._left)
        if this is not None:
            epoch, passes, left[this.epoch] = this.epoch, this.number, this.began
        left_by_epoch = {str(number): begun_as_json(each) for number, each in left.items()}
        plain = {"batch_size": self.batch_size, "fixed": self._members.fixed}
        return {"epoch": epoch, "passes": passes, "left": left_by_epoch, **plain}

    def enter_at(self, about: dict[str, Any]) -> None:
        """Begin at the `whereabouts` of another worker's loader."""
        if self._growing is not None:
            self._resize(about["batch_size"])
        self._go_on_at(about["epoch"], {int(number): begun_from(each) for number, each in about["left"].items()})
        self._passes, self._members.fixed = about["passes"], about["fixed"]

    def __iter__(self) -> Iterator[Any]:
        """Iterate; a mere check for an iterator (as Lightning makes) begins no epoch, but the first batch does."""
        self._epoch = epoch = self._next_epoch
        self._next_epoch += 1
        begun = self._left.get(epoch)
        if self._growing is not None and begun is None and self._is_training:
            self._resize(self._growing.size_in(epoch, self.batch_size))
        number, self._passes = self._passes, self._passes + 1
        of_pass = self._order, self.batch_size, epoch, number, begun or Begun()
        trains = self._is_training
        if isinstance(self.share, KeptShare) and trains:
            divided = self._batches.latest = DividedIteration(self.share, *of_pass)
            yield from self._given(self._divided(divided), divided)
            return
        share = self._members.share_of(self.share, epoch, trains=trains)
        self._batches.resize(share, self._examples, self.batch_size)
        this = self._batches.latest = Iteration(share, *of_pass, watch=self._members.watch)
        # A DataLoader draws one number when it begins, which was drawn when this epoch was begun
        with nullcontext() if begun is None else torch.random.fork_rng(devices=[]):
            batches = on_device(iter(self.torch_loader), self._device)
        yield from self._given(batches, this)

    def _divided(self, this: DividedIteration) -> Iterator[Any]:
        """Yield the batches of a pass; those that were fetched for workers that are no members now are dropped."""
        version = None
        while version != this.division.version:
            version = this.division.version
            with torch.random.fork_rng(devices=[]):  # a DataLoader draws one number when it begins
                batches = on_device(iter(self.torch_loader), self._device)
            for batch in batches:
                yield batch
                if version != this.division.version:
                    break

    def _resize(self, batch_size: int) -> None:
        """Set the examples of a batch from the next pass on."""
        if batch_size != self.batch_size:
            before, self.batch_size = self.batch_size, batch_size
            self._batches.resize(self.share, self._examples, batch_size)
            self._place.context(Growth).changed(batch_size / before)

    def __len__(self) -> int:
        """Batches per epoch of this worker, the same on all workers; under a dynamic share, if all are equally fast. It
        is that of a full epoch, even in the remainder of one."""
        return len(self._batches)

    @property
    def _usual_batches(self) -> int:
        return len(self)

    def _dealt(self, this: Pass) -> float:
        return this.epoch * len(self) + this.newest / self.share.size


class Iteration(Pass):
    """The batches of one pass.

    The order is drawn when the pass is made, so that successive passes have the epochs in which they began.
    """

    def __init__(
        self,
        share: Share,
        order: EpochOrder,
        batch_size: int,
        epoch: int,
        number: int,
        begun: Begun,
        *,
        watch: Callable[[int, int], None] = lambda epoch, left: None,
    ) -> None:
        """`watch` is called before each batch that is trained on, with the epoch and the number of batches left."""
        self.epoch, self.number, self._began, self._watch = epoch, number, begun, watch
        self._share, self._batch_size = share.of_epoch(epoch), batch_size
        drawn = order.draw(epoch)
        self._order: Tensor | None = left_of(drawn.order, begun.past)
        self._drawn_batches = drawn.batches
        self._left_batches = self._share.number_of_batches(len(self._order), batch_size)
        self._left_batches -= sum(end - begin for begin, end in begun.consumed)
        self._fetched: deque[tuple[int, list[int]]] = deque()
        self._in_hand: list[int] = []
        self._done: list[tuple[int, int]] = []
        self._steps: int | None = None

    def fetch(self) -> Iterator[list[int]]:
        """Yield the examples of every batch not consumed before; called once, or again before the first batch."""
        assert self._order is not None, "a pass is made once"
        order, self._order = self._order, None
        consumed = set(numbers_in(self._began.consumed))
        for number, indices in self._share.batches(order, self._batch_size, self.number):
            if number not in consumed:
                if self._drawn_batches is not None:
                    indices = self._drawn_batches[indices[0]]
                self._fetched.append((number, indices))
                yield indices

    def batch_begins(self) -> None:
        self._watch(self.epoch, max(0, self._left_batches))

    def give(self, steps: int | None, label: list[int] | None = None) -> int:
        """Return the next fetched batch to the worker; with a `label` that of these indices, as batches may be fetched
        in any order."""
        self.pause(steps)
        place = 0 if label is None else [fetched for _, fetched in self._fetched].index(label)
        number, examples = self._fetched[place]
        del self._fetched[place]
        self._in_hand.append(number)
        self._left_batches -= 1
        self.newest = number
        self._steps = steps
        return len(examples)

    @property
    def is_round(self) -> bool:
        return self._share.is_round

    @property
    def client_round(self) -> ClientRound | None:
        return self._share.client_round

    @property
    def turn(self) -> Turn | None:
        return self._share.turn(self.newest)

    def pause(self, steps: int | None) -> None:
        if steps is not None and steps == self._steps:
            return
        for number in self._in_hand:
            self._share.computed(self.number, number)
            if self._done and self._done[-1][1] == number:
                self._done[-1] = self._done[-1][0], number + 1
            else:
                self._done.append((number, number + 1))
        self._in_hand.clear()

    @property
    def begun(self) -> Begun:
        return Begun(past=self._began.past, consumed=union((*self._began.consumed, *self._done)))


class DividedIteration(Iteration):
    """The batches of one pass whose steps are divided among the workers that live."""

    def __init__(
        self, share: KeptShare, order: EpochOrder, batch_size: int, epoch: int, number: int, begun: Begun
    ) -> None:
        super().__init__(share, order, batch_size, epoch, number, begun)
        assert self._order is not None
        self._divided_share, self.division, self._left = share, share.division, self._order
        begin = max((end for _, end in begun.consumed), default=0)
        self.division.set_out(share.number_of_batches(len(self._order), batch_size), begin)

    def fetch(self) -> Iterator[list[int]]:
        """Yield the examples of each batch of this worker from the current step on, if no member changes."""
        self._fetched.clear()
        for number in self.division.ahead():
            indices = self._divided_share.batch(self._left, self._batch_size, number)
            if self._drawn_batches is not None:
                indices = self._drawn_batches[indices[0]]
            self._fetched.append((number, indices))
            yield indices

    def give(self, steps: int | None, label: list[int] | None = None) -> int:
        self.division.take()
        size = super().give(steps, label)
        self._in_hand.clear()
        return size

    def pause(self, steps: int | None) -> None:
        """Do nothing: a sum that has all micro-batches of a step says that they are computed."""

    @property
    def begins_step(self) -> bool:
        return not self.division.is_inside

    def batch_begins(self) -> None:
        """Seed the generators of torch, numpy and Python by the next batch, so that it draws alike on each worker."""
        self.division.check_next()
        if self.division.next is not None:
            number = self._divided_share.of_all(self.division.next)
            seed = zlib.crc32(f"{self._share.seed} {self.epoch} {number}".encode())
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)

    def leave(self) -> None:
        self.division.leave()

    @property
    def began(self) -> Begun:
        return self.begun

    @property
    def begun(self) -> Begun:
        begin = self.division.begin
        return Begun(past=self._began.past, consumed=((0, begin),) if begin else ())
