"""What a script says of clients, held against its dataset and the world."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from quorate.core.clients import ClientTerms
from quorate.core.errors import ConfigurationError
from quorate.data.clients import ClientShare
from quorate.data.context import DataContext, data_context
from quorate.data.given import check_count
from quorate.data.partitions import labels_of, split
from quorate.wire.current import Place


@dataclass(frozen=True)
class ClientSplit:
    """A dataset on clients, not split yet: that takes the seed."""

    partition: str
    clients: int
    labels: Any
    examples: int

    @property
    def checksum(self) -> str | None:
        """Of the labels; None where the partition needs none."""
        return None if self.labels is None else f"(checksum {zlib.crc32(self.labels.tobytes()):08x})"

    def share(self, place: Place, batch_size: int, *, seed: int, shuffle: bool, drop_last: bool) -> ClientShare:
        """That of the worker of `place`."""
        context = data_context(place)
        size, own = place.wire.size, place.wire.rank if context.seat is None else context.seat
        return ClientShare(
            rank=own % size,
            size=size,
            seed=seed,
            shuffle=shuffle,
            drop_last=drop_last,
            examples_of=tuple(split(self.partition, self.labels, self.examples, self.clients, seed=seed)),
            batch_size=batch_size,
            terms=lambda: _terms(context),
        )


def clients_from(
    partition: str | None,
    clients: int | None,
    dataset: Any,
    labels: Any,
    place: Place,
    *,
    share: str | None,
    files: bool,
) -> ClientSplit | None:
    """What `shard` was told of clients; None where nothing was. Raises `ConfigurationError` for what does not go
    together."""
    if partition is None and clients is None:
        if labels is not None:
            raise ConfigurationError('labels= needs partition=, such as partition="label"')
        return None
    for given, name in ((share is not None, "share="), (files, 'files(..., read="own")')):
        if given:
            raise ConfigurationError(
                f"clients have examples of their own, so {name} cannot be combined with partition="
            )
    if data_context(place).deals is not None:
        raise ConfigurationError(
            "clients need whole replicas, but this model is divided along a mesh; use one worker per replica"
        )
    if clients is not None:
        check_count("clients", clients)
    text = "iid" if partition is None else partition
    found = None if text.startswith("iid") else labels_of(dataset, labels)
    count = clients
    if count is None:
        count = len(set(found.tolist())) if text == "group" and found is not None else place.wire.size
    return ClientSplit(text, count, found, len(dataset))


def _terms(context: DataContext) -> ClientTerms | None:
    if context.bypassed is not None:
        raise ConfigurationError(
            f"a world of one worker leaves {context.bypassed} out, and its clients with it; give quorate.distribute "
            'with_one_worker="algorithm" to play clients in one process'
        )
    return context.client_terms
