"""A program that runs a script alone for some steps, and measures its waits for data, and how fast its loader can be.

`quorate doctor --data` starts it, by `python -m quorate.launch.warm.loading ANSWER SCRIPT [ARGUMENT ...]`. The answer,
one JSON object, goes to the file ANSWER. Any `torch.utils.data.DataLoader` counts, also that of `quorate.loader`. After
the steps the loader of the training is made again with several numbers of processes, each of which delivers batches for
a few seconds while nothing is trained.
"""

from __future__ import annotations

import atexit
import importlib
import json
import statistics
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as of_torch

from quorate.core.resources import usable_cores
from quorate.launch.warm.measuring import end_at_once, live_alone

WARM_UP = 3
"""Steps that are left out: the first ones also start processes and allocate memory."""
FEWEST, MOST, SECONDS = 5, 200, 15.0
"""Steps that are measured: at least so many, and then until so many, or for so long."""
TRIAL_SECONDS, TRIAL_BATCHES = 3.0, 400
"""Duration of the trial of a number of loader processes, or batches, if those are sooner there."""
PROCESSES = (0, 1, 2, 4, 8, 16)


class Waits:
    """The seconds in which a script waits for loaders, and the loader that it has waited for most."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: the clock, in seconds."""
        self._now, self.seconds = now, 0.0
        self._loaders = WeakKeyDictionary[Any, DataLoader[Any]]()
        self._waited: dict[int, tuple[float, DataLoader[Any]]] = {}
        self.batch: Any = None
        """The newest batch."""
        self._indices: dict[int, deque[Any]] = {}

    def watch(self) -> None:
        """Observe every `DataLoader` of this process from now on."""
        loaders: Any = DataLoader
        iterators: Any = of_torch._BaseDataLoaderIter
        begin, advance, draw = loaders.__iter__, iterators.__next__, iterators._next_index

        def iterate(loader: DataLoader[Any]) -> Any:
            iterator = begin(loader)
            self._loaders[iterator] = loader
            return iterator

        def next_batch(iterator: Any) -> Any:
            since = self._now()
            try:
                self.batch = advance(iterator)
                return self.batch
            finally:
                self._note(self._loaders.get(iterator), self._now() - since)

        def next_index(iterator: Any) -> Any:
            index = draw(iterator)
            if (loader := self._loaders.get(iterator)) is not None:
                self._indices.setdefault(id(loader), deque(maxlen=TRIAL_BATCHES)).append(index)
            return index

        loaders.__iter__, iterators.__next__, iterators._next_index = iterate, next_batch, next_index

    def _note(self, loader: DataLoader[Any] | None, seconds: float) -> None:
        self.seconds += seconds
        if loader is not None:
            waited, _ = self._waited.get(id(loader), (0.0, loader))
            self._waited[id(loader)] = waited + seconds, loader

    def indices_of(self, loader: DataLoader[Any]) -> list[Any]:
        """Return the newest batches of indices that the loader has drawn."""
        return list(self._indices.get(id(loader), ()))

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The loader that the script has waited for most; None if it has none."""
        return max(self._waited.values(), key=lambda entry: entry[0], default=(0.0, None))[1]


class Steps:
    """Seconds of steps, from end to end, and of their waits for data."""

    def __init__(self, waits: Waits, now: Callable[[], float] = time.perf_counter) -> None:
        self._waits, self._now = waits, now
        self._ended, self._waited = now(), 0.0
        self.rows: list[tuple[float, float]] = []
        """Seconds of each step, and those of its waits."""

    def stepped(self) -> None:
        """A step has ended."""
        now, waited = self._now(), self._waits.seconds
        self.rows.append((now - self._ended, waited - self._waited))
        self._ended, self._waited = now, waited

    @property
    def measured(self) -> list[tuple[float, float]]:
        """The steps after those that are left out."""
        return self.rows[WARM_UP:]

    @property
    def is_enough(self) -> bool:
        """Whether steps have been measured for long enough."""
        count, seconds = len(self.measured), sum(seconds for seconds, _ in self.measured)
        return count >= FEWEST and (count >= MOST or seconds >= SECONDS)


@dataclass(frozen=True)
class Batches:
    """A batch sampler that repeats some batches for ever."""

    indices: Sequence[Any]

    def __iter__(self) -> Iterator[Any]:
        return cycle(self.indices)


def answer(steps: Steps, waits: Waits) -> dict[str, Any]:
    """Return the waits of the steps, and the rates of the loader with several numbers of processes."""
    loader, measured = waits.loader, steps.measured
    report: dict[str, Any] = {
        "steps": len(measured),
        "seconds": sum(seconds for seconds, _ in measured) / len(measured),
        "waited": sum(waited for _, waited in measured) / len(measured),
        "busy": statistics.median(seconds - waited for seconds, waited in measured),
        "loader": loader is not None,
    }
    if loader is not None:
        report |= {
            "processes": loader.num_workers,
            "batch_bytes": bytes_of(waits.batch),
            "trials": trials(loader, waits),
        }
    return report


def trials(loader: DataLoader[Any], waits: Waits) -> list[dict[str, Any]]:
    """Return batches per second of the loader, by number of processes, or why it cannot deliver any.

    The batches are further ones of its sampler. Those of `quorate.loader` are what the script has read, as a sampler of
    its own is for one pass.
    """
    most = max(4, 2 * usable_cores())
    numbers = sorted({*(count for count in PROCESSES if count <= most), loader.num_workers})
    batches = None
    if not isinstance(loader.dataset, IterableDataset):
        sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        is_ours = type(sampler).__module__.partition(".")[0] == "quorate"
        batches = Batches(waits.indices_of(loader) if is_ours else list(islice(iter(sampler), TRIAL_BATCHES)))
    rows: list[dict[str, Any]] = []
    for count in numbers:
        try:
            with warnings.catch_warnings(action="ignore"):  # of more processes than cores
                rows.append({"processes": count, "rate": rate_of(_made_again(loader, batches, count), count)})
        except Exception as error:  # whatever a dataset raises in another process
            rows.append({"processes": count, "rate": None, "error": f"{type(error).__name__}: {error}".split("\n")[0]})
    return rows


def _made_again(loader: DataLoader[Any], batches: Batches | None, processes: int) -> DataLoader[Any]:
    options: dict[str, Any] = {
        "num_workers": processes,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "worker_init_fn": loader.worker_init_fn,
        "generator": None,
    }
    if processes:
        options |= {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    if batches is None:
        options |= {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    elif loader.batch_sampler is None:
        options |= {"batch_size": None, "sampler": batches}
    else:
        options["batch_sampler"] = batches
    return DataLoader(loader.dataset, **options)


def rate_of(loader: DataLoader[Any], processes: int, now: Callable[[], float] = time.perf_counter) -> float:
    """Return batches per second. The first ones, which processes had ready, do not count."""
    iterator, begin, count = iter(loader), now(), 0
    ready = 0 if not processes else 1 + processes * (loader.prefetch_factor or 2)
    for _ in islice(iterator, 1 + ready):
        if now() - begin > TRIAL_SECONDS:
            break
    begin = now()
    for _ in islice(iterator, TRIAL_BATCHES):
        count += 1
        if now() - begin > TRIAL_SECONDS:
            break
    return count / max(now() - begin, 1e-9)


def bytes_of(batch: Any) -> int:
    """Return the bytes of the tensors in a batch: of lists, tuples, dicts and objects with `__dict__`."""
    if isinstance(batch, Tensor):
        return batch.numel() * batch.element_size()
    if isinstance(batch, Mapping):
        return sum(map(bytes_of, batch.values()))
    if isinstance(batch, list | tuple):
        return sum(map(bytes_of, batch))
    return sum(map(bytes_of, vars(batch).values())) if hasattr(batch, "__dict__") else 0


def main() -> NoReturn:
    """Do what the arguments say."""
    path, script, *arguments = sys.argv[1:]
    waits = Waits()
    steps, optimizers = Steps(waits), list[object]()
    is_over = False

    def stepped(optimizer: object, *_: Any) -> None:
        if not optimizers:
            optimizers.append(optimizer)
        if is_over or optimizer is not optimizers[0]:
            return
        steps.stepped()
        if steps.is_enough:
            keep()
            end_at_once()

    def keep() -> None:
        nonlocal is_over
        if is_over or len(steps.measured) < FEWEST:
            return
        is_over = True
        report = answer(steps, waits)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)

    atexit.register(keep)  # of a script that ends sooner
    register_optimizer_step_post_hook(stepped)
    waits.watch()
    live_alone(script, arguments)


if __name__ == "__main__":
    importlib.import_module("quorate.launch.warm.loading").main()  # not this copy, so that scripts can set limits
