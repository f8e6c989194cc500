"""The machine, judged: each shortage injected; and the probes, which must get along with this machine."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from quorate.cli.doctor import machine
from quorate.cli.doctor.findings import Level
from quorate.cli.doctor.machine import (
    GIB,
    Folder,
    judge_clocks,
    judge_cores,
    judge_folders,
    judge_memory,
    judge_open_files,
    judge_shared_memory,
    probe_clocks,
    probe_cores,
    probe_folders,
    probe_memory,
    probe_open_files,
    probe_shared_memory,
)


@pytest.mark.parametrize(
    ("usable", "quota", "threads", "level", "word"),
    [
        (8, None, None, Level.OK, "8 usable"),
        (8, 4.0, "2", Level.OK, "a quota of 4"),
        (1, None, None, Level.WARN, "turns"),
        (16, 0.5, None, Level.WARN, "turns"),
        (4, None, "8", Level.WARN, "at most the cores"),
        (8, 2.0, "4", Level.WARN, "at most the cores"),
        (4, None, "many", Level.WARN, "unset"),
        (4, None, "0", Level.WARN, "unset"),
    ],
)
def test_cores_and_threads(usable: int, quota: float | None, threads: str | None, level: Level, word: str) -> None:
    finding = judge_cores((usable, quota, threads))
    assert finding.level is level
    assert word in finding.found + finding.fix


@pytest.mark.parametrize(
    ("written", "quota"), [("max 100000", None), ("150000 100000\n", 1.5), ("", None), (None, None)]
)
def test_a_containers_quota_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str | None, quota: float | None
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    if written is not None:
        (tmp_path / "cpu.max").write_text(written)
    assert probe_cores()[1] == quota


def test_a_containers_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert probe_memory()[1] > 4000
    (tmp_path / "memory.max").write_text("4000\n")
    assert probe_memory() == (3900, 4000)


def test_memory_runs_short() -> None:
    assert judge_memory((16 * GIB, 32 * GIB)).level is Level.OK
    assert judge_memory((GIB, 2 * GIB)).level is Level.WARN
    assert judge_memory((GIB // 2, 2 * GIB)).level is Level.FAIL


def test_shared_memory_is_small_in_containers() -> None:
    finding = judge_shared_memory(50 * 2**20)
    assert (finding.level, finding.found) == (Level.WARN, "50 MiB free")
    assert "--shm-size" in finding.fix
    assert judge_shared_memory(GIB).level is judge_shared_memory(None).level is Level.OK


def test_few_descriptors_are_a_warning() -> None:
    assert judge_open_files(256).level is Level.WARN
    assert judge_open_files(1024).level is judge_open_files(resource.RLIM_INFINITY).level is Level.OK


def folders(
    records: str | None = None, temporary: str | None = None, caches: str | None = None, free: int = 9 * GIB
) -> list[Folder]:
    named = {"records": records, "temporary files": temporary, "caches": caches}
    return [Folder(what, "/p", error, free) for what, error in named.items()]


@pytest.mark.parametrize(
    ("facts", "level", "fix"),
    [
        (folders(), Level.OK, ""),
        (folders(records="not writable"), Level.FAIL, "work in a folder you may write to"),
        (folders(temporary="not writable"), Level.FAIL, "set TMPDIR to such a folder"),
        (folders(caches="not writable"), Level.WARN, "set XDG_CACHE_HOME to a folder that can be written to"),
        (folders(free=GIB // 2), Level.WARN, "free some disk space"),
        (folders(free=1), Level.FAIL, "free some disk space"),
    ],
)
def test_folders_that_cannot_be_written_to(facts: list[Folder], level: Level, fix: str) -> None:
    finding = judge_folders(facts)
    assert (finding.level, finding.fix) == (level, fix)


def test_a_file_in_the_place_of_a_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" / "deep"))
    assert [one.error for one in probe_folders()] == [None] * 3
    assert list(tmp_path.iterdir()) == [], "a doctor leaves nothing behind"
    (tmp_path / "runs").write_text("a file")
    records = probe_folders()[0]
    assert records.error == "runs is no folder"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir(mode=0o500)
    monkeypatch.chdir(tmp_path)
    assert probe_folders()[0].error == "not writable (Permission denied)"


@pytest.mark.parametrize(
    ("facts", "level"),  # the least step, steps back, another process's offset
    [
        ((1e-8, 0, 0.0), Level.OK),
        ((1e-8, 2, 0.0), Level.FAIL),
        ((0.016, 0, 0.0), Level.WARN),
        ((1e-8, 0, 0.5), Level.WARN),
        ((1e-8, 0, float("nan")), Level.WARN),
    ],
)
def test_clocks_that_cannot_be_trusted(facts: tuple[float, int, float], level: Level) -> None:
    assert judge_clocks(facts).level is level


def test_the_probes_know_this_machine() -> None:
    (usable, quota, _), (free, total) = probe_cores(), probe_memory()
    assert quota is None or quota > 0
    assert 1 <= usable <= (os.cpu_count() or 1)
    assert 0 < free <= total
    assert probe_open_files() != 0
    shared = probe_shared_memory()
    assert shared is None or shared >= 0
    resolution, backwards, offset = probe_clocks()
    assert (backwards, offset) == (0, 0.0)
    assert resolution > 0
