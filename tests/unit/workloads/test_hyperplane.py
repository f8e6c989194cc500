"""A plane's points: made by counting, kept in one file, and fitted to their noise."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from quorate.core.errors import ConfigurationError
from quorate.workloads import hyperplane
from quorate.workloads.hyperplane import Hyperplane, Plane
from quorate.workloads.points import Points

PLANE = Plane(features=20, noise=0.5, seed=7)
ROWS = 50


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "quorate"


def everything(workload: Hyperplane, *, train: bool = True) -> Points:
    data = workload.dataset(train=train)
    return data.__getitems__(range(len(data)))


def test_a_row_is_a_function_of_its_number() -> None:
    inputs, targets = PLANE.rows([3, 40, 3, 0])
    again, targets_again = Plane(features=20, noise=0.5, seed=7).rows([0, 40])
    assert np.array_equal(inputs[[3, 1]], again) and np.array_equal(targets[[3, 1]], targets_again)
    assert np.array_equal(inputs[0], inputs[2])
    assert not np.intersect1d(inputs[0], inputs[1]).size
    assert not np.intersect1d(Plane(features=20, noise=0.5, seed=8).rows([3])[0], inputs[0]).size
    assert not np.intersect1d(PLANE.coefficients, inputs).size


def test_rows_do_not_run_into_each_other() -> None:
    wide = Plane(features=40_000, noise=0.5, seed=0)
    inputs, _ = wide.rows([0, 1])
    assert len(np.unique(inputs)) > 0.98 * inputs.size  # some of 80,000 floats are equal by chance
    assert abs(np.corrcoef(inputs)[0, 1]) < 0.03


def test_points_are_normal_and_lie_on_the_plane_but_for_the_noise() -> None:
    inputs, targets = PLANE.rows(list(range(4000)))
    assert abs(inputs.mean()) < 0.01 and abs(inputs.std() - 1) < 0.01
    rest = targets - inputs.astype(float) @ PLANE.coefficients[:-1] - PLANE.coefficients[-1]
    assert abs(rest.mean()) < 0.03 and rest.std() == pytest.approx(0.5, rel=0.05)


def test_file_and_counter_give_the_same() -> None:
    settings = {"points": 70, "features": 33, "seed": 2**64 - 1}
    for train in (True, False):
        file = everything(Hyperplane(**settings), train=train)
        counter = everything(Hyperplane(**settings, data="counter"), train=train)
        assert len(file.targets) == (70 if train else 8)
        assert torch.equal(file.inputs, counter.inputs) and torch.equal(file.targets, counter.targets)


def test_a_batch_is_its_rows() -> None:
    data = Hyperplane(points=70, features=5).dataset(train=False)
    batch = data.__getitems__([6, 0])
    for place, index in enumerate((6, 0)):
        inputs, target = data[index]
        assert torch.equal(batch.inputs[place], inputs) and torch.equal(batch.targets[place], target)
    with pytest.raises(IndexError):
        data.__getitems__([8])


def test_nobody_changes_the_file(folder: Path) -> None:
    inputs, _ = hyperplane.opened(PLANE, ROWS)
    (file,) = folder.glob("*.rows")
    whole = file.read_bytes()
    inputs[:] = 0
    assert file.read_bytes() == whole


def test_the_model_has_8193_parameters_and_its_loss_is_the_mean_squared_error() -> None:
    assert sum(parameter.numel() for parameter in Hyperplane().model().parameters()) == 8193
    workload = Hyperplane(points=64, features=5, data="counter")
    model, batch = workload.model(), everything(workload)
    weight, bias = model.parameters()
    errors = (batch.inputs * weight).sum(1) + bias - batch.targets
    assert workload.loss(model, batch).item() == pytest.approx(errors.square().mean().item(), rel=1e-5)
    assert workload.quality(model, batch)["squared_error"] == pytest.approx(errors.square().sum().item(), rel=1e-5)


def test_descent_ends_at_the_noise() -> None:
    workload = Hyperplane(points=4000, features=16, noise=0.7, data="counter")
    model, batch = workload.model(), everything(workload)
    optimizer = workload.optimizer(model, learning_rate=0.3)
    for _ in range(60):
        workload.loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    held_out = workload.quality(model, everything(workload, train=False))
    assert held_out["squared_error"] / held_out["examples"] == pytest.approx(0.49, rel=0.15)
    (weights, bias) = model.parameters()
    plane = torch.from_numpy(Plane(features=16, noise=0.7, seed=0).coefficients)
    torch.testing.assert_close(torch.cat([weights.detach()[0], bias.detach()]), plane, atol=0.05, rtol=0)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"x" + data[1:],
        lambda data: data[:-2] + b"\x07" + data[-1:],
        lambda data: data[:4096] + bytes(len(data) - 4096 - 4 * ROWS) + data[-4 * ROWS :],
        lambda data: bytes(len(data)),
    ],
    ids=["empty", "cut off", "longer", "header", "a target", "inputs are zeros", "all zeros"],
)
def test_a_damaged_file_is_written_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    first = [array.copy() for array in hyperplane.opened(PLANE, ROWS)]
    (file,) = folder.glob("*.rows")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    for ours, theirs in zip(hyperplane.opened(PLANE, ROWS), first, strict=True):
        assert np.array_equal(ours, theirs)
    assert file.read_bytes() == whole
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".rows"]


def test_other_planes_have_other_files(folder: Path) -> None:
    for plane in (PLANE, Plane(features=20, noise=0.6, seed=7), Plane(features=20, noise=0.5, seed=8)):
        hyperplane.opened(plane, ROWS)
    hyperplane.opened(PLANE, ROWS + 1)
    assert len(list(folder.glob("*.rows"))) == 4


def test_many_want_it_and_one_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = hyperplane._write

    def write(path: Path, plane: Plane, rows: int) -> None:
        written.append(path)
        original(path, plane, rows)

    monkeypatch.setattr(hyperplane, "_write", write)
    monkeypatch.setattr(hyperplane, "_POLL_SECONDS", 0.01)
    found: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: found.append(hyperplane.opened(PLANE, ROWS)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert len(found) == 8 and all(np.array_equal(each, found[0]) for each in found)


def test_threads_that_share_a_plane_draw_the_same_rows() -> None:
    plane = Plane(features=20, noise=0.5, seed=2**64 - 1)
    expected = plane.rows(list(range(400)))
    found: list[tuple[np.ndarray, np.ndarray]] = []
    threads = [threading.Thread(target=lambda: found.append(plane.rows(list(range(400))))) for _ in range(6)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(found) == 6
    for inputs, targets in found:
        assert np.array_equal(inputs, expected[0]) and np.array_equal(targets, expected[1])


def test_what_a_killed_writer_leaves_is_written_over(folder: Path) -> None:
    program = (
        "import os, signal\n"
        "from quorate.workloads import hyperplane\n"
        "from quorate.workloads.hyperplane import Plane\n"
        "hyperplane._header = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"hyperplane.opened(Plane(features=20, noise=0.5, seed=7), {ROWS})\n"
    )
    killed = subprocess.run([sys.executable, "-c", program])
    assert killed.returncode == -9
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".part"]
    assert np.array_equal(hyperplane.opened(PLANE, ROWS)[0], PLANE.rows(list(range(ROWS)))[0])
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".rows"]


def test_a_writer_that_does_not_finish_is_not_waited_for_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyperplane.opened(PLANE, ROWS)
    (file,) = folder.glob("*.rows")
    file.unlink()
    monkeypatch.setattr(hyperplane, "WAIT_SECONDS", 0.02)
    monkeypatch.setattr(hyperplane, "_POLL_SECONDS", 0.01)
    with file.with_suffix(".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigurationError, match=r'another process has held .*data="counter" needs no file'):
            hyperplane.opened(PLANE, ROWS)
    hyperplane.opened(PLANE, ROWS)


def test_a_full_disk_is_said_before_anything_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 3 * 10**8))
    workload = Hyperplane(points=100_000, features=8192)
    with pytest.raises(ConfigurationError, match=r'take 3.7 GB and .* has 0.3 GB free; data="counter" needs no file'):
        workload.dataset(train=True)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


def test_a_disk_that_fills_up_leaves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hyperplane, "_fill", full)
    with pytest.raises(ConfigurationError, match=r'cannot be kept \(No space left on device\); data="counter"'):
        hyperplane.opened(PLANE, ROWS)
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ConfigurationError, match=r'Not a directory\); data="counter"'):
        hyperplane.opened(PLANE, ROWS)
    monkeypatch.setattr(hyperplane, "cache_folder", lambda: None)
    with pytest.raises(ConfigurationError, match='no home for a cache folder; data="counter"'):
        hyperplane.opened(PLANE, ROWS)


def test_a_large_file_is_shown_being_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hyperplane.opened(PLANE, ROWS)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(hyperplane, "SHOWN_FROM_BYTES", 0)
    hyperplane.opened(PLANE, 300)
    first, *rest = capsys.readouterr().err.splitlines()
    assert "hyperplane: writing" in first and str(folder) in first and first.endswith("once")
    assert rest == [f"hyperplane: {tenths}0 % written" for tenths in (2, 4, 6, 8, 10)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"points": 0}, "points must be at least 1"),
        ({"features": 0}, "features must be at least 1"),
        ({"noise": -1.0}, "noise must be at least 0"),
        ({"noise": float("nan")}, "noise must be at least 0"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 2**64}, "seed must be below"),
        ({"data": "disk"}, 'data must be "file" or "counter", not "disk"'),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigurationError, match=f"hyperplane: {words}"):
        Hyperplane(**settings)  # type: ignore[arg-type]
