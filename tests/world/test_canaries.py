"""A file that runs code when it is unpickled, put into every place that is read: it is refused, and never runs."""

from __future__ import annotations

import io
import pickle
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from quorate.checkpoint.folder import verify
from quorate.checkpoint.tensor_file import read_tensors
from quorate.cli.main import main
from quorate.core.durations import parse_trace
from quorate.core.errors import ConfigurationError, QuorateError
from quorate.wire.board_frames import BadFrame, read_frame
from quorate.wire.failure import failure_in
from quorate.wire.frames import Reader
from quorate.workloads import stdlib_corpus, workloads
from tests.support.made_records import make_comparison, make_run
from tests.support.workload_files import write_cifar10_binary, write_videos


class Canary:
    """Whoever unpickles it makes the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def plain(canary: Canary) -> bytes:
    return pickle.dumps(canary)


def as_torch_saves(canary: Canary) -> bytes:
    data = io.BytesIO()
    torch.save({"model": canary}, data)
    return data.getvalue()


def as_numpy_saves(canary: Canary) -> bytes:
    data = io.BytesIO()
    np.save(data, np.array([canary], dtype=object), allow_pickle=True)
    return data.getvalue()


def as_an_archive(canary: Canary) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(canary))
        archive.writestr("__main__.py", f"open({str(canary.path)!r}, 'w')")
    return data.getvalue()


KINDS = (plain, as_torch_saves, as_numpy_saves, as_an_archive)


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def evil(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[bytes]:
    """What is put everywhere; that it would have run is seen at the end."""
    make: Callable[[Canary], bytes] = request.param
    canary = Canary(tmp_path / "it-has-run")
    data = make(canary)
    yield data
    assert not canary.path.exists()
    pickle.loads(plain(canary))
    assert canary.path.exists()


def command(*words: str) -> None:
    """Runs it; it ends well or in wrong input."""
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code in (0, 2)


def test_in_the_folder_of_a_run(evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "outcome.json", "rank-0.jsonl", "rank-1.jsonl", "rank-9.jsonl"):
        make_run(tmp_path / "run", steps=3, ranks=2)
        (tmp_path / "run" / name).write_bytes(evil)
        command("report", "run")
        command("trace", "run")
        shutil.rmtree(tmp_path / "run")


def test_in_the_folder_of_a_comparison(evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("compare.json", "ddp/seed-0/run.json", "ddp/seed-0/rank-0.jsonl"):
        make_comparison(tmp_path / "all", seeds=(0,), steps=3, ranks=2, fails=False)
        (tmp_path / "all" / name).write_bytes(evil)
        command("report", "all")
        command("compare", "--continue", "all", "--dry-run")
        shutil.rmtree(tmp_path / "all")


def test_as_configuration_and_as_a_trace(evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "evil").write_bytes(evil)
    command("run", "--dry-run", "--config", "evil", "train.py")
    command("run", "--dry-run", "--imbalance", "trace:evil", "train.py")
    command("compare", "--dry-run", "-n", "2", "--min-step-time", "trace:evil", "least-squares")
    with pytest.raises(ConfigurationError):
        parse_trace("trace:evil", seed=0)


def test_in_a_checkpoint(evil: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "step-1"
    folder.mkdir()
    for name in ("manifest.json", "model.safetensors", "rank-0.safetensors"):
        (folder / name).write_bytes(evil)
        with pytest.raises(QuorateError):
            verify(folder)
        with pytest.raises(QuorateError):
            read_tensors(folder / name)


def test_as_data(evil: bytes, tmp_path: Path) -> None:
    folder = write_cifar10_binary(tmp_path / "cifar10", 7)
    for path in folder.iterdir():
        path.write_bytes(evil)
    with pytest.raises(ConfigurationError):
        workloads.get("cifar10")(folder=str(folder), records=7).dataset(train=True)  # type: ignore[call-arg]
    videos = write_videos(tmp_path / "videos", 6, features=4, classes=2)
    for path in videos.rglob("*.npy"):
        path.write_bytes(evil)
    with pytest.raises(ConfigurationError):
        workloads.get("ucf101-features")(folder=str(videos), classes=2).dataset(train=True)[0]  # type: ignore


def test_in_the_cache(evil: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(evil)
    assert stdlib_corpus.load(tmp_path / "kept") is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = workloads.get("hyperplane")(features=8, points=64)  # type: ignore[call-arg]
    made.dataset(train=True)
    for path in (tmp_path / "quorate").glob("hyperplane-*.rows"):
        path.write_bytes(evil)
    made.dataset(train=True)


def test_on_the_wire_and_on_the_board(evil: bytes, tmp_path: Path) -> None:
    reader = Reader()
    rest = memoryview(evil)
    with suppress(ValueError):  # what is no frame
        while len(rest):
            count = min(len(reader.want), len(rest))
            reader.want[:count] = rest[:count]
            rest = rest[count:]
            assert not list(reader.got(count))
    assert "cannot be read" in str(failure_in(evil))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(evil)
        ours.close()
        with suppress(BadFrame):
            assert read_frame(theirs) is None
