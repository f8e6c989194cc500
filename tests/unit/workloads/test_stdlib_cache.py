"""The tokenised functions on disk: kept whole, rebuilt when damaged, not needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from quorate.workloads import stdlib_corpus
from quorate.workloads.stdlib_corpus import Corpus, Selection
from quorate.workloads.stdlib_functions import StdlibFunctions

SMALL = Selection(modules=None, limit=None, longest=3000, smallest_class=20, vocabulary_size=8192)


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "quorate"


@pytest.fixture
def example() -> Corpus:
    return Corpus(
        words=torch.arange(7, dtype=torch.int16),
        offsets=torch.tensor([0, 3, 7]),
        labels=torch.tensor([1, 0]),
        is_test=torch.tensor([False, True]),
        classes=("json", "other"),
        vocabulary=("<padding>", "naïve"),
        files=2,
        skipped=("bad.py",),
    )


def same(ours: Corpus, other: Corpus) -> bool:
    tensors = ("words", "offsets", "labels", "is_test")
    plain = ("classes", "vocabulary", "files", "skipped")
    return all(torch.equal(getattr(ours, name), getattr(other, name)) for name in tensors) and all(
        getattr(ours, name) == getattr(other, name) for name in plain
    )


def test_what_is_kept_comes_back(example: Corpus, tmp_path: Path) -> None:
    assert stdlib_corpus.load(tmp_path / "it") is None
    assert stdlib_corpus.save(tmp_path / "it", example)
    loaded = stdlib_corpus.load(tmp_path / "it")
    assert loaded is not None
    assert same(loaded, example)
    assert loaded.words.dtype == torch.int16
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:5],
        lambda data: data[:-1],
        lambda data: data[:-3] + b"\x07" + data[-2:],
        lambda data: data.replace(b"json", b"jsin"),
        lambda data: b"\xff" * len(data),
        lambda data: b"not a corpus at all",
    ],
    ids=["empty", "header cut", "data cut", "one byte", "metadata", "all ones", "text"],
)
def test_damage_is_noticed(example: Corpus, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "it"
    stdlib_corpus.save(path, example)
    path.write_bytes(damage(path.read_bytes()))
    assert stdlib_corpus.load(path) is None


def test_readers_never_see_a_part_while_writers_write(example: Corpus, tmp_path: Path) -> None:
    path = tmp_path / "it"
    stdlib_corpus.save(path, example)
    writers = [
        threading.Thread(target=lambda: [stdlib_corpus.save(path, example) for _ in range(25)]) for _ in range(4)
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert stdlib_corpus.load(path) is not None
    for writer in writers:
        writer.join()
    assert [file.name for file in tmp_path.iterdir()] == ["it"]


def test_the_workload_reads_once_and_rebuilds_what_is_damaged(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = StdlibFunctions(modules=("json",)).corpus
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert same(StdlibFunctions(modules=("json",)).corpus, first)
    assert file.read_bytes() == whole
    monkeypatch.setattr(stdlib_corpus, "functions_in", None)
    assert same(StdlibFunctions(modules=("json",)).corpus, first)


def test_other_settings_and_other_sources_are_kept_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    one = stdlib_corpus.cache_path(tmp_path, ["a.py"], SMALL)
    other = stdlib_corpus.cache_path(
        tmp_path, ["a.py"], Selection(modules=None, limit=9, longest=3000, smallest_class=20, vocabulary_size=8192)
    )
    (tmp_path / "a.py").write_text("x = 12\n")
    changed = stdlib_corpus.cache_path(tmp_path, ["a.py"], SMALL)
    assert len({one, other, changed}) == 3


def test_a_place_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    workload = StdlibFunctions(modules=("colorsys",))
    assert workload.dataset(train=True).lengths.min() > 0


def test_a_failed_rename_leaves_nothing_behind(example: Corpus, tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    assert not stdlib_corpus.save(tmp_path / "it", example)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
