"""`quorate.loader`: this worker's part of a dataset, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, unknown
from quorate.core.redundancy import Redundancy
from quorate.data import arguments, assignment
from quorate.data.clients import clients_from
from quorate.data.context import DataContext
from quorate.data.epoch_members import EpochMembers
from quorate.data.files.dataset import OwnFiles
from quorate.data.growth import Growth, growing
from quorate.data.indexed import IndexedLoader
from quorate.data.loader import Loader, Loaders, Starts
from quorate.data.on_device import device_from
from quorate.data.orders import BucketedBatches, SampledOrder, SeededOrder, lengths_of, ranks_of
from quorate.data.same_data import check_same_data
from quorate.data.streams.loader import check_stream, kind_of_share, stream_loader
from quorate.data.streams.parts import is_stream
from quorate.records.tape import Replaying
from quorate.wire.current import Place, here
from quorate.wire.survivors import DeathTolerance

SHARES = (assignment.DYNAMIC, assignment.STATIC)
"""The divisions of an epoch among workers."""


class Indexed(Protocol):
    """A list, an array, a tensor, or any other object with a length and an index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@one_sentence({"batch_size": "it is the number of examples per batch and per worker"})
def loader(
    dataset: Dataset[Any] | Indexed,
    batch_size: int | None = None,
    *,
    sampler: Iterable[int] | None = None,
    batch_sampler: Iterable[Sequence[int]] | None = None,
    tokens_per_batch: int | None = None,
    lengths: Sequence[int] | Tensor | Callable[[Any], int] | None = None,
    batch: Literal["fixed", "auto"] = "fixed",
    max_batch_size: int | None = None,
    share: Literal["static", "dynamic"] | None = None,
    partition: str | None = None,
    clients: int | None = None,
    labels: Sequence[Any] | Tensor | None = None,
    shuffle: bool | None = None,
    shuffle_buffer: int | None = None,
    read: Literal["each", "one", "own"] | None = None,
    seed: int | None = None,
    drop_last: bool = False,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool | None = None,
    device: str | int | torch.device | None = None,
    timeout: float = 0,
    worker_init_fn: Callable[[int], None] | None = None,
    multiprocessing_context: str | BaseContext | None = None,
    generator: torch.Generator | None = None,
    prefetch_factor: int | None = None,
    persistent_workers: bool = False,
    in_order: bool = True,
) -> Loader:
    """Return this worker's share of `dataset`, in batches; each epoch has a new order.

    Args:
        dataset: A map-style dataset, list, array or tensor; or a stream (`IterableDataset`), which
            docs/howto/streams.md explains. It and all other arguments must be equal on every worker.
            The length, a few items and the order of epochs are compared with those of the first worker that calls
            (except items that differ when read twice).
        batch_size: Examples per batch and per worker. Leave it out with `batch_sampler` and `tokens_per_batch`, and for
            a stream of batches.
        sampler: Indices of an epoch, in place of a shuffled order: weighted, balanced by class, by group. It is drawn
            once for all workers, with all generators seeded by `seed` and the number of the epoch, and dealt to them.
            One that draws for each worker (with `num_replicas` and `rank`, as DistributedSampler) is used as it is.
        batch_sampler: As `sampler`, for lists of indices; whole batches are dealt to workers.
        tokens_per_batch: The largest number of tokens in a batch, padding included. Batches hold examples of similar
            lengths, so that all take about as long.
        lengths: The number of tokens of each example, or a function of an example; None: the dataset's `lengths`.
        batch: "auto" doubles batches between two epochs while the batch of all workers is then no larger than the
            critical batch, by the measured noise of gradients, up to `max_batch_size`.
        max_batch_size: The limit of "auto"; None: an epoch has at least eight batches.
        share: "static" is DDP's equal split: the same batches as `DataLoader` with `DistributedSampler` for equal
            `seed`, `shuffle` and `drop_last`, without calls of `set_epoch`. "dynamic" gives each batch to the worker
            that asks first, so every example appears once and fast workers compute more. Under strategies that wait for
            all, an epoch then ends for all workers together. None is "static", or "dynamic" where the optimizer was
            distributed (before) by a strategy that does not wait, and the data is shuffled.
        partition: "iid", "dirichlet:alpha=0.3", "label:each=2" or "group": the division of the examples among clients,
            which they do not leave. Under a federated strategy one pass of the loader is one round, in which the worker
            runs those of its clients that are drawn, one after the other (docs/howto/federated.md).
        clients: The number of clients; None: one on each worker.
        labels: Labels for `partition`, one for each example; None: the dataset's `labels` or `targets`, or the last
            item of every example.
        shuffle: Whether each epoch has a new order; None: yes, and for a stream with `shuffle_buffer`.
        shuffle_buffer: For a stream: mix so many consecutive examples at a time.
        read: For a stream: "each" (None) lets all workers read it, and each keeps its own examples. Shards of a stream
            are divided, if there are enough. "one": rank 0 reads it for all. "own": the stream divides itself.
        seed: The seed of the orders; None: that of the run (default: 0).
        drop_last: Whether to cut the epoch to a multiple of the number of workers, and to leave out an incomplete last
            batch; otherwise some examples appear twice.
        pin_memory: As in torch's DataLoader; None: True for a `device` that is a GPU.
        device: The device of batches. For a GPU the next batch is copied during the computation.

    The other arguments are those of torch's DataLoader.

    Returns:
        A loader with `len()` (batches per epoch), `epoch`, `set_epoch(epoch)` and `state_dict()`. Checkpoints contain
        its position.

    Raises:
        ConfigurationError: `quorate.join()` was not called; `share` or `partition` is unknown; the device does not
            exist; or another worker passed other data, another seed, or a sampler that draws otherwise. Also if the
            dataset is empty or has no length, or if the batch size is below 1, or larger than the shuffled dataset or
            (with `drop_last`) than the share.

    Example:
        >>> loader = quorate.loader(dataset, batch_size=8)
        >>> for inputs, targets in loader:
        ...     loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    """
    if share is not None and share not in SHARES:
        raise unknown("share", str(share), SHARES)
    arguments.check_dataset(dataset)
    arguments.check_choices(seed=seed, shuffle=True if shuffle is None else shuffle, drop_last=drop_last)
    there = device_from(device)
    place = here()
    context = place.context(DataContext)
    loading = arguments.Loading(
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=(there is not None and there.type == "cuda") if pin_memory is None else pin_memory,
        timeout=timeout,
        worker_init_fn=worker_init_fn,
        multiprocessing_context=multiprocessing_context,
        generator=generator,
        prefetch_factor=prefetch_factor,
        persistent_workers=persistent_workers,
        in_order=in_order,
    )
    if is_stream(dataset):
        check_stream(
            dataset,
            shuffle,
            shuffle_buffer,
            sampler=sampler,
            batch_sampler=batch_sampler,
            tokens_per_batch=tokens_per_batch,
            lengths=lengths,
            batch=None if batch == "fixed" else batch,
            max_batch_size=max_batch_size,
            partition=partition,
            clients=clients,
            labels=labels,
        )
        reads = read or "each"
        kind = kind_of_share(
            place.wire,
            context,
            share,
            reads,
            num_workers,
            outlives=place.context(DeathTolerance).survivors is not None,
        )
        number = context.made = context.made + 1
        order_seed = context.seed if seed is None else seed
        mixes = shuffle_buffer is not None
        stream = stream_loader(
            dataset,
            place,
            _share(place, kind, number, (), seed=order_seed, shuffle=mixes, drop_last=drop_last),
            number,
            loading,
            batch_size=batch_size,
            read=reads,
            seed=order_seed,
            drop_last=drop_last,
            shuffle_buffer=shuffle_buffer,
            device=there,
        )
        place.context(Loaders).add(number, stream, place.context(Starts))
        return stream
    for name, value in (("shuffle_buffer", shuffle_buffer), ("read", read)):
        if value is not None:
            raise ConfigurationError(f"{name}= is for streams, and {type(dataset).__name__} has a length and an index")
    shuffle = True if shuffle is None else shuffle
    deals_out = context.nobody_waits and context.needs_equal_shares is None and context.division is None
    usual = assignment.DYNAMIC if shuffle and deals_out else assignment.STATIC
    ends = getattr(dataset, "ends", None) if isinstance(dataset, OwnFiles) else None
    split = clients_from(
        partition, clients, dataset, labels, place.wire.size, context, share=share, files=ends is not None
    )
    if ends is not None and share is not None:
        raise ConfigurationError(f'share is "{share}", but every worker has its own files here: leave it out')
    chosen = assignment.OWN if ends is not None else (context.share if shuffle else None) or share or usual
    chosen = chosen if split is None else assignment.CLIENTS
    number = context.made = context.made + 1
    order_seed = context.seed if seed is None else seed
    choices: dict[str, Any] = {"seed": order_seed, "shuffle": shuffle, "drop_last": drop_last}
    examples = arguments.number_of_examples(dataset)
    sampled = _sampled(dataset, batch_size, sampler, batch_sampler, tokens_per_batch, lengths, order_seed, shuffle)
    if sampled is not None:
        chosen = _kind_with_sampler(sampler if batch_sampler is None else batch_sampler, chosen, share, place)
        batch_size = 1 if sampled.has_batches else batch_size
    if batch_size is None:
        raise ConfigurationError("quorate.loader needs batch_size, the number of examples per batch and per worker")
    own_share = (
        _share(place, chosen, number, ends or (), **choices)
        if split is None
        else split.share(place.wire, context, batch_size, **choices)
    )
    order = SeededOrder(examples, own_share) if sampled is None else sampled
    arguments.check_batch_size(batch_size, own_share, order.entries)
    if own_share.kind == assignment.BY_ROUND and (num_workers or there is not None or hasattr(dataset, "ask")):
        raise ConfigurationError(
            "under gradient-coding a batch follows from the round of its step, and none is fetched ahead; leave out "
            "num_workers, device and quorate.files"
        )
    if own_share.kind == assignment.KEPT and num_workers and not in_order:
        raise ConfigurationError('batch="kept" needs each worker\'s batches in their order; leave in_order=True')
    labelled = None if split is None else split.checksum
    choices |= (
        {}
        if sampled is None or own_share.kind == assignment.SAMPLED
        else {"first epoch of its sampler": sampled.checksum}
    )
    meets = check_same_data(
        place.wire, number, dataset, partition=partition, clients=clients, labels=labelled, **choices
    )
    if order.has_batches and batch == "auto":
        raise ConfigurationError('batch="auto" doubles batch_size, and here batches are drawn; leave batch out')
    grows = growing(
        place.wire, context, place.context(Growth), number, batch, max_batch_size, own_share, batch_size, order.entries
    )
    pauses = own_share.kind in (assignment.DYNAMIC, assignment.BY_ROUND) or (
        own_share.kind == assignment.KEPT and context.nobody_waits
    )
    batches = IndexedLoader(
        cast("Dataset[Any]", dataset),
        batch_size,
        own_share,
        order,
        loading,
        EpochMembers(place, number),
        place,
        pauses=pauses,
        device=there,
        growing=grows,
        meets=meets,
    )
    place.context(Loaders).add(number, batches, place.context(Starts))
    return batches


shard = loader
"""An alias, until 1.0."""


def _sampled(
    dataset: Any,
    batch_size: int | None,
    sampler: Any,
    batch_sampler: Any,
    tokens_per_batch: int | None,
    lengths: Any,
    seed: int,
    shuffle: bool,
) -> SampledOrder | None:
    """Return the order that is drawn by a sampler; None without one."""
    named = {"sampler": sampler, "batch_sampler": batch_sampler, "tokens_per_batch": tokens_per_batch}
    names = [name for name, value in named.items() if value is not None]
    if len(names) > 1:
        raise ConfigurationError(f"{' and '.join(names)} cannot be combined: each decides which examples are a batch")
    if not names or sampler is not None:
        if lengths is not None:
            raise ConfigurationError("lengths= belongs to tokens_per_batch=, and that is not given")
    elif batch_size is not None:
        raise ConfigurationError(f"{names[0]} and batch_size cannot be combined: each decides the size of a batch")
    if tokens_per_batch is not None:
        arguments.check_count("tokens_per_batch", tokens_per_batch, least=1)
        numbers = lengths_of(dataset, lengths)
        batch_sampler = BucketedBatches(numbers, tokens_per_batch, shuffle=shuffle)
    drawn = sampler if batch_sampler is None else batch_sampler
    if drawn is None:
        return None
    if isinstance(drawn, Iterator):
        raise ConfigurationError(
            f"{names[0]} is an iterator, which is empty after one epoch; pass a sampler, which can be iterated again"
        )
    return SampledOrder(drawn, arguments.number_of_examples(dataset), seed, has_batches=batch_sampler is not None)


def _kind_with_sampler(sampler: Any, chosen: str, share: str | None, place: Place) -> str:
    """Return the division of what a sampler draws. Raises `ConfigurationError` where it cannot be divided so."""
    if chosen in (assignment.OWN, assignment.CLIENTS):
        argument = "partition" if chosen == assignment.CLIENTS else 'files(..., read="own")'
        raise ConfigurationError(f"a sampler cannot be combined with {argument}, which decides who has which examples")
    ranks = ranks_of(sampler)
    if ranks is None:
        return chosen
    if share == assignment.DYNAMIC:
        raise ConfigurationError(
            f'{type(sampler).__name__} draws for one worker, and share="dynamic" gives batches to whoever asks first; '
            "leave share out, or pass a sampler that draws for all workers"
        )
    expected = (place.wire.rank, place.wire.size)
    if ranks != expected and place.wire.size > 1:
        raise ConfigurationError(
            f"{type(sampler).__name__} draws for rank {ranks[0]} of {ranks[1]}, and this is rank {expected[0]} of "
            f"{expected[1]}; pass num_replicas=world.size and rank=world.rank"
        )
    return assignment.SAMPLED


def _share(
    place: Place, kind: str, number: int, ends: tuple[int, ...], *, seed: int, shuffle: bool, drop_last: bool
) -> assignment.Share:
    """Return this worker's share; loaders are numbered in the order of their making, the same on all workers."""
    wire, context = place.wire, place.context(DataContext)
    size, own = (wire.size, wire.rank) if context.deals is None else context.deals
    redundancy = context.redundancy if shuffle else Redundancy()  # unshuffled data serves evaluation
    if redundancy.is_there and kind != assignment.STATIC:
        raise ConfigurationError(
            f'share="{kind}" cannot be combined with a strategy under which several workers compute the same '
            "batches; use "
            'share="static", and read no files by worker'
        )
    if redundancy.groups:
        size, own = redundancy.groups, redundancy.group_of(wire.rank, wire.size)
    choices: dict[str, Any] = {"size": size, "seed": seed, "shuffle": shuffle, "drop_last": drop_last}
    own_share = (own if context.replaced_rank is None or context.deals is not None else context.replaced_rank) % size
    if kind == assignment.OWN:
        if context.deals is not None:
            raise ConfigurationError(
                'files(..., read="own") gives every worker examples of its own, and those along the tensor axis of a '
                "mesh need the same; leave read= out"
            )
        if len(ends) != wire.size:
            raise ConfigurationError(
                f'files of {len(ends)} workers are not those of {wire.size}; call quorate.files(..., read="own") after '
                "quorate.join(), on all that begin together"
            )
        return assignment.OwnShare(rank=own_share, ends=ends, **choices)
    if kind == assignment.SAMPLED:
        return assignment.SampledShare(rank=wire.rank, **(choices | {"size": wire.size}))
    if redundancy.by_round:
        versioned = context.versioned
        assert versioned is not None, "a strategy of rounds has rounds"
        return assignment.ByRoundShare(
            rank=own, times=redundancy.batches, round_now=lambda: versioned.version, **choices
        )
    if redundancy.batches > 1:
        return assignment.RepeatedShare(rank=own, times=redundancy.batches, **choices)
    if kind == assignment.STATIC and context.division is not None:
        return assignment.KeptShare(rank=own_share, division=context.division, **choices)
    if kind == assignment.STATIC:
        return assignment.StaticShare(rank=own_share, **choices)
    baseline = context.needs_equal_shares
    if baseline is not None:
        raise ConfigurationError(
            f'{baseline} needs the same number of batches on every worker; use share="static" with it'
        )

    if context.division is not None:
        raise ConfigurationError(
            'share="dynamic" cannot be combined with batch="kept", which divides each step among the workers that '
            "live; leave share out"
        )
    replaying = place.context(Replaying)
    context.deals_out = True
    claims: assignment.Claims | assignment.ReplayedClaims = (
        assignment.Claims(wire, number, lambda: place.context(DeathTolerance).survivors is not None, context.record)
        if replaying.tape is None
        else assignment.ReplayedClaims(replaying, wire.rank, number)
    )
    return assignment.DynamicShare(
        rank=wire.rank,
        claim=claims.claim,
        claims=claims,
        **choices,
    )
