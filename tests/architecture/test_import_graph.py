"""Which test files `make check` runs first."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.architecture.tree import PACKAGE
from tests.support import budgets, import_graph
from tests.support.budgets import Short
from tests.support.import_graph import (
    Source,
    changed_files,
    changed_modules,
    distances,
    module_name,
    order_of,
    read_sources,
    source_of,
)

TEXT = '''
"""About quorate.core.errors and top-k."""
import torch
import quorate.wires.real as real
from quorate.core import errors, types

if TYPE_CHECKING:
    from quorate.codecs.packed import cut

REGISTRY = {"top-k": "quorate.codecs.top_k:TopK", "other": "quorate.codecs.other", **MORE}

def late():
    from tests.support.programs import QUORATE
    importlib.import_module("quorate.late")
    return train(strategy="local-sgd", title="Not a key", place="torch.nn:Module")
'''


def sources_of(**texts: str) -> dict[str, Source]:
    """Make files, whose paths are given with `__` in place of `/`."""
    return {f"{path.replace('__', '/')}.py": source_of(text) for path, text in texts.items()}


SOURCES = sources_of(
    src__quorate__api="from quorate.codecs import codecs",
    src__quorate__codecs__registry='codecs = {"top-k": "quorate.codecs.top_k:TopK"}',
    src__quorate__codecs__top_k="from quorate.codecs.packed import cut",
    src__quorate__codecs__packed="import torch",
    src__quorate__wires__frames="",
    tests__unit__codecs__test_packed="import quorate.codecs.packed",
    tests__unit__codecs__test_top_k="def test():\n    from quorate.codecs.top_k import TopK",
    tests__unit__wires__test_frames="from quorate.wires.frames import Frame",
    tests__unit__wires__test_codes='train(codec="top-k")',
    tests__unit__train__conftest="import quorate.codecs.registry",
    tests__unit__train__loops__test_steps="",
    tests__architecture__test_size="",
    tests__architecture__test_pages="import quorate.wires.frames",
    tests__contract__test_laws="",
    tests__conftest="import quorate.codecs.packed",
)
TESTS = [path for path in SOURCES if "/test_" in path]


def test_names_in_a_file() -> None:
    source = source_of(TEXT)
    assert source.imports == [
        "quorate.codecs.packed.cut",
        "quorate.core.errors",
        "quorate.core.types",
        "quorate.wires.real",
        "tests.support.programs.QUORATE",
    ]
    assert source.strings == ["quorate.codecs.other", "quorate.codecs.top_k", "quorate.late"]
    assert source.places == {"top-k": "quorate.codecs.top_k"}
    assert source.keys == ["local-sgd", "other", "top-k"]


def test_a_file_that_is_not_python_has_no_names() -> None:
    assert source_of("def broken(:") == Source((), (), {}, ())


def test_registries_are_read() -> None:
    places = source_of((PACKAGE / "strategies" / "__init__.py").read_text()).places
    assert places["all-reduce"] == "quorate.strategies.all_reduce"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("src/quorate/core/errors.py", "quorate.core.errors"),
        ("src/quorate/core/__init__.py", "quorate.core"),
        ("tests/unit/core/test_errors.py", "tests.unit.core.test_errors"),
    ],
)
def test_name_of_a_module(path: str, name: str) -> None:
    assert module_name(path) == name


def test_distances() -> None:
    assert distances(SOURCES, {"quorate.codecs.packed"}) == {
        "quorate.codecs.packed": 0,
        "quorate.codecs.top_k": 1,
        "tests.conftest": 1,
        "tests.unit.codecs.test_packed": 1,
        "quorate.codecs.registry": 2,
        "tests.unit.codecs.test_top_k": 2,
        "tests.unit.wires.test_codes": 2,
        "tests.unit.train.conftest": 3,
        "tests.unit.train.loops.test_steps": 4,
    }


def test_a_deleted_module_is_reached_from_its_importers() -> None:
    sources = {path: source for path, source in SOURCES.items() if not path.endswith("frames.py") or "test" in path}
    changed = changed_modules(["src/quorate/wires/frames.py"], sources)
    assert distances(sources, changed)["tests.unit.wires.test_frames"] == 1


@pytest.mark.parametrize(
    ("path", "modules"),
    [
        ("src/quorate/codecs/packed.py", {"quorate.codecs.packed"}),
        ("src/quorate/wires/frames.css", {"quorate.wires.frames"}),
        ("src/quorate/wires/icons/small.svg", {"quorate.wires.frames"}),
        ("tests/architecture/ceilings.toml", {"tests.architecture.test_size", "tests.architecture.test_pages"}),
        ("docs/conf.py", set()),
        ("README.md", set()),
    ],
)
def test_modules_of_a_changed_file(path: str, modules: set[str]) -> None:
    assert changed_modules([path], SOURCES) == modules


@pytest.mark.parametrize(
    ("changed", "files", "concerned"),
    [
        (
            {"quorate.codecs.packed"},
            "size codecs/test_packed codecs/test_top_k wires/test_codes test_steps pages laws test_frames",
            4,
        ),
        ({"quorate.codecs.top_k"}, "size test_top_k test_codes test_steps test_packed pages laws test_frames", 3),
        (
            {"tests.unit.wires.test_codes"},
            "size test_codes pages laws codecs/test_packed codecs/test_top_k test_steps test_frames",
            1,
        ),
        (set(), "size pages laws codecs/test_packed codecs/test_top_k test_steps test_codes test_frames", 0),
    ],
)
def test_order(changed: set[str], files: str, concerned: int) -> None:
    order = order_of(TESTS, SOURCES, changed)
    assert [word in path for word, path in zip(files.split(), order.files, strict=True)] == [True] * len(TESTS)
    assert len(order.concerned) == concerned


def test_equally_near_files_begin_with_those_in_the_folder_of_the_change() -> None:
    sources = sources_of(
        src__quorate__wires__frames="",
        tests__unit__codecs__test_a="import quorate.wires.frames",
        tests__unit__wires__test_b="import quorate.wires.frames",
        tests__unit__wires__test_frames="import quorate.wires.frames",
    )
    files = order_of([*sources][1:], sources, {"quorate.wires.frames"}).files
    assert [Path(file).stem for file in files] == ["test_frames", "test_b", "test_a"]


def test_files_that_have_not_changed_are_not_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "src" / "first.py", tmp_path / "tests" / "second.py"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text("import quorate.old")
    sources, kept = read_sources(tmp_path, None)
    assert [*sources] == ["src/first.py", "tests/second.py"]
    second.write_text("import quorate.newer")
    parsed = list[str]()
    monkeypatch.setattr(import_graph, "source_of", lambda text: parsed.append(text) or source_of(text))
    sources, _ = read_sources(tmp_path, kept)
    assert parsed == ["import quorate.newer"]
    assert [source.imports for source in sources.values()] == [["quorate.old"], ["quorate.newer"]]


@pytest.mark.parametrize(
    "damage", ["nothing", "list", "files", "entry", "sign", "fields", "names", "places", "shape", "program"]
)
def test_a_damaged_cache_is_none(tmp_path: Path, damage: str) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "first.py").write_text("import quorate.old")
    sources, kept = read_sources(tmp_path, None)
    sign, fields = kept["files"]["src/first.py"]
    stale = {**fields, "imports": ["quorate.stale"]}
    damaged: dict[str, Any] = {
        "nothing": None,
        "list": [1],
        "files": {**kept, "files": 3},
        "entry": {**kept, "files": {"src/first.py": [sign]}},
        "sign": {**kept, "files": {"src/first.py": [[0, 0], stale]}},
        "fields": {**kept, "files": {"src/first.py": [sign, {}]}},
        "names": {**kept, "files": {"src/first.py": [sign, {**stale, "keys": [1]}]}},
        "places": {**kept, "files": {"src/first.py": [sign, {**stale, "places": {"a": 1}}]}},
        "shape": {**kept, "files": {"src/first.py": [sign, {**stale, "places": ["a"]}]}},
        "program": {"program": [0, 0], "files": {"src/first.py": [sign, stale]}},
    }
    assert read_sources(tmp_path, damaged[damage])[0] == sources


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)


def test_changed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    names = ("same", "committed", "staged", "edited", "deleted", "moved")
    git(tmp_path, "init", "--quiet")
    assert changed_files(tmp_path) == []
    for name in names:
        (tmp_path / name).write_text(f"{name}\n" * 9)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    assert changed_files(tmp_path) == []
    (tmp_path / "committed").write_text("new")
    git(tmp_path, "commit", "--quiet", "--all", "--message", "second")
    (tmp_path / "staged").write_text("new")
    git(tmp_path, "add", "staged")
    (tmp_path / "edited").write_text("new")
    (tmp_path / "deleted").unlink()
    git(tmp_path, "mv", "moved", "there")
    (tmp_path / "new file ä").write_text("new")
    expected = ["committed", "deleted", "edited", "moved", "new file ä", "staged", "there"]
    assert changed_files(tmp_path) == expected


def test_where_there_is_no_git_nothing_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert changed_files(tmp_path) == []


def short(seconds: float = 60.0) -> tuple[Short, Any]:
    config = SimpleNamespace(workerinput={"files": ["tests/b.py", "tests/a.py"]}, args=["tests"])
    return Short(config, seconds), config  # type: ignore[arg-type]


def test_a_process_of_several_reads_the_chosen_files_in_their_order() -> None:
    plugin, config = short()
    assert [Path(arg).name for arg in config.args] == ["b.py", "a.py"]
    items: list[Any] = [
        SimpleNamespace(nodeid=f"tests/{name}") for name in ("c.py::x", "a.py::x", "b.py::y", "b.py::x")
    ]
    plugin.pytest_collection_modifyitems(items)
    assert [item.nodeid for item in items] == ["tests/b.py::y", "tests/b.py::x", "tests/a.py::x", "tests/c.py::x"]


def test_the_seconds_begin_with_the_first_test(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.0, 129.0, 129.0, 131.0, 131.0])
    monkeypatch.setattr(budgets, "time", SimpleNamespace(monotonic=lambda: next(times)))
    plugin, _ = short(30.0)
    assert [plugin.pytest_runtest_protocol() for _ in range(3)] == [None, None, True]


def test_the_closing_line_counts_what_was_left_out() -> None:
    config = SimpleNamespace(args=["tests/a.py::test_b"])
    plugin = Short(config, 30.0)  # type: ignore[arg-type]
    plugin.pytest_xdist_node_collection_finished(["a", "b", "c"])
    for when in ("setup", "call", "teardown"):
        report: Any = SimpleNamespace(when=when)
        plugin.pytest_runtest_logreport(report)
    lines = list[str]()
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lines.append))
    assert config.args == ["tests/a.py::test_b"]
    assert len(lines) == 1 and "1 tests have run" in lines[0] and "2 more" in lines[0]
