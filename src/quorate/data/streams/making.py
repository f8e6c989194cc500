"""The arguments of `loader` for a stream, checked against the world and the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError, unknown
from quorate.data.arguments import Loading, check_count
from quorate.data.assignment import DYNAMIC, STATIC, Share
from quorate.data.context import DataContext
from quorate.data.files.dataset import Reader
from quorate.data.same_data import check_same_choices
from quorate.data.streams.loader import EACH, ONE, OWN, Shared, StreamLoader
from quorate.data.streams.parts import parts_of
from quorate.data.streams.reading import Mixing
from quorate.wire.current import Place

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
    place: Place,
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
