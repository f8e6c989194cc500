"""Parts of a stream that can be read separately: the shards, files or archives of which it consists."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from quorate.core.errors import ConfigurationError
from quorate.data.streams.reading import is_stateful


class Parts(ABC):
    """The parts of a stream, numbered from 0."""

    count: int
    knows_place = True
    """Whether `state_dict()` of a part is all of its state."""

    @abstractmethod
    def stream(self, part: int) -> Any:
        """Return the stream of one part."""


class WholeStream(Parts):
    """A stream without parts."""

    count = 1

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def stream(self, part: int) -> Any:
        return self._stream


class Shards(Parts):
    """The shards of a stream with `num_shards` and `shard(num_shards, index)`, as in Hugging Face `datasets`.

    A division by `split_dataset_by_node` is undone. Its shuffle buffer is not in its state, so such streams are read on
    to their places.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.count = stream, int(stream.num_shards)
        if getattr(stream, "_distributed", None) is not None:
            self._stream = copy.copy(stream)
            self._stream._distributed = None
            self.count = int(self._stream.num_shards)
        self.knows_place = not _mixes(getattr(stream, "_ex_iterable", None))

    def stream(self, part: int) -> Any:
        return self._stream if self.count == 1 else self._stream.shard(num_shards=self.count, index=part)


def _mixes(iterable: Any) -> bool:
    while iterable is not None:
        if "BufferShuffled" in type(iterable).__name__:
            return True
        iterable = getattr(iterable, "ex_iterable", None)
    return False


class Archives(Parts):
    """The archives of a `webdataset.WebDataset` (or `DataPipeline`), without its division by nodes and processes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._urls: Sequence[str] = list(stream.pipeline[0].urls)
        self.count = len(self._urls)

    def stream(self, part: int) -> Any:
        archive = copy.copy(self._stream)
        source = copy.copy(archive.pipeline[0])
        source.urls = [self._urls[part]]
        archive.pipeline = [source, *(stage for stage in archive.pipeline[1:] if not _divides(stage))]
        return archive


_DIVISIONS = ("split_by_node", "split_by_worker", "single_node_only")


def _divides(stage: Any) -> bool:
    return getattr(stage, "__name__", None) in _DIVISIONS


class Indexed(Parts):
    """The shards of a MosaicML `StreamingDataset`, whose examples have numbers."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._sizes = stream, [int(size) for size in stream.samples_per_shard]
        self.count = len(self._sizes)

    def stream(self, part: int) -> Any:
        return _Numbered(self._stream, sum(self._sizes[:part]), self._sizes[part])


class _Numbered:
    """Consecutive examples of an indexed dataset, with a place."""

    def __init__(self, dataset: Any, first: int, count: int) -> None:
        self._dataset, self._first, self._count, self._at = dataset, first, count, 0
        self._begin = 0

    def __iter__(self) -> Iterator[Any]:
        self._at, self._begin = self._begin, 0
        while self._at < self._count:
            self._at += 1
            yield self._dataset[self._first + self._at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"items": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._begin = state["items"]


def parts_of(stream: Any) -> Parts:
    """Return the parts of a stream. Raises `ConfigurationError` for a number of shards that is none."""
    pipeline = getattr(stream, "pipeline", None)
    if isinstance(pipeline, list) and pipeline and hasattr(pipeline[0], "urls"):
        return Archives(stream)
    if hasattr(stream, "samples_per_shard") and hasattr(stream, "__getitem__"):
        if getattr(stream, "shuffle", False):
            raise ConfigurationError(
                "a StreamingDataset with shuffle=True is ordered for the workers that it sees; create it with "
                "shuffle=False, and pass shuffle_buffer= to quorate.loader"
            )
        return Indexed(stream)
    if callable(getattr(stream, "shard", None)) and hasattr(stream, "num_shards"):
        count = stream.num_shards
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ConfigurationError(f"num_shards of a stream must be a whole number of at least 1, not {count!r}")
        return Shards(stream)
    return WholeStream(stream)


def is_stream(dataset: Any) -> bool:
    """Return whether a dataset is read in order only, as it has no length and index that loaders can use."""
    from torch.utils.data import IterableDataset

    if isinstance(dataset, IterableDataset):
        return True
    has_index = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    return not (hasattr(dataset, "__len__") and has_index) and (hasattr(dataset, "__iter__") or is_stateful(dataset))
