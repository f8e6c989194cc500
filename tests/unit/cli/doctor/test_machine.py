"""The machine, judged: each shortage injected, and the checks of this machine."""

from __future__ import annotations

import os
import resource
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from quorate.cli.doctor import machine
from quorate.core import resources
from quorate.core.resources import available_memory, usable_cores

GB = 10**9


@pytest.mark.parametrize(
    ("usable", "quota", "threads", "workers", "level", "word"),
    [
        (8, "max 100000", None, 2, "OK", "8 usable; 1 thread a worker"),
        (8, "400000 100000", "2", 2, "OK", "a quota of 4; OMP_NUM_THREADS=2"),
        (8, "", None, 8, "OK", "8 usable;"),
        (8, "", None, 9, "WARN", "9 workers take turns"),
        (1, "", None, 1, "OK", "1 usable"),
        (1, "", None, 2, "WARN", "turns"),
        (16, "50000 100000\n", None, 2, "WARN", "turns"),
        (4, "", "8", 1, "WARN", "to at most 4 for 1 workers"),
        (8, "", "4", 2, "OK", "OMP_NUM_THREADS=4"),
        (8, "", "4", 4, "WARN", "to at most 2 for 4 workers"),
        (4, "", "many", 2, "WARN", "set OMP_NUM_THREADS"),
        (4, "", "0", 2, "WARN", "set OMP_NUM_THREADS"),
    ],
)
def test_cores_and_threads(
    usable: int,
    quota: str,
    threads: str | None,
    workers: int,
    level: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: usable)
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if quota:
        (tmp_path / "cpu.max").write_text(quota)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    finding = machine.cores(workers)
    assert finding.level == level and word in finding.found + finding.fix


def test_a_containers_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert available_memory()[1] > 4000
    (tmp_path / "memory.max").write_text("4000\n")
    assert available_memory() == (3900, 4000)


@pytest.mark.parametrize(
    ("free", "workers", "level"), [(16 * GB, 2, "OK"), (GB, 2, "OK"), (GB, 3, "FAIL"), (GB // 2, 2, "FAIL")]
)
def test_memory_runs_short(free: int, workers: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: (free, 32 * GB))
    assert machine.memory(workers).level == level


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_shared_memory_is_small_in_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning where NCCL uses it, between GPUs."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50 * 10**6))
    finding = machine.shared_memory(2)
    assert (finding.level, finding.found) == ("WARN", "50.0 MB free") and "--shm-size" in finding.fix
    for gpus in (0, 1):
        finding = machine.shared_memory(gpus)
        assert (finding.level, finding.fix) == ("OK", "") and "DataLoader" in finding.found
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=GB))
    assert machine.shared_memory(2) == ("OK", "1.00 GB free", "")


@pytest.mark.parametrize(
    ("limit", "workers", "level"),
    [(256, 2, "OK"), (256, 64, "WARN"), (1100, 64, "OK"), (resource.RLIM_INFINITY, 4096, "OK")],
)
def test_few_descriptors_are_a_warning(limit: int, workers: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert machine.open_files(workers).level == level


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" / "deep"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9 * GB))
    return tmp_path


def test_a_file_in_the_place_of_a_folder_fails(folders: Path) -> None:
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("OK", "") and "records runs (9.00 GB free)" in finding.found
    assert list(folders.iterdir()) == [], "a doctor leaves nothing behind"
    (folders / "runs").write_text("a file")
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("FAIL", "work in a folder you may write to")
    assert "records runs (no folder)" in finding.found


def test_caches_that_cannot_be_written_only_cost_time(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders))
    (folders / "quorate").write_text("a file")
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("OK", "") and "quorate (no folder)" in finding.found


@pytest.mark.parametrize(("free", "level"), [(GB // 2, "WARN"), (1, "FAIL")])
def test_full_disks(free: int, level: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert (machine.folders().level, machine.folders().fix) == (level, "free some disk space")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found(folders: Path) -> None:
    (folders / "runs").mkdir(mode=0o500)
    assert "runs (not writable: Permission denied)" in machine.folders().found


def test_this_machine_is_judged() -> None:
    free, total = available_memory()
    assert 0 < free <= total and 1 <= usable_cores() <= (os.cpu_count() or 1)
    for check in (machine.cores, machine.memory, machine.shared_memory, machine.open_files):
        assert check(2).found
    assert machine.folders().found


def test_no_loopback_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.ports().level != "FAIL"

    def unreachable(*address: object, **options: object) -> socket.socket:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    finding = machine.ports()
    assert finding.level == "FAIL" and "ip link set lo up" in finding.fix
    assert "network is unreachable" in finding.found
