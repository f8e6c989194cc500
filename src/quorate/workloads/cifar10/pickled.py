"""A pickle read as data: its instructions are looked at one by one, and nothing that it names is imported or called.

CIFAR-10's python version is pickled, and unpickling runs whatever a file says. Here a small stack machine knows the
instructions that dictionaries, lists, strings, whole numbers and arrays of bytes are made of (protocol 2, as Python 2
wrote it, or Python 3); five names stand for themselves; everything else is refused.
"""

from __future__ import annotations

import pickletools
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "kind",
    "numpy dtype": "dtype",
    "_codecs encode": "encode",
}
"""The only names a file may have in it, and what they stand for."""


class NotPlainData(ValueError):
    """The file holds something else than plain data; the message says what, to be put after "it"."""


@dataclass(frozen=True)
class _Name:
    meaning: str


@dataclass
class _Array:
    """An array of bytes, before and after its content is known."""

    content: NDArray[np.uint8] | None = None


@dataclass(frozen=True)
class _Bytes:
    """The dtype uint8, the only one."""


@dataclass
class _Machine:
    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def since_mark(self) -> list[Any]:
        begin = self.marks.pop()
        items = self.stack[begin:]
        del self.stack[begin:]
        return items

    def many(self, number: int) -> None:
        """The last `number` things become one tuple."""
        if number > len(self.stack):
            raise IndexError(number)
        self.stack[len(self.stack) - number :] = [tuple(self.stack[len(self.stack) - number :])]


def read(data: bytes) -> Any:
    """What was pickled. All strings come as text, one character for each byte of a byte string.

    Raises `NotPlainData` for everything that is not whole and plain.
    """
    machine = _Machine()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of escapes in what is no text at all
            for opcode, argument, _ in pickletools.genops(data):
                _carry_out(machine, opcode.name, argument)
        (result,) = machine.stack
    except NotPlainData:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise NotPlainData("is damaged or cut off") from error
    return _finished(result)


def _finished(thing: Any) -> Any:
    """An array, or a dictionary with arrays in it, as numpy's; anything else as it is."""
    if isinstance(thing, _Array):
        return thing.content
    if isinstance(thing, dict):
        return {key: value.content if isinstance(value, _Array) else value for key, value in thing.items()}
    return thing


def _named(machine: _Machine, argument: str) -> None:
    if argument not in NAMES:
        raise NotPlainData(f"names {argument.replace(' ', '.')}, which plain data do not need")
    machine.stack.append(_Name(NAMES[argument]))


def _called(machine: _Machine) -> None:
    """What one of `NAMES` would give for these arguments."""
    arguments = machine.stack.pop()
    match machine.stack.pop(), arguments:
        case _Name("array"), (_Name("kind"), (0,), "b"):
            machine.stack.append(_Array())
        case _Name("dtype"), ("u1", _, _):
            machine.stack.append(_Bytes())
        case _Name("dtype"), (str(other), *_):
            raise NotPlainData(f'has an array of the type "{other}" in it, not of bytes')
        case _Name("encode"), (str(text), "latin1"):
            machine.stack.append(text)
        case _:
            raise NotPlainData("makes something else than arrays of bytes")


def _filled(machine: _Machine) -> None:
    """Give an array its content: (version, shape, dtype, whether columns come first, bytes)."""
    state = machine.stack.pop()
    match machine.stack[-1], state:
        case _Bytes(), tuple():
            pass
        case _Array(content=None) as array, (1, tuple(shape), _Bytes(), columns_first, str(text)):
            content = np.frombuffer(text.encode("latin-1"), np.uint8)
            array.content = content.reshape(shape, order="F" if columns_first else "C")
        case _:
            raise NotPlainData("fills something else than arrays of bytes")


def _carry_out(machine: _Machine, instruction: str, argument: Any) -> None:
    stack = machine.stack
    match instruction:
        case "PROTO" | "STOP":
            pass
        case "BININT" | "BININT1" | "BININT2" | "BINSTRING" | "SHORT_BINSTRING" | "BINUNICODE":
            stack.append(argument)
        case "NONE" | "NEWTRUE" | "NEWFALSE":
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction])
        case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
            stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[instruction])
        case "BINPUT" | "LONG_BINPUT":
            machine.memo[argument] = stack[-1]
        case "BINGET" | "LONG_BINGET":
            stack.append(machine.memo[argument])
        case "MARK":
            machine.marks.append(len(stack))
        case "TUPLE":
            stack.append(tuple(machine.since_mark()))
        case "TUPLE1" | "TUPLE2" | "TUPLE3":
            machine.many(int(instruction[-1]))
        case "APPEND":
            item = stack.pop()
            stack[-1].append(item)
        case "APPENDS":
            items = machine.since_mark()
            stack[-1].extend(items)
        case "SETITEM":
            value, key = stack.pop(), stack.pop()
            stack[-1].update({key: value})
        case "SETITEMS":
            items = machine.since_mark()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        case "GLOBAL":
            _named(machine, argument)
        case "REDUCE":
            _called(machine)
        case "BUILD":
            _filled(machine)
        case _:
            raise NotPlainData(f"has the instruction {instruction} in it")
