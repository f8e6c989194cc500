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
from quorate.cli.doctor.machine import GIB
from quorate.wire.real.trust import LEAST_TOKEN


@pytest.mark.parametrize(
    ("usable", "quota", "threads", "level", "word"),
    [
        (8, "max 100000", None, "OK", "8 usable; 1 thread a worker"),
        (8, "400000 100000", "2", "OK", "a quota of 4; OMP_NUM_THREADS=2"),
        (8, "", None, "OK", "8 usable;"),
        (1, "", None, "WARN", "turns"),
        (16, "50000 100000\n", None, "WARN", "turns"),
        (4, "", "8", "WARN", "to at most 4, divided by the workers"),
        (8, "200000 100000", "4", "WARN", "to at most 2"),
        (4, "", "many", "WARN", "set OMP_NUM_THREADS"),
        (4, "", "0", "WARN", "set OMP_NUM_THREADS"),
    ],
)
def test_cores_and_threads(
    usable: int,
    quota: str,
    threads: str | None,
    level: str,
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: usable)
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if quota:
        (tmp_path / "cpu.max").write_text(quota)
    if threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
    finding = machine.cores()
    assert finding.level == level and word in finding.found + finding.fix


def test_a_containers_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("100\n")
    assert machine.available_memory()[1] > 4000
    (tmp_path / "memory.max").write_text("4000\n")
    assert machine.available_memory() == (3900, 4000)


@pytest.mark.parametrize(("free", "level"), [(16 * GIB, "OK"), (GIB, "WARN"), (GIB // 2, "FAIL")])
def test_memory_runs_short(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: (free, 32 * GIB))
    assert machine.memory().level == level


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="this system has no /dev/shm")
def test_shared_memory_is_small_in_containers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=50 * 2**20))
    finding = machine.shared_memory()
    assert (finding.level, finding.found) == ("WARN", "50 MiB free") and "--shm-size" in finding.fix
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=GIB))
    assert machine.shared_memory().level == "OK"


@pytest.mark.parametrize(("limit", "level"), [(256, "WARN"), (1024, "OK"), (resource.RLIM_INFINITY, "OK")])
def test_few_descriptors_are_a_warning(limit: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    assert machine.open_files().level == level


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache" / "deep"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=9 * GIB))
    return tmp_path


def test_a_file_in_the_place_of_a_folder_fails(folders: Path) -> None:
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("OK", "") and "records runs (9.0 GiB free)" in finding.found
    assert list(folders.iterdir()) == [], "a doctor leaves nothing behind"
    (folders / "runs").write_text("a file")
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("FAIL", "work in a folder you may write to")
    assert "records runs (no folder)" in finding.found


def test_caches_that_cannot_be_written_are_a_warning(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folders))
    (folders / "quorate").write_text("a file")
    finding = machine.folders()
    assert (finding.level, finding.fix) == ("WARN", "set XDG_CACHE_HOME to a folder of yours")


@pytest.mark.parametrize(("free", "level"), [(GIB // 2, "WARN"), (1, "FAIL")])
def test_full_disks(free: int, level: str, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    assert (machine.folders().level, machine.folders().fix) == (level, "free some disk space")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found(folders: Path) -> None:
    (folders / "runs").mkdir(mode=0o500)
    assert "runs (not writable: Permission denied)" in machine.folders().found


def test_this_machine_is_judged() -> None:
    free, total = machine.available_memory()
    assert 0 < free <= total and 1 <= machine.usable_cores() <= (os.cpu_count() or 1)
    for check in (machine.cores, machine.memory, machine.shared_memory, machine.open_files, machine.folders):
        assert check().found


def test_no_loopback_no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.ports().level != "FAIL"

    def unreachable(*address: object, **options: object) -> socket.socket:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    finding = machine.ports()
    assert finding.level == "FAIL" and "ip link set lo up" in finding.fix
    assert "network is unreachable" in finding.found


def test_a_token_that_would_be_refused_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUORATE_TOKEN", raising=False)
    assert machine.token().level == "OK"
    monkeypatch.setenv("QUORATE_TOKEN", "short")
    assert machine.token()[:2] == ("WARN", "QUORATE_TOKEN has 5 characters")
    monkeypatch.setenv("QUORATE_TOKEN", "x" * LEAST_TOKEN)
    assert machine.token().level == "OK"
