"""The GPU of a worker, in real processes without one: which one it takes, and in which threads it uses that."""

from __future__ import annotations

import io
import os
from contextlib import redirect_stderr
from functools import partial
from typing import Any

import pytest
import torch

import quorate
from quorate.core.contracts import Board, Wire
from quorate.launch.worker import join
from quorate.wire.real.gpus import own_gpu
from quorate.wire.real.shared import is_possible
from quorate.wire.real.wire import RealWire
from tests.support.fake_cuda import FakeCuda
from tests.support.processes import run_real, run_real_board

CHOICES: dict[str, tuple[dict[str, str], int | None, list[int]]] = {
    "the launcher's number": ({"LOCAL_RANK": "{rank}"}, None, [0, 1, 2]),
    "no number": ({}, None, [0, 1, 2]),
    "the script's choice beside a number": ({"LOCAL_RANK": "{rank}"}, 5, [5, 6, 7]),
    "the script's choice without a number": ({}, 0, [0, 1, 2]),
    "the script's choice of the first GPU": ({}, -1, [0, 0, 0]),
}
"""By case: environment, first of the GPUs that the scripts choose (-1: the first GPU for all), the workers' GPUs."""


def taken(names: dict[str, str], first: int | None, wire: Wire) -> tuple[int, int]:
    assert isinstance(wire, RealWire)
    os.environ.pop("LOCAL_RANK", None)
    os.environ.update({name: value.format(rank=wire.rank) for name, value in names.items()})
    with pytest.MonkeyPatch.context() as patch:
        cuda = FakeCuda(patch)
        if first is not None:
            torch.cuda.set_device(0 if first < 0 else first + wire.rank)
        device = join._device(wire.endpoint)
        assert wire.endpoint.gpu == device
        return device.index, cuda.current()


@pytest.mark.parametrize("case", CHOICES)
def test_the_gpu_of_a_worker(case: str) -> None:
    names, first, wanted = CHOICES[case]
    assert run_real(3, partial(taken, names, first)) == [(index, index) for index in wanted]


@pytest.mark.skipif(not is_possible(), reason="needs memory that processes share")
@pytest.mark.parametrize("wrapped", [False, True])
def test_threads_use_the_gpu_of_the_model(wrapped: bool) -> None:
    assert run_real(2, partial(of_threads, wrapped)) == [([3, 3], 3, 3)] * 2


def of_threads(wrapped: bool, wire: Wire) -> tuple[list[int], int, int]:
    """Where memory is pinned by this thread and by a task, and the current GPU of the task and of this thread."""
    assert isinstance(wire, RealWire)
    with pytest.MonkeyPatch.context() as patch:
        cuda, seen = FakeCuda(patch), list[int]()
        (wire.group([0, 1]) if wrapped else wire).use_device(torch.device("cuda", 3))
        wire.use_device(torch.device("cuda", 4))  # a second model
        held = [wire.empty(1 << 17, torch.float32)]

        def task(channel: Wire) -> None:
            held.append(channel.empty(1 << 18, torch.float32))
            seen.append(torch.cuda.current_device())

        wire.spawn(task, "beside").wait()
        return cuda.pinned, seen[0], cuda.current()


def lines(shared_gpu: bool, chosen: str, board: Board, rank: int, size: int) -> str:
    """What is on stderr where tensors of a device are summed in the memory of the host, twice."""
    os.environ["QUORATE_GPU_BACKEND"] = chosen
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        if shared_gpu:
            os.environ["LOCAL_RANK"] = str(rank)
            FakeCuda(patch, count=1)
            patch.setattr(torch.cuda, "is_initialized", lambda: False)
            patch.setattr("quorate.launch.worker.join.backend_here", lambda gpus: "gloo")
        else:
            patch.setattr(torch.cuda, "is_available", lambda: False)
        world: Any = quorate.join(records=False)
        wire = world.wire
        with redirect_stderr(said):
            device = torch.device("cuda" if shared_gpu or chosen else "mps")
            for _ in range(2):
                wire.tell_of_host(device)
    return said.getvalue()


@pytest.mark.parametrize(
    ("shared_gpu", "chosen", "why"),
    [
        (True, "", "ranks 0 and 1 share a GPU"),
        (False, "host", "QUORATE_GPU_BACKEND=host"),
        (False, "", "there is no other way for mps"),
    ],
)
def test_a_line_says_why_sums_are_formed_by_the_host(shared_gpu: bool, chosen: str, why: str) -> None:
    first, second = run_real_board(2, partial(lines, shared_gpu, chosen))
    kind = "mps" if "mps" in why else "cuda"
    assert first == f"quorate: tensors on {kind} devices are summed in the memory of the host: {why}\n"
    assert second == ""


def test_slices_of_one_gpu_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeCuda(monkeypatch)
    names = own_gpu()
    torch.cuda.set_device(1)
    assert names is not None and names[0] == "gpu-0" and len(names) == 2
    assert not set(names) & set(own_gpu() or ())
