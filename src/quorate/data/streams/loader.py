"""A loader of a stream: batches of data that is read in order, shared by all workers; made by `stream_loader`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, unknown
from quorate.data.arguments import Loading, check_count
from quorate.data.assignment import DYNAMIC, STATIC, Share, epoch_order
from quorate.data.consumption import Consumed
from quorate.data.context import DataContext
from quorate.data.files.dataset import Reader
from quorate.data.loader import Loader, Pass
from quorate.data.on_device import on_device
from quorate.data.same_data import Item, check_same_choices
from quorate.data.streams.dealing import Dealer, Lanes
from quorate.data.streams.fetching import Fetching, ItemSource, Key, Label, PartSource, RemoteSource, Served, Source
from quorate.data.streams.parts import Parts, parts_of
from quorate.data.streams.passes import Deaths, StreamPass
from quorate.data.streams.position import Begun, StreamPosition, deal_again
from quorate.data.streams.reading import BEGIN, Mark, Mixing, PartReading, PartsReading, Place
from quorate.wire.current import Place as WorkerPlace
from quorate.wire.survivors import DeathTolerance

EACH, ONE, OWN = "each", "one", "own"


class NoLength(ConfigurationError, TypeError):
    """Raised for the length of a stream that has none."""


@dataclass(frozen=True, kw_only=True)
class Shared:
    """A stream, and how its items are made batches; it goes to the processes that read."""

    stream: Any
    parts: Parts
    read: str
    batch_size: int
    lanes: int
    seed: int
    mixing: Mixing | None
    drop_last: bool
    is_equal: bool
    is_first: bool
    """Whether this worker tells what concerns all."""

    def part(self, epoch: int, part: int, mark: Mark) -> PartReading:
        """Return a reading of one part."""
        stream = self.parts.stream(0 if self.read == OWN else part)
        knows = self.parts.knows_place
        return PartReading(stream, part, epoch, mark, self.mixing, knows_place=knows, tells=self.is_first)

    def order(self, epoch: int, count: int) -> list[int]:
        """Return the order of the parts in an epoch."""
        if self.read == OWN:
            return [*range(count)]
        return epoch_order(count, seed=self.seed, epoch=epoch, shuffle=self.mixing is not None).tolist()

    def dealer(self, epoch: int, parts: Sequence[int], begun: Begun) -> Dealer:
        """Return the batches of a pass whose items several workers share."""

        def reopen(place: Place | None) -> PartsReading:
            return PartsReading(parts, begun.mark, partial(self.part, epoch), place)

        return Dealer(
            reopen,
            begun.past,
            begun.begin,
            Lanes(self.lanes, self.batch_size),
            keeps_all=self.read == ONE,
            drop_last=self.drop_last,
            is_equal=self.is_equal,
            name=f"the stream ({type(self.stream).__name__})",
            is_whole=bool(parts) and all(begun.mark(part) == BEGIN for part in parts),
        )


class StreamLoader(Loader):
    """One worker's batches of a stream (an `IterableDataset`, or any object that can be iterated again and again).

    A pass ends for all workers together; those whose items end first keep the others company. Batches are numbered, and
    a place in the stream is kept with each, so a position is exact to the example.
    """

    def __init__(
        self,
        shared: Shared,
        share: Share,
        place: WorkerPlace,
        number: int,
        loading: Loading,
        *,
        batch_size: int | None,
        device: torch.device | None,
        meets: Callable[[], None],
    ) -> None:
        """`number` is that of the loader among the worker's loaders."""
        loading.check()
        super().__init__(shared.batch_size, share, place, pauses=True, meets=meets, labels=True)
        self.dataset = shared.stream
        self._shared, self._number, self._device = shared, number, device
        self._workers = loading.num_workers
        self._has_batches = batch_size is None
        divides = shared.read == OWN
        self._fetching = Fetching(
            self._source, loading.collate_fn, has_batches=self._has_batches, divides_itself=divides
        )
        self._keys = _Keys()
        self.torch_loader = loading.over(self._fetching, self._keys, self._fetching)
        self._count = shared.parts.count if shared.read != OWN else share.size
        self._loaded: dict[int, Begun] = {}
        self._ended: list[StreamPass] = []
        self._steps_before = 0.0
        self._has_compared = False
        self._wire = place.wire.channel(f"stream/{number}") if shared.read == ONE and place.wire.size > 1 else None
        self._served: Served | None = None
        if self._wire is None or place.wire.rank == 0:
            self._served = Served(self._dealer_of)

    @property
    def served(self) -> Served | None:
        """The batches for all workers, where this worker reads them."""
        return self._served

    def _dealer_of(self, epoch: int, is_fresh: bool) -> Dealer:
        begun = Begun() if is_fresh else self._loaded.get(epoch, Begun())
        return self._shared.dealer(epoch, begun.left_of(self._shared.order(epoch, self._count)), begun)

    def _reads_items(self, begun: Begun, parts: Sequence[int]) -> bool:
        if self._shared.read == OWN:
            return False
        if begun.is_by_item or self._shared.read == ONE or self._shared.is_equal or self.share.size == 1:
            return True
        if self._workers and self._place.context(DeathTolerance).survivors is not None:
            return True  # processes of a DataLoader cannot ask what a dead worker has left
        return len(parts) < self.share.size or len(parts) == 1

    def _source(self, this: StreamPass, process: int, processes: int) -> Source:
        shared = self._shared
        if not this.by_item:
            parts = [self.share.rank] if shared.read == OWN else this.own_parts(process, processes)
            mark_of = this.mark_of if processes == 1 else this.began.mark
            parts = (part for part in parts if not this.began.mark(part).is_finished)
            reading = PartsReading(parts, mark_of, partial(shared.part, this.epoch))
            return PartSource(reading, shared.batch_size, process, processes, drop_last=shared.drop_last)
        is_fresh = this.began == Begun()
        if shared.read == ONE and self._wire is not None:
            if self._served is None:
                self._keys.remote = RemoteSource(
                    self._wire, 0, this.number, this.epoch, this.open_keys, is_fresh=is_fresh
                )
                return self._keys.remote
            return _Here(self._served, this.number, this.epoch, is_fresh)
        return ItemSource(shared.dealer(this.epoch, this.parts, this.began))

    def __iter__(self) -> Iterator[Any]:
        """Iterate; a mere check for an iterator (as Lightning makes) begins no epoch, but the first batch does."""
        self._epoch = epoch = self._next_epoch
        self._next_epoch += 1
        begun = self._left.get(epoch, Begun())
        number, self._passes = self._passes, self._passes + 1
        parts = begun.left_of(self._shared.order(epoch, self._count))
        wire = self._place.wire
        deaths = Deaths(
            wire=wire,
            key=f"stream/{self._number}/{number}",
            is_on=self._place.context(DeathTolerance).survivors is not None,
        )
        by_item = self._reads_items(begun, parts)
        this = StreamPass(self.share, parts, epoch, number, begun, deaths, by_item=by_item)
        self._keys.remote, self._keys.latest = None, this
        self._fetching.begin(this)
        if by_item and self._shared.read == ONE:
            self._fetching.open_now()
        batches = on_device(iter(self.torch_loader), self._device)
        trains = self._is_training
        yield from self._given(self._without_ends(batches, this), this)
        if trains:
            self._steps_before += (this.newest + 1) / self.share.size
            self._ended = [*self._ended, this][-_KEPT_PASSES:]

    def _without_ends(self, batches: Iterator[tuple[Label, Any]], this: StreamPass) -> Iterator[tuple[Label, Any]]:
        for label, batch in batches:
            if label.has_ended:
                this.end(label)
                continue
            if label.first and not self._has_compared:
                self._compare(label.first, this.epoch)
            yield label, batch

    def _compare(self, first: tuple[Item, ...], epoch: int) -> None:
        """Raise `ConfigurationError` where the stream begins with other items than on the first worker that read."""
        self._has_compared = True
        wire = self._place.wire
        if wire.size == 1 or wire.is_newcomer:
            return
        key = f"stream/{self._number}/first of {epoch}"
        own = json.dumps([[item.exact, item.floats] for item in first]).encode()
        if wire.board.swap(key, None, own):
            return
        there = [Item(exact, tuple(map(tuple, floats))) for exact, floats in json.loads(wire.board.get(key) or b"[]")]
        for place, (item, other) in enumerate(zip(first, there, strict=False)):
            if not item.is_like(other):
                raise ConfigurationError(
                    f"example {place} of the stream ({type(self.dataset).__name__}) is another one on rank {wire.rank} "
                    "than on other workers; quorate.loader divides one stream, equal on all of them. Give its shuffle "
                    'the same seed everywhere, or pass read="own" for a stream that divides itself'
                )

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's position: numbers and text, beside states of the stream. Cost: a copy of these."""
        steps = self._place.context(Consumed).steps
        epoch, begun = self._begun(steps)
        for each in self._ended:
            if each.epoch < epoch:
                each.pause(steps)
                begun[each.epoch] = each.begun
        return StreamPosition(
            rank=self.share.rank, trained=self._trained, epoch=epoch, begun=begun, **self._identity
        ).as_plain()

    @property
    def _identity(self) -> dict[str, Any]:
        shared = self._shared
        return {
            "size": self.share.size,
            "share": self.share.kind,
            "read": shared.read,
            "batch_size": shared.batch_size,
            "drop_last": shared.drop_last,
            "seed": shared.seed,
            "shuffle_buffer": 0 if shared.mixing is None else shared.mixing.size,
            "parts": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the loader with this `state_dict`, in a world of one worker. Raises `ConfigurationError`
        elsewhere, as the other workers' positions are needed: `quorate.load()`, or `load_state_dicts`."""
        if self.share.size > 1 or StreamPosition.from_plain(state).size > 1:
            raise ConfigurationError(
                "one worker's position in a stream does not say what others have read; use quorate.load(), or give "
                "load_state_dicts the positions of all workers"
            )
        self.load_state_dicts([state])

    def load_state_dicts(self, workers: Sequence[dict[str, Any]]) -> None:
        """Continue from the loaders of all workers of a run; `workers` are their `state_dict`s, equal on all new
        workers, in any number.

        States of workers that died may be missing. Items that no old worker has consumed are divided again. Raises
        `ConfigurationError` for no positions, for another stream or order of it, and for another number of workers
        where each has a stream of its own.
        """
        if not workers or isinstance(workers, dict | str):
            raise ConfigurationError("load_state_dicts takes a list with the state_dict() of every worker")
        saved = sorted(map(StreamPosition.from_plain, workers), key=lambda each: each.rank)
        identity = self._identity
        for position in saved:
            position.check(**{name: identity[name] for name in ("read", "seed", "shuffle_buffer")})
            if identity["read"] == OWN and position.size != self.share.size:
                raise ConfigurationError(
                    f'where every worker has a stream of its own (read="own"), nobody else can read on; go on with '
                    f"{position.size} workers, or let the loader divide one stream"
                )
            position.check(parts=identity["parts"])
        epoch, left = deal_again(saved)
        self._loaded = left
        self._ended = []
        self._go_on_at(epoch, dict(left), trained=any(each.trained for each in saved))

    def whereabouts(self) -> dict[str, Any]:
        """Return the current pass, or else the next one, for a worker that joins; plain JSON values."""
        this = self._current
        epoch, passes, left = self._next_epoch, self._passes, dict(self._left)
        if this is not None:
            epoch, passes, left[this.epoch] = this.epoch, this.number, this.began
        return {"epoch": epoch, "passes": passes, "left": {str(each): left[each].as_json() for each in left}}

    def enter_at(self, about: dict[str, Any]) -> None:
        """Begin at the `whereabouts` of another worker's loader."""
        left = {int(epoch): Begun.read(each) for epoch, each in about["left"].items()}
        self._go_on_at(about["epoch"], left)
        self._passes = about["passes"]

    def __len__(self) -> int:
        """Batches of this worker in an epoch, where the stream has a length. Raises `NoLength` where it has none."""
        try:
            examples = len(self.dataset)
        except (TypeError, NotImplementedError):
            raise NoLength(
                f"a stream ({type(self.dataset).__name__}) has no length: its end is known when it is reached. Count "
                "steps instead, or give the stream a __len__"
            ) from None
        return math.ceil(examples / self.share.size / self.batch_size)

    @property
    def _usual_batches(self) -> int:
        try:
            return len(self)
        except NoLength:
            return 0

    def _dealt(self, this: Pass) -> float:
        return self._steps_before + this.newest / self.share.size

    @property
    def _keeps_past(self) -> bool:
        return False


_KEPT_PASSES = 16
"""Passes that ended whose progress is in positions, for workers that are behind."""


class _Keys:
    """A batch sampler: the batches that the newest pass requests, each in a list; `remote` is asked one ahead."""

    def __init__(self) -> None:
        self.latest: StreamPass | None = None
        self.remote: RemoteSource | None = None

    def __iter__(self) -> Iterator[list[Key]]:
        assert self.latest is not None, "a loader begins a pass before it iterates"
        keys, waiting = self.latest.keys(), list[Key]()
        for key in keys:
            if self.remote is not None:
                self.remote.ask(key)
            waiting.append(key)
            if self.remote is None or len(waiting) > 1:
                yield [waiting.pop(0)]
        for key in waiting:
            yield [key]


@dataclass(frozen=True)
class _Here:
    """The batches of one pass, on the worker that reads them for all."""

    served: Served
    number: int
    epoch: int
    is_fresh: bool

    def batch(self, key: Key) -> tuple[Label, list[Any]]:
        return self.served.batch(self.number, self.epoch, self.is_fresh, key)


READS = (EACH, ONE, OWN)


def check_stream(stream: Any, shuffle: bool | None, shuffle_buffer: int | None, **others: Any) -> None:
    """Raise `ConfigurationError` for a stream that can be read only once, and for arguments that streams lack."""
    kind = type(stream).__name__
    if isinstance(stream, Iterator):
        raise ConfigurationError(
            f"the stream is a {kind}, which is empty after one epoch and cannot be read again from its beginning; pass "
            "an object whose __iter__ begins a new one"
        )
    for name, value in others.items():
        if value is not None:
            raise ConfigurationError(
                f"{name}= needs a dataset with a length and an index, and {kind} is read in order only; leave it out"
            )
    if shuffle and shuffle_buffer is None:
        raise ConfigurationError(
            "a stream has no index to draw from, so shuffle=True needs shuffle_buffer=, the number of examples that "
            "are mixed at a time"
        )
    if shuffle is False and shuffle_buffer is not None:
        raise ConfigurationError("shuffle=False and shuffle_buffer= contradict each other; leave one of them out")
    if shuffle_buffer is not None:
        check_count("shuffle_buffer", shuffle_buffer, least=2)


def kind_of_share(
    wire: Wire, context: DataContext, share: str | None, read: str, num_workers: int, *, outlives: bool
) -> str:
    """Return the division of a stream's items: claimed, where nobody waits for all or training survives deaths."""
    if context.redundancy.is_there:
        raise ConfigurationError(
            "a stream cannot be combined with a strategy under which several workers compute the same batches; use a "
            "dataset with a length and an index"
        )
    if read == OWN:
        if share is not None:
            raise ConfigurationError(f'share is "{share}", but read="own" leaves the division to the stream')
        if context.deals is not None:
            raise ConfigurationError(
                'read="own" gives every worker examples of its own, and those along the tensor axis of a mesh need the '
                "same; leave read= out"
            )
        return STATIC
    if context.deals is not None and read == ONE:
        raise ConfigurationError('read="one" serves each batch to one worker, and a mesh needs several; leave it out')
    usual = DYNAMIC if (context.nobody_waits or outlives) and not num_workers else STATIC
    if context.needs_equal_shares is not None or context.deals is not None:
        usual = STATIC
    chosen = share or context.share or usual
    if chosen == DYNAMIC and num_workers:
        raise ConfigurationError(
            'share="dynamic" lets workers claim what they read next, which processes of a DataLoader cannot; use '
            "num_workers=0"
        )
    replaced_rank = wire.rank if context.replaced_rank is None else context.replaced_rank
    if chosen == STATIC and replaced_rank >= wire.size:
        raise ConfigurationError('a static share has no part for a further worker; use share="dynamic" on all workers')
    return chosen


def stream_loader(
    stream: Any,
    place: WorkerPlace,
    share: Share,
    number: int,
    loading: Loading,
    *,
    batch_size: int | None,
    read: str,
    seed: int,
    drop_last: bool,
    shuffle_buffer: int | None,
    device: torch.device | None,
) -> StreamLoader:
    """Return the loader of a stream. Raises `ConfigurationError` for arguments that cannot be combined."""
    if read not in READS:
        raise unknown("read", str(read), READS)
    if batch_size is not None:
        check_count("batch_size", batch_size, least=1)
    if loading.num_workers and read == ONE:
        raise ConfigurationError('with read="one" workers receive examples over the network; use num_workers=0')
    if loading.persistent_workers or not loading.in_order:
        name = "persistent_workers=True" if loading.persistent_workers else "in_order=False"
        raise ConfigurationError(f"a stream is read in order, from the beginning of each epoch; leave out {name}")
    parts = parts_of(stream)
    wire, context = place.wire, place.context(DataContext)
    shared = Shared(
        stream=stream,
        parts=parts,
        read=read,
        batch_size=batch_size or 1,
        lanes=1 if share.kind == DYNAMIC else share.size,
        seed=seed,
        mixing=None if shuffle_buffer is None else Mixing(size=shuffle_buffer, seed=seed),
        drop_last=drop_last,
        is_equal=context.needs_equal_shares is not None and share.size > 1,
        is_first=wire.rank == 0,
    )
    count = None if read == OWN else parts.count
    choices = {"seed": seed, "drop_last": drop_last, "batch_size": batch_size, "read": read}
    meets = check_same_choices(wire, number, shuffle_buffer=shuffle_buffer, num_shards=count, **choices)
    made = StreamLoader(shared, share, place, number, loading, batch_size=batch_size, device=device, meets=meets)
    if made.served is not None and read == ONE and wire.size > 1:
        place.leaving.append(Reader(wire.channel(f"stream/{number}"), made.served.answer).close)
    return made
