"""The functions in Python source text, as sequences of words. Needs no torch."""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import sys
import sysconfig
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quorate.core.errors import unknown

LEFT_OUT = frozenset({"test", "tests", "site-packages", "dist-packages", "__pycache__"})
"""Folders that are no part of the data, at any depth: CPython's test suites (half of all functions, and missing on
many machines) and what was installed beside the library."""

TESTED_TENTH = 10
"""One function in this many is a test example."""

_WHOLE = frozenset({tokenize.NAME, tokenize.NUMBER, tokenize.OP})
_WORD = re.compile(r"\w+|[^\w\s]")
_LAYOUT = frozenset(
    {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
)


@dataclass(frozen=True)
class Function:
    """One `def` or `async def`."""

    path: str
    """Path of its file below the library's folder, with forward slashes."""
    name: str
    """Qualified: `Class.method`, `outer.inner`."""
    outermost: str
    """Qualified name of the outermost function it is written in; its own where there is none."""
    words: tuple[str, ...]
    """Its source, from `def` to its end. Layout is left out; strings and comments are split into words and signs."""

    @property
    def module(self) -> str:
        """The top-level package or module: `json` for `json/decoder.py`, `enum` for `enum.py`."""
        return top_level(self.path)

    @property
    def is_test(self) -> bool:
        """Whether it is a test example: by a hash, so that it does not depend on what else is there.

        A nested function goes with the outermost one, whose text contains it.
        """
        return stable_hash(f"{self.path}:{self.outermost}") % TESTED_TENTH == 0


def stable_hash(text: str) -> int:
    """64 bits that are the same in every process, on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def top_level(path: str) -> str:
    """Return the top-level module of a path."""
    return path.partition("/")[0].removesuffix(".py")


def standard_library() -> Path:
    """Return the folder of this Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_paths(folder: Path, modules: Sequence[str] | None = None) -> list[str]:
    """Paths of the source files below `folder`, sorted; of the given top-level modules, or of all (None).

    Raises `ConfigurationError` for a module that is not there.
    """
    paths = sorted(_python_files(folder))
    if modules is None:
        return paths
    present = {top_level(path) for path in paths}
    for module in modules:
        if module not in present:
            raise unknown("standard-library module", module, present)
    return [path for path in paths if top_level(path) in modules]


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = set(folders) - LEFT_OUT  # not walked: site-packages can hold fifty times as many files
        below = Path(place).relative_to(folder)
        yield from ((below / file).as_posix() for file in files if file.endswith(".py"))


def functions_in(path: str, source: bytes) -> list[Function]:
    """All functions of a file at any depth, in the order of their first lines.

    Raises `SyntaxError`, `ValueError` or `tokenize.TokenError` where the text is not this Python's, or its encoding
    is not what it says; `RecursionError` where it is nested too deeply.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the text's own doubtful escapes
        tree = ast.parse(source)
    tokens = [token for token in tokenize.tokenize(io.BytesIO(source).readline) if token.type not in _LAYOUT]
    lines = [token.start[0] for token in tokens]
    return [
        Function(path, name, outermost, tuple(_words(tokens[bisect_left(lines, first) : bisect_right(lines, last)])))
        for name, outermost, first, last in _spans(tree, "", None)
    ]


def _spans(node: ast.AST, prefix: str, outermost: str | None) -> Iterator[tuple[str, str, int, int]]:
    """(name, outermost, first line, last line) of every function below `node`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            name = prefix + child.name
            yield name, outermost or name, child.lineno, child.end_lineno or child.lineno
            yield from _spans(child, f"{name}.", outermost or name)
        elif isinstance(child, ast.ClassDef):
            yield from _spans(child, f"{prefix}{child.name}.", outermost)
        else:
            yield from _spans(child, prefix, outermost)


def _words(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[str]:
    for token in tokens:
        if token.type in _WHOLE:
            yield sys.intern(token.string)
        else:
            yield from map(sys.intern, _WORD.findall(token.string))
