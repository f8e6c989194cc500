"""Named requests between workers, answered by a task beside the training thread.

The task answers one request at a time, in the order of arrival, so a served function needs no lock against itself. The
script guards data that both the function and the training thread write to.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor

from quorate.checkpoint.encoding import decoded, encoded
from quorate.core.contracts import Message, Wire, Work
from quorate.core.errors import ConfigurationError, PeerFailed, QuorateError, RequestFailed, WireTimeout
from quorate.core.fields import Fields, Header
from quorate.core.settings import wanted_in_words
from quorate.wire.attendant import Attendant
from quorate.wire.frames import HEADER_LIMIT

_LARGE = 1 << 16
"""Bytes from which a tensor is sent in memory that the workers of one host share."""
_STRICT = ConfigDict(arbitrary_types_allowed=True, strict=True)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Registered(Fields):
    """The message of a worker to its own task that a function is served from now on."""

    served: str


@dataclass(frozen=True, slots=True)
class Asked(Fields):
    """A request; its tensors are those in the arguments."""

    name: str
    number: int
    said: str  # the JSON of the arguments, see `checkpoint.encoding`


@dataclass(frozen=True, slots=True)
class Answered(Fields):
    """An answer; its tensors are those in the result."""

    said: str  # the JSON of the result


@dataclass(frozen=True, slots=True)
class Failed(Fields):
    """The answer to a request that failed."""

    kind: Literal["refused", "raised", "ended"]
    why: str

    def header(self) -> dict[str, Any]:
        return {"failed": {"kind": self.kind, "why": self.why}}

    @classmethod
    def read(cls, header: Header, **others: Any) -> Failed:
        return cls(**header["failed"])


class Requests:
    """Requests of one worker, and its answers to the requests of others; its training thread calls `serve` and `ask`.

    Cost: a thread per worker that serves or asks; a request is one message, and so is its answer. Tensors of at least
    64 KiB are copied once; between workers of one host they are not sent, but shared.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._number = 0
        self._served: dict[str, _Served] = {}
        self._unserved: list[tuple[int, Message]] = []
        self._lock = threading.Lock()
        self._questions = Attendant(wire, "served", self._take_message)

    def serve(self, name: str, function: Callable[..., Any]) -> None:
        """Let `function` answer requests under `name`, those that have already arrived among them.

        Raises `ConfigurationError` for a name that is already served.
        """
        with self._lock:
            if name in self._served:
                raise ConfigurationError(f'"{name}" is already served; give the other function another name')
            self._served[name] = _Served.of(name, function)
        self._questions.send(Message(header=Registered(name).header()), self.wire.rank)

    def ask(
        self, rank: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None = None
    ) -> Answer:
        """Ask worker `rank`. Raises `ConfigurationError` for arguments that cannot be sent, and as `check`."""
        if self._questions.is_here:
            raise ConfigurationError(
                "a served function cannot ask other workers, since they may be waiting for it: "
                f'"{name}" was asked inside one'
            )
        self.check()
        self._number += 1
        refusal = f'"{name}" cannot be asked with'
        said, tensors = _packed(self.wire, {"args": list(args), "kwargs": kwargs}, refusal)
        self._questions.send(Message(tensors, Asked(name, self._number, said).header(), shared=True), rank)
        return Answer(self, rank, name, self._number, timeout)

    def check(self) -> None:
        """Raise the error that has ended the task, if there is one."""
        self._questions.check()

    def close(self) -> None:
        """Answer no more: requests that wait for an answer fail, since this worker has ended."""
        self._questions.close()
        for source, message in self._unserved:
            self._reply(source, Asked.read(message.header), Failed("ended", ""))

    # -- the task

    def _take_message(self, source: int, message: Message) -> None:
        if "served" in message.header:
            waiting, self._unserved = self._unserved, []
            for unserved in waiting:
                self._take_message(*unserved)
            return
        asked = Asked.read(message.header)
        with self._lock:
            served = self._served.get(asked.name)
        if served is None:
            self._unserved.append((source, message))
            return
        arguments = _unpacked(asked.said, message.tensors)
        try:
            said, tensors = _packed(self.wire, served(arguments["args"], arguments["kwargs"]), "an answer cannot have")
        except _Refused as error:
            self._reply(source, asked, Failed("refused", str(error)))
        except Exception as error:  # the asking worker raises it; this worker goes on
            self._reply(source, asked, Failed("raised", f"{type(error).__name__}: {error}"))
        else:
            self._reply(source, asked, Answered(said), tensors)

    def _reply(self, source: int, asked: Asked, answer: Answered | Failed, tensors: tuple[Tensor, ...] = ()) -> None:
        message = Message(tensors, answer.header(), shared=isinstance(answer, Answered))
        self.wire.send(message, source, f"answer/{asked.number}")


class Answer:
    """The answer to a request, which may not have arrived yet; a `core.contracts.Work`."""

    def __init__(self, requests: Requests, rank: int, name: str, number: int, timeout: float | None) -> None:
        self._requests, self._rank, self._name, self._timeout = requests, rank, name, timeout
        self._work: Work[tuple[int, Message]] | None = requests.wire.receive(rank, f"answer/{number}")
        self._answer: Any = None
        self._error: QuorateError | None = None

    def done(self) -> bool:
        """Return whether `wait` returns, or raises, at once."""
        return self._work is None or self._work.done()

    def wait(self, timeout: float | None = None) -> Any:
        """Return the answer after at most `timeout` seconds (None: those passed to `ask`, else the world's time limit).

        Raises `RequestFailed` if the served function raised, `ConfigurationError` if it does not take the arguments,
        `PeerFailed` if the other worker has died or ended, and `WireTimeout`.
        """
        if self._work is not None:
            limit = next((x for x in (timeout, self._timeout) if x is not None), self._requests.wire.timeout)
            try:
                _, message = self._work.wait(limit)
            except WireTimeout:
                raise WireTimeout(
                    f"rank {self._requests.wire.rank} waited {limit:g} s for rank {self._rank} to answer "
                    f'"{self._name}"',
                    [self._rank],
                ) from None
            self._work = None
            self._read(message)
        if self._error is not None:
            raise self._error
        return self._answer

    def _read(self, message: Message) -> None:
        if "failed" not in message.header:
            self._answer = _unpacked(Answered.read(message.header).said, message.tensors)
            return
        failed = Failed.read(message.header)
        if failed.kind == "refused":
            self._error = ConfigurationError(f'"{self._name}" of rank {self._rank}: {failed.why}')
        elif failed.kind == "ended":
            self._error = PeerFailed(f'rank {self._rank} ended before it answered "{self._name}"', [self._rank])
        else:
            why = f'"{self._name}" of rank {self._rank} raised {failed.why}'
            self._error = RequestFailed(why, [self._rank])


@dataclass(frozen=True)
class _Served:
    """A served function, its signature, and a validator for each annotation."""

    function: Callable[..., Any]
    signature: inspect.Signature
    types: Mapping[str, TypeAdapter[Any]]

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> _Served:
        """Raises `ConfigurationError` for a function without a readable signature or readable annotations."""
        try:
            signature = inspect.signature(function, eval_str=True)
            hints = get_type_hints(function if inspect.isroutine(function) else type(function).__call__)
            types = {parameter: TypeAdapter[Any](hint, config=_STRICT) for parameter, hint in hints.items()}
        except (TypeError, ValueError, NameError, QuorateError) as error:
            raise ConfigurationError(f'what is served as "{name}" is not a function with types: {error}') from None
        return cls(function, signature, types)

    def __call__(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Raises `_Refused` for arguments, or a result, that do not fit the signature and annotations."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _Refused(f"{error}; it is {self.signature}") from None
        for parameter, value in bound.arguments.items():
            if self.signature.parameters[parameter].kind not in _VARIADIC:
                self._check(parameter, value, f"{parameter} is")
        answer = self.function(*args, **kwargs)
        self._check("return", answer, "the answer is")
        return answer

    def _check(self, parameter: str, value: Any, subject: str) -> None:
        if parameter not in self.types:
            return
        try:
            self.types[parameter].validate_python(value)
        except ValidationError as error:
            shown = f"a {type(value).__name__}" if isinstance(value, Tensor) else repr(value)
            wanted = wanted_in_words(error.errors()[0]["msg"])
            raise _Refused(f"{subject} {shown[:200]}; it should be {wanted}") from None


class _Refused(Exception):
    """Arguments or an answer do not fit the signature or annotations of the served function."""


def _packed(wire: Wire, value: Any, cannot: str) -> tuple[str, tuple[Tensor, ...]]:
    tensors: list[Tensor] = []

    def put(name: str, x: Tensor) -> str:
        memory = torch.empty(x.shape, dtype=x.dtype) if x.nbytes < _LARGE else _shared(wire, x)
        tensors.append(memory.copy_(x))
        return str(len(tensors) - 1)

    text = json.dumps(encoded(value, "", put, cannot=cannot))
    if 2 * len(text) > HEADER_LIMIT:
        raise ConfigurationError(f"{cannot} {len(text)} bytes of numbers and text; give many numbers as a tensor")
    return text, tuple(tensors)


def _shared(wire: Wire, x: Tensor) -> Tensor:
    return wire.empty(x.numel(), x.dtype).view(x.shape)


def _unpacked(text: str, tensors: Sequence[Tensor]) -> Any:
    return decoded(text, {str(place): x for place, x in enumerate(tensors)})
