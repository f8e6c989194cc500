"""The functions in the sources of the standard library, as words, as numbers, and in a cache on disk."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import io
import json
import os
import re
import struct
import sys
import sysconfig
import tempfile
import tokenize
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tokenize import TokenError

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from quorate.core.errors import unknown
from quorate.core.resources import cache_folder

OTHER = "other"
"""The class of all functions whose module has too few."""

FORMAT = 1
"""Counted up when the same source would give another corpus, or another file."""

_TENSORS = ("words", "offsets", "labels", "is_test")

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

PADDING = "<padding>"
SHAPES = ("NAME", "Name", "name", "_name", "__name__", "many_words", "number", "other letters", "signs")
LENGTHS = {"short": 5, "medium": 10}
"""The greatest length of a rare word that is called so; beyond, it is "long"."""

RARE_CLASSES = (PADDING, *(f"<{shape}, {length}>" for shape, length in product(SHAPES, (*LENGTHS, "long"))))
"""The first entries of every vocabulary; PADDING is number 0."""

RARE = 3
"""A word seen fewer times than this is known by its class only."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which functions, and how they are written down."""

    modules: tuple[str, ...] | None
    """Top-level packages or modules; None: all."""
    limit: int | None
    """Maximum number of functions, from files in a random but fixed order. By default all."""
    longest: int
    """Maximum number of words of a function; further words are cut off."""
    smallest_class: int
    """Modules with fewer functions form the class `OTHER`."""
    vocabulary_size: int
    """Entries at most."""


@dataclass(frozen=True)
class Corpus:
    """n functions as four tensors, in the order of their files, then of their first lines."""

    words: Tensor
    """All numbered words, one function after the other: int16 of shape (total,)."""
    offsets: Tensor
    """Function i is words[offsets[i]:offsets[i+1]]: int64 of shape (n+1,), the first 0."""
    labels: Tensor
    """Numbers of classes: int64 of shape (n,)."""
    is_test: Tensor
    """bool of shape (n,)."""
    classes: tuple[str, ...]
    vocabulary: tuple[str, ...]
    files: int
    """Files read."""
    skipped: tuple[str, ...]
    """Files left out, as they are not this Python's or not in the encoding they name."""

    @property
    def lengths(self) -> Tensor:
        """Words per function: int64 of shape (n,)."""
        return self.offsets.diff()


def build(folder: Path, paths: Sequence[str], selection: Selection) -> Corpus:
    """Read, tokenise and number the functions in `paths` below `folder`: about 15 s of one core for everything.

    Shows a progress bar where stderr is a terminal. The vocabulary is counted over training functions only.
    """
    functions, files, skipped = _read(folder, paths, selection.limit)
    trained = (function.words[: selection.longest] for function in functions if not function.is_test)
    entries = vocabulary_of(word_counts(trained), selection.vocabulary_size)
    numbers = numbers_of(entries)
    encoded = [encode(function.words[: selection.longest], numbers) for function in functions]
    label_of, classes = _classes([function.module for function in functions], selection.smallest_class)
    return Corpus(
        words=torch.tensor([number for sequence in encoded for number in sequence], dtype=torch.int16),
        offsets=torch.tensor([0, *(len(sequence) for sequence in encoded)]).cumsum(0),
        labels=torch.tensor([label_of[function.module] for function in functions], dtype=torch.int64),
        is_test=torch.tensor([function.is_test for function in functions], dtype=torch.bool),
        classes=classes,
        vocabulary=entries,
        files=files,
        skipped=tuple(skipped),
    )


def _read(folder: Path, paths: Sequence[str], limit: int | None) -> tuple[list[Function], int, list[str]]:
    """The functions in order of path, the number of files read, and the files skipped."""
    drawn = paths if limit is None else sorted(paths, key=stable_hash)
    functions: dict[str, list[Function]] = {}
    skipped: list[str] = []
    count = 0
    for path in _shown(drawn):
        if limit is not None and count >= limit:
            break
        try:
            here = functions_in(path, (folder / path).read_bytes())
        except (SyntaxError, ValueError, TokenError, RecursionError, OSError):
            skipped.append(path)
            continue
        functions[path] = here if limit is None else here[: limit - count]
        count += len(functions[path])
    in_order = [function for path in sorted(functions) for function in functions[path]]
    return in_order, len(functions), sorted(skipped)


def _shown(paths: Sequence[str]) -> Iterable[str]:
    if not sys.stderr.isatty():
        return paths
    from rich.console import Console
    from rich.progress import track

    return track(paths, "reading the standard library (once)", console=Console(stderr=True), transient=True)


def _classes(modules: Sequence[str], smallest: int) -> tuple[dict[str, int], tuple[str, ...]]:
    """The class number of each module, and the names of the classes, sorted; `OTHER`, if there is any, is last."""
    counts = Counter(modules)
    classes = sorted(module for module, count in counts.items() if count >= smallest)
    numbers = {module: number for number, module in enumerate(classes)}
    if len(classes) < len(counts):
        numbers.update({module: len(classes) for module in counts if module not in numbers})
        classes.append(OTHER)
    return numbers, tuple(classes)


def cache_path(folder: Path, paths: Sequence[str], selection: Selection) -> Path | None:
    """Return the cache file of the corpus of `paths` below `folder`; it depends on sizes, settings and Python."""
    place = cache_folder()
    if place is None:
        return None
    sizes = [(path, (folder / path).stat().st_size) for path in paths]
    key = json.dumps([FORMAT, sys.version, str(folder), asdict(selection), sizes])
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return place / f"stdlib-functions-{version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"


def load(path: Path) -> Corpus | None:
    """The corpus kept at `path`; None where there is none, or where it is damaged or of another format."""
    try:
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
        digest, _, text = _metadata(data)["corpus"].partition(" ")
        if digest != _digest(tensors, text):
            return None
        rest = json.loads(text)
    except (OSError, SafetensorError, ValueError, KeyError):
        return None
    return Corpus(
        **{name: tensors[name] for name in _TENSORS},
        classes=tuple(rest["classes"]),
        vocabulary=tuple(rest["vocabulary"]),
        files=rest["files"],
        skipped=tuple(rest["skipped"]),
    )


def save(path: Path, corpus: Corpus) -> bool:
    """Keep the corpus at `path`; False where that cannot be written, which is no error.

    It is one safetensors file, whose metadata holds a digest of everything and, as JSON, the rest. It is written to a
    temporary name and renamed, so that several processes may build it at once: the last one wins, and all wrote the
    same.
    """
    tensors = {name: getattr(corpus, name) for name in _TENSORS}
    rest = {
        "classes": corpus.classes,
        "vocabulary": corpus.vocabulary,
        "files": corpus.files,
        "skipped": corpus.skipped,
    }
    text = json.dumps(rest)
    # One entry: safetensors writes several in any order, and equal corpora shall be equal files.
    data = safetensors.torch.save(tensors, {"corpus": f"{_digest(tensors, text)} {text}"})
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


def _metadata(data: bytes) -> dict[str, str]:
    """The text in a safetensors file's header: 8 bytes of length (little-endian), then JSON."""
    (length,) = struct.unpack_from("<Q", data)
    metadata: dict[str, str] = json.loads(data[8 : 8 + length])["__metadata__"]
    return metadata


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in _TENSORS:
        digest.update(tensors[name].numpy().tobytes())
    return digest.hexdigest()


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


def shape_class(word: str) -> str:
    """The entry for a word that has none of its own; one of `CLASSES`."""
    length = next((name for name, most in LENGTHS.items() if len(word) <= most), "long")
    return f"<{_shape(word)}, {length}>"


def _shape(word: str) -> str:
    core = word.strip("_")
    if word[0].isdigit() or (word[0] == "." and word[1:2].isdigit()):
        return "number"
    if not core.replace("_", "").isalnum():
        return "signs"
    if not word.isascii():
        return "other letters"
    if word.startswith("__") and word.endswith("__"):
        return "__name__"
    if word.startswith("_"):
        return "_name"
    if core.isupper():
        return "NAME"
    if "_" in core:
        return "many_words"
    return "name" if core.islower() else "Name"


def vocabulary_of(counts: Mapping[str, int], size: int) -> tuple[str, ...]:
    """The `CLASSES`, then the most frequent words (ties in the order of their text), `size` entries at most."""
    frequent = (item for item in counts.items() if item[1] >= RARE)
    ranked = sorted(frequent, key=lambda item: (-item[1], item[0]))
    return RARE_CLASSES + tuple(word for word, _ in ranked[: size - len(RARE_CLASSES)])


def encode(words: Iterable[str], numbers: Mapping[str, int]) -> list[int]:
    """The number of each word, or of its class. `numbers` is the inverse of a vocabulary."""
    return [numbers[word] if word in numbers else numbers[shape_class(word)] for word in words]


def numbers_of(vocabulary: Sequence[str]) -> dict[str, int]:
    """The token of each number."""
    return {word: number for number, word in enumerate(vocabulary)}


def word_counts(sequences: Iterable[Iterable[str]]) -> Counter[str]:
    """Tokens by how often they occur."""
    counts: Counter[str] = Counter()
    for sequence in sequences:
        counts.update(sequence)
    return counts
