"""Many files as one dataset: each worker reads them, one worker reads them for all, or each has files of its own."""

from __future__ import annotations

import bisect
import fcntl
import hashlib
import itertools
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import BadFile, ConfigurationError, MissingExtra
from quorate.core.fields import Fields
from quorate.core.telling import tell
from quorate.data.files.kinds import Kind, Opened
from quorate.data.files.listing import Listing
from quorate.wire.attendant import CLOSE

OPEN = 16
"""Files that one process keeps open."""
TAG = "examples"


@dataclass(frozen=True, slots=True)
class Question(Fields):
    """The message to the worker that reads for all; it answers under the tag of `sequence`."""

    sequence: int | str
    numbers: Sequence[Any]  # open: examples by number, or what else the reader's `read` takes


@dataclass(frozen=True, slots=True)
class Answer(Fields):
    """The answer to a question; its tensors are those of the examples."""

    examples: Sequence[Mapping[str, Any]] = ()  # open: the form of `packed`
    error: str | None = None  # in place of the examples

    def header(self) -> dict[str, Any]:
        return {"examples": self.examples} if self.error is None else {"error": self.error}

    @classmethod
    def take(cls, work: Work[tuple[int, Message]]) -> list[Any]:
        """Return the examples of an answer under way. Raises `BadFile` where the reader could not read them."""
        reader, message = work.wait()
        answer = cls.read(message.header)
        if answer.error is not None:
            raise BadFile(answer.error, (reader,))
        return [unpacked(each, message.tensors) for each in answer.examples]


class Files(Dataset[Any]):
    """Examples of files, one file after the other in order of their names. Made by `files`; may be pickled."""

    def __init__(
        self,
        listing: Listing,
        kind: Kind,
        counts: Sequence[int],
        *,
        rank: int,
        skips: bool,
        cache: Cache | None,
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self.folder, self.names, self.kind = listing.folder, listing.names, kind
        self.counts = tuple(counts)
        self._ends = list(itertools.accumulate(counts))
        self._rank, self._skips, self._cache, self._transform = rank, skips, cache, transform
        self._open: OrderedDict[int, Opened] = OrderedDict()
        self._bad: set[int] = set()
        self._lock = Lock()
        """Guards open files, which another thread may read for other workers."""

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no example {number} of {len(self)}")
        example = self.read(number % len(self))
        return example if self._transform is None else self._transform(example)

    def read(self, number: int) -> Any:
        """Return example `number` as it is in its file; or, with `skips`, the next readable one."""
        for tried in range(len(self)):
            place = (number + tried) % len(self)
            file = bisect.bisect_right(self._ends, place)
            try:
                with self._lock:
                    return self._opened(file)[place - (self._ends[file - 1] if file else 0)]
            except MissingExtra:
                raise
            except Exception as error:  # readers raise what they like for a damaged file
                sentence = f"rank {self._rank} cannot read {self.folder / self.names[file]}: {error}"
                if not self._skips:
                    raise BadFile(
                        f'{sentence}; repair it, or skip such examples with on_bad_file="skip"', (self._rank,)
                    ) from error
                if file not in self._bad:
                    self._bad.add(file)
                    tell(f"quorate: {sentence}; using the next example\n")
        raise BadFile(f"rank {self._rank} cannot read any of the files in {self.folder}", (self._rank,))

    def _opened(self, file: int) -> Opened:
        if file not in self._open:
            path = self.folder / self.names[file]
            self._open[file] = self.kind.open(path if self._cache is None else self._cache.near(path), self.names[file])
            if len(self._open) > OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(file)
        return self._open[file]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_open", "_lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= {**state, "_open": OrderedDict(), "_lock": Lock()}


def packed(example: Any, tensors: list[Tensor]) -> Any:
    """Return `example` as JSON, with its tensors and bytes appended to `tensors`."""
    if isinstance(example, Tensor):
        tensors.append(example)
        return {"tensor": len(tensors) - 1}
    if isinstance(example, np.ndarray | np.generic):
        tensors.append(torch.from_numpy(np.array(example)))
        return {"array": len(tensors) - 1}
    if isinstance(example, bytes):
        tensors.append(torch.frombuffer(bytearray(example), dtype=torch.uint8) if example else torch.empty(0))
        return {"bytes": len(tensors) - 1}
    if isinstance(example, Mapping):
        return {"dict": [[key, packed(value, tensors)] for key, value in example.items()]}
    if isinstance(example, tuple | list):
        return {type(example).__name__: [packed(value, tensors) for value in example]}
    if example is None or isinstance(example, bool | int | float | str):
        return {"plain": example}
    raise BadFile(
        f"examples that one worker reads for all can be tensors, arrays, numbers, text, bytes, and lists, tuples and "
        f"dicts of these, and not a {type(example).__name__}; convert it before"
    )


def unpacked(packed_example: Mapping[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Return the example that was `packed`."""
    ((kind, value),) = packed_example.items()
    if kind == "tensor":
        return tensors[value].clone()
    if kind == "array":
        return tensors[value].clone().numpy()
    if kind == "bytes":
        return bytes(tensors[value].to(torch.uint8).tolist())
    if kind == "dict":
        return {key: unpacked(each, tensors) for key, each in value}
    if kind in ("tuple", "list"):
        items = [unpacked(each, tensors) for each in value]
        return tuple(items) if kind == "tuple" else items
    return value


class Reader:
    """A task beside one worker that answers the others; `read` returns an example by its number, or the question."""

    def __init__(self, wire: Wire, read: Callable[[Any], Any]) -> None:
        self._wire, self._read = wire, read
        self._questions = wire.channel("questions")
        self._task = wire.spawn(self._answer, "questions")

    def _answer(self, wire: Wire) -> None:
        while True:
            try:
                source, message = wire.receive(None, TAG).wait(wire.timeout)
            except TimeoutError:
                continue
            if "close" in message.header:
                return
            question, tensors = Question.read(message.header), list[Tensor]()
            try:
                answer = Answer([packed(self._read(number), tensors) for number in question.numbers])
            except (BadFile, MissingExtra) as error:
                answer, tensors = Answer(error=str(error)), []
            message = Message(tuple(tensors), answer.header(), shared=True)
            self._wire.send(message, source, f"{TAG}/{question.sequence}")

    def close(self) -> None:
        """End the task."""
        self._questions.send(CLOSE, self._wire.rank, TAG)
        self._task.wait()


class RemoteFiles(Dataset[Any]):
    """The examples that worker `reader` reads. For the worker's process only, as they come over its wire."""

    def __init__(self, wire: Wire, reader: int, length: int, transform: Callable[[Any], Any] | None) -> None:
        self._wire, self._reader, self._length, self._transform = wire, reader, length, transform
        self._questions = wire.channel("questions")
        self._asked: dict[tuple[int, ...], Work[tuple[int, Message]]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return self._length

    def ask(self, numbers: Sequence[int]) -> None:
        """Request examples that are fetched soon."""
        self._sequence += 1
        question = Question(self._sequence, [int(number) for number in numbers])
        self._questions.send(Message(header=question.header()), self._reader, TAG)
        self._asked[tuple(numbers)] = self._wire.receive(self._reader, f"{TAG}/{self._sequence}")

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if get_worker_info() is not None:
            raise ConfigurationError(
                'with read="one" each worker receives its examples over the network; use num_workers=0'
            )
        if tuple(numbers) not in self._asked:
            self.ask(numbers)
        examples = Answer.take(self._asked.pop(tuple(numbers)))
        return examples if self._transform is None else [self._transform(each) for each in examples]

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no example {number} of {len(self)}")
        return self.__getitems__([number % len(self)])[0]


class OwnFiles(Dataset[Any]):
    """The examples of all workers, in order of rank, of which this one can read its own. `read` returns one of these by
    its number among them. `loader` gives each worker its own examples."""

    def __init__(self, read: Callable[[int], Any], rank: int, counts: Sequence[int]) -> None:
        self._own, self._rank = read, rank
        self.ends = tuple(itertools.accumulate(counts))
        """The number of the examples of each worker and those before it, by rank."""

    def __len__(self) -> int:
        return self.ends[-1]

    def __getitem__(self, number: int) -> Any:
        begin = self.ends[self._rank - 1] if self._rank else 0
        if not begin <= number < self.ends[self._rank]:
            raise IndexError(
                f"rank {self._rank} has the examples from {begin} to before {self.ends[self._rank]}, and not {number}"
            )
        return self._own(number - begin)


@dataclass(frozen=True)
class Cache:
    """A cache in `folder`. A copy is identified by path, size and time of its original."""

    folder: Path

    def near(self, path: Path) -> Path:
        """Return a copy of `path`; where there is no room for one, `path` itself, with a message."""
        about = path.stat()
        identity = f"{path.resolve()}\n{about.st_size}\n{about.st_mtime_ns}"
        copy = self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}{path.suffix}"
        if _is_whole(copy, about.st_size):
            return copy
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{copy.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # goes with the process
                if not _is_whole(copy, about.st_size):
                    self._fetch(path, copy)
        except OSError as error:
            tell(f"quorate: {path} is read where it is, and not kept in {self.folder}: {error}\n")
            return path
        return copy

    def _fetch(self, path: Path, copy: Path) -> None:
        new = copy.with_name(f"{copy.name}.new")
        try:
            shutil.copyfile(path, new)
            os.replace(new, copy)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def _is_whole(copy: Path, size: int) -> bool:
    try:
        return copy.stat().st_size == size
    except OSError:
        return False
