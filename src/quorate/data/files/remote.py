"""Files that one worker reads for all: the others request examples from it, over the wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import BadFile, ConfigurationError, MissingExtra

_TAG = "examples"


def packed(example: Any, tensors: list[Tensor]) -> Any:
    """Return `example` as JSON, with its tensors and bytes appended to `tensors`."""
    if isinstance(example, Tensor):
        tensors.append(example)
        return {"tensor": len(tensors) - 1}
    if isinstance(example, bytes):
        tensors.append(torch.frombuffer(bytearray(example), dtype=torch.uint8) if example else torch.empty(0))
        return {"bytes": len(tensors) - 1}
    if isinstance(example, Mapping):
        return {"dict": [[key, packed(value, tensors)] for key, value in example.items()]}
    if isinstance(example, tuple | list):
        return {type(example).__name__: [packed(value, tensors) for value in example]}
    return {"plain": example}


def unpacked(packed_example: Mapping[str, Any], tensors: Sequence[Tensor]) -> Any:
    """Return the example that was `packed`."""
    ((kind, value),) = packed_example.items()
    if kind == "tensor":
        return tensors[value].clone()
    if kind == "bytes":
        return bytes(tensors[value].to(torch.uint8).tolist())
    if kind == "dict":
        return {key: unpacked(each, tensors) for key, each in value}
    if kind in ("tuple", "list"):
        items = [unpacked(each, tensors) for each in value]
        return tuple(items) if kind == "tuple" else items
    return value


class Reader:
    """A task beside one worker that answers the others; `read` returns an example by its number."""

    def __init__(self, wire: Wire, read: Callable[[int], Any]) -> None:
        self._wire, self._read = wire, read
        self._questions = wire.channel("questions")
        self._task = wire.spawn(self._answer, "questions")

    def _answer(self, wire: Wire) -> None:
        while True:
            try:
                source, message = wire.receive(None, _TAG).wait(wire.timeout)
            except TimeoutError:
                continue
            if "close" in message.header:
                return
            tensors: list[Tensor] = []
            header: dict[str, Any]
            try:
                header = {"examples": [packed(self._read(number), tensors) for number in message.header["numbers"]]}
            except (BadFile, MissingExtra) as error:
                header, tensors = {"error": str(error)}, []
            self._wire.send(
                Message(tuple(tensors), header, shared=True), source, f"{_TAG}/{message.header['sequence']}"
            )

    def close(self) -> None:
        """End the task."""
        self._questions.send(Message(header={"close": True}), self._wire.rank, _TAG)
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
        header = {"sequence": self._sequence, "numbers": [int(number) for number in numbers]}
        self._questions.send(Message(header=header), self._reader, _TAG)
        self._asked[tuple(numbers)] = self._wire.receive(self._reader, f"{_TAG}/{self._sequence}")

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        if get_worker_info() is not None:
            raise ConfigurationError(
                'with read="one" each worker receives its examples over the network; use num_workers=0'
            )
        if tuple(numbers) not in self._asked:
            self.ask(numbers)
        _, message = self._asked.pop(tuple(numbers)).wait()
        if "error" in message.header:
            raise BadFile(message.header["error"], (self._reader,))
        examples = [unpacked(each, message.tensors) for each in message.header["examples"]]
        return examples if self._transform is None else [self._transform(each) for each in examples]

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"there is no example {number} of {len(self)}")
        return self.__getitems__([number % len(self)])[0]
