"""The graph of imports among the sources and the tests, and the order in which it puts test files for a change.

Imports anywhere in a file count: inside functions, and for type annotations. Three rules stand for other ways in which
one file needs another:

- A string that names a module, as registries and `importlib` are given it (`"quorate.codecs.top_k:TopK"`), imports it.
- A string in a test that is a key of a registry (`"top-k"` of `{"top-k": "quorate.codecs.top_k:TopK"}`) imports the
  module behind that key.
- A test imports the `conftest.py` of its folder and of the folders around it, except that of all tests.

The `__init__.py` of the packages around a module is not imported with it: it names what lies in the package, by which
every test would be near to every module.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

FOLDERS = ("src", "tests")
"""The folders whose Python files are in the graph."""
_PLACE = re.compile(r"((?:quorate|tests)(?:\.\w+)+)(:\w+)?")
_KEY = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


@dataclass(frozen=True)
class Source:
    """The names in one file that lead to others."""

    imports: Sequence[str]
    """Dotted names in import statements; `from a import b` is `a.b`."""
    strings: Sequence[str]
    """Dotted names in strings."""
    places: Mapping[str, str]
    """The dotted name behind each key of a registry."""
    keys: Sequence[str]
    """Strings that may be keys of a registry."""


def source_of(text: str) -> Source:
    """Read the names in the text of a file; a text that is not Python has none."""
    imports, strings, keys = set[str](), set[str](), set[str]()
    places = dict[str, str]()
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Source((), (), {}, ())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Dict):
            places.update(_places_in(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if place := _PLACE.fullmatch(node.value):
                strings.add(place[1])
            elif _KEY.fullmatch(node.value):
                keys.add(node.value)
    own = (name for name in imports if name.partition(".")[0] in ("quorate", "tests"))
    return Source(sorted(own), sorted(strings), places, sorted(keys))


def _places_in(node: ast.Dict) -> Iterator[tuple[str, str]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            place = _PLACE.fullmatch(str(value.value))
            if place and place[2] and isinstance(key.value, str):
                yield key.value, place[1]


def module_name(path: str) -> str:
    """Return the dotted name of a file given from the root: `quorate.core.errors` of `src/quorate/core/errors.py`."""
    parts = PurePosixPath(path).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_sources(root: Path, kept: Any) -> tuple[dict[str, Source], Any]:
    """Read every file of the graph.

    Args:
        root: the root of the repository.
        kept: the second value that an earlier call returned, or anything else: a file whose time of change and size
            are the same is not parsed again.

    Returns:
        The sources by path from the root, and what to keep for the next call, which JSON can hold.
    """
    program = _sign(Path(__file__))
    entries = kept.get("files") if isinstance(kept, dict) and kept.get("program") == program else None
    known = entries if isinstance(entries, dict) else {}
    sources, files = dict[str, Source](), dict[str, Any]()
    for path in sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        place, sign = path.relative_to(root).as_posix(), _sign(path)
        source = _kept_source(known.get(place), sign) or source_of(path.read_text(encoding="utf-8", errors="replace"))
        sources[place] = source
        files[place] = [sign, vars(source)]
    return sources, {"program": program, "files": files}


def _sign(path: Path) -> list[int]:
    """A file's time of change, in nanoseconds, and its size in bytes."""
    status = path.stat()
    return [status.st_mtime_ns, status.st_size]


def _kept_source(entry: Any, sign: list[int]) -> Source | None:
    match entry:
        case [kept_sign, {"imports": [*imports], "strings": [*strings], "places": dict(places), "keys": [*keys]}] if (
            kept_sign == sign and all(isinstance(x, str) for x in (*imports, *strings, *keys, *places.values()))
        ):
            return Source(imports, strings, places, keys)
    return None


def changed_files(root: Path) -> list[str]:
    """Return the files that differ from `HEAD~1`, in the newest commit, the index or the folder, and untracked ones.

    Paths are given from the root; the list is empty where git cannot say.
    """
    commands = (
        ["diff", "-z", "--name-only", "--no-renames", "--relative", "HEAD~1"],
        ["ls-files", "-z", "--others", "--exclude-standard"],
    )
    try:
        answers = [
            subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, timeout=10)
            for command in commands
        ]
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted({path for answer in answers for path in answer.stdout.split("\0") if path})


def changed_modules(paths: Iterable[str], sources: Collection[str]) -> set[str]:
    """Return the modules of changed files; of a file that is not Python, those in the nearest folder with modules."""
    beside = defaultdict[PurePosixPath, set[str]](set)
    for source in sources:
        beside[PurePosixPath(source).parent].add(module_name(source))
    changed = set[str]()
    for path in paths:
        if path.split("/")[0] not in FOLDERS:
            continue
        if path.endswith(".py"):
            changed.add(module_name(path))
        else:
            changed.update(next((beside[folder] for folder in PurePosixPath(path).parents if folder in beside), ()))
    return changed


def distances(sources: Mapping[str, Source], changed: Collection[str]) -> dict[str, int]:
    """Return, by module, the fewest imports that lead from it to a changed one; those that reach none are missing.

    Args:
        sources: the sources by path from the root.
        changed: names of modules; one whose file is gone is reached from files that still import it.
    """
    names = {module_name(path) for path in sources} | set(changed)
    registered = defaultdict[str, set[str]](set)
    for source in sources.values():
        for key, place in source.places.items():
            registered[key].add(place)
    importers = defaultdict[str, set[str]](set)
    for path, source in sources.items():
        imported = {*source.imports, *source.strings}
        if path.startswith("tests/"):
            imported.update(place for key in source.keys for place in registered.get(key, ()))
            imported.update(_conftests(path))
        for name in imported:
            importers[_longest_known(name, names)].add(module_name(path))
    found, last = dict.fromkeys(changed, 0), list(changed)
    distance = 0
    while last:
        distance += 1
        last = sorted({importer for name in last for importer in importers[name]} - found.keys())
        found.update(dict.fromkeys(last, distance))
    return found


def _conftests(path: str) -> Iterator[str]:
    """The names that the `conftest.py` of a test's folders would have, except that of all tests."""
    if not path.endswith("/conftest.py"):
        parts = path.split("/")[:-1]
        yield from (".".join([*parts[:count], "conftest"]) for count in range(2, len(parts) + 1))


def _longest_known(name: str, names: Collection[str]) -> str:
    """The module in a dotted name that may go on inside it; the empty string where none is known."""
    while name and name not in names:
        name = name.rpartition(".")[0]
    return name


@dataclass(frozen=True)
class Order:
    """Test files, given from the root, in the order in which a short check runs them."""

    files: Sequence[str]
    concerned: frozenset[str]
    """The files among them that reach a changed module."""


def order_of(tests: Iterable[str], sources: Mapping[str, Source], changed: Collection[str]) -> Order:
    """Put test files in order: architecture tests that import nothing of the package, nearest files, and all others.

    Among files that are equally near, those come first whose place in `tests/unit` is most like a changed module's in
    the package, and then `tests/architecture` and `tests/contract`.
    """
    near = distances(sources, changed)
    changed_places = [name.split(".")[1:] for name in changed]

    def place(path: str) -> tuple[bool, float, int, bool, bool, str]:
        room, own_place = path.split("/")[1], module_name(path).replace(".test_", ".").split(".")[2:]
        is_quick = room == "architecture" and not any(
            name.partition(".")[0] == "quorate" for name in sources[path].imports
        )
        likeness = max((_equal_parts(own_place, other) for other in changed_places), default=0)
        distance = near.get(module_name(path), float("inf"))
        return not is_quick, distance, -likeness, room != "architecture", room != "contract", path

    files = [path for path in tests if path in sources]
    return Order(sorted(files, key=place), frozenset(path for path in files if module_name(path) in near))


def _equal_parts(one: Sequence[str], other: Sequence[str]) -> int:
    """How many parts two places have in common, from the outermost."""
    count = 0
    for part, other_part in zip(one, other, strict=False):
        if part != other_part:
            break
        count += 1
    return count
