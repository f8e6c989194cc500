"""Arguments of `loader`: checks of its dataset, and options for fetching examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from typing import Any, Protocol, cast

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from quorate.core.errors import ConfigurationError
from quorate.data.assignment import Share


class Collating(Protocol):
    """A dataset that forms batches itself."""

    def collate(self, labelled: Any) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Loading:
    """Options of torch's DataLoader, with its names, meanings and defaults."""

    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: str | BaseContext | None = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    in_order: bool = True

    def check(self) -> None:
        """Raise `ConfigurationError` for options that DataLoader would refuse late, or in other words."""
        check_count("num_workers", self.num_workers)
        for name in ("collate_fn", "worker_init_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ConfigurationError(f"{name} must be a function, not a {type(value).__name__}")
        if self.timeout and not self.num_workers:
            raise ConfigurationError(
                f"timeout={self.timeout} limits waits for the processes of a DataLoader, and num_workers is 0; leave "
                "timeout out, or set num_workers"
            )
        if self.generator is not None and not isinstance(self.generator, torch.Generator):
            raise ConfigurationError(f"generator must be a torch.Generator, not a {type(self.generator).__name__}")

    def over(self, dataset: Dataset[Any], batches: Any, labelled: Collating | None) -> DataLoader[Any]:
        """Return a DataLoader over these index lists. Raises `ConfigurationError` for options it does not take."""
        try:
            options = {**vars(self), "collate_fn": labelled.collate if labelled else self.collate_fn}
            return DataLoader(cast("Dataset[Any]", labelled or dataset), batch_sampler=batches, **options)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"torch's DataLoader refuses these arguments: {error}") from None


def check_count(name: str, value: object, least: int = 0) -> None:
    """Raise `ConfigurationError` unless `value` is a number of things, at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be a whole number (at least {least}), not {value!r}")


def check_dataset(dataset: object) -> None:
    """Raise `ConfigurationError` for an object that is no map-style dataset, but easily taken for one."""
    kind = type(dataset).__name__
    if isinstance(dataset, type):
        raise ConfigurationError(f"loader takes a dataset, not the class {dataset.__name__}; create an instance of it")
    is_loader = isinstance(dataset, DataLoader) and not hasattr(dataset, "load_state_dict")
    if is_loader or isinstance(getattr(dataset, "torch_loader", None), DataLoader):
        raise ConfigurationError("loader takes a dataset and creates the loader itself; give the DataLoader's .dataset")
    if isinstance(dataset, str | bytes):
        raise ConfigurationError(f"loader takes a dataset, not a {kind}; open the file first")


def number_of_examples(dataset: Any) -> int:
    """Return the length of `dataset`. Raises `ConfigurationError` where it is unknown or zero."""
    kind = type(dataset).__name__
    has_index = hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")
    if not (hasattr(dataset, "__len__") and has_index):
        raise ConfigurationError(f"loader needs a dataset with a length and an index, or a stream, and not a {kind}")
    try:
        examples = len(dataset)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise ConfigurationError(f"the dataset ({kind}) cannot tell its length: {error}") from None
    if examples == 0:
        raise ConfigurationError(f"the dataset ({kind}) is empty; there is nothing to load")
    return examples


def check_choices(*, seed: object, **choices: object) -> None:
    """Raise `ConfigurationError` for a seed that is no whole number, and for other choices than True or False."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63):
        raise ConfigurationError(
            f"seed must be a whole number of 64 bits, or None for the seed of the run, not {seed!r}"
        )
    for name, value in choices.items():
        if not (isinstance(value, bool) or (isinstance(value, int) and value in (0, 1))):
            raise ConfigurationError(f"{name} must be True or False, not {value!r}")


def check_batch_size(batch_size: object, share: Share, examples: int) -> None:
    """Raise `ConfigurationError` for a batch size that is no number, or larger than the number of examples."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigurationError(
            f"batch_size must be a whole number of at least 1 (it is per worker), not {batch_size}"
        )
    available = share.length(examples)
    if share.drop_last and batch_size > available:
        smaller = f"use a batch_size of at most {available} or " if available else ""
        raise ConfigurationError(
            f"batch_size {batch_size} is larger than this rank's share of {available} examples; drop_last=True would "
            f"leave no batch: {smaller}drop_last=False"
        )
    if share.shuffle and batch_size > examples:  # unshuffled data serves evaluation, in batches of any size
        raise ConfigurationError(
            f"batch_size {batch_size} is larger than the whole dataset of {examples} examples; it must be at most "
            f"{examples}"
        )


class Labelled(Dataset[Any]):
    """`dataset`, with each batch accompanied by the indices of its examples; for use with `collate`."""

    def __init__(self, dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self._dataset: Any = dataset
        self._collate: Callable[[list[Any]], Any] = collate_fn or default_collate

    def __getitems__(self, indices: list[int]) -> tuple[list[int], list[Any]]:
        together = getattr(self._dataset, "__getitems__", None)
        return indices, [self._dataset[index] for index in indices] if together is None else together(indices)

    def collate(self, labelled: Any) -> tuple[list[int], Any]:
        """Return (indices, batch)."""
        indices, examples = labelled
        return indices, self._collate(examples)
