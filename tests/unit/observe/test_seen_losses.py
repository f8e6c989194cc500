"""Losses in the records: unscaled, and never waited for."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import torch

import quorate
from quorate.observe import seen_losses
from quorate.observe.seen_losses import CopiedLosses, SeenLosses, scale_of
from quorate.records.records import Recorder, rows
from quorate.records.rows import Log, Step


class Late:
    """A number that comes when it is told to; asking for it before is an error, unless it may be `waited` for."""

    def __init__(self, number: float) -> None:
        self.number, self.has_come, self.waited = number, False, False

    def is_there(self) -> bool:
        return self.has_come

    def value(self) -> float:
        self.waited |= not self.has_come
        return self.number


def step(number: int) -> Step:
    return Step(step=number, optimizer="1", round=number, begin=number - 1.0, arrive=number - 0.5, end=float(number))


def losses_in(path: Path) -> list[float | None]:
    return [row["loss"] for row in rows(path, ("step",))]


def test_rows_wait_for_their_losses_in_order(tmp_path: Path) -> None:
    recorder = Recorder(path := tmp_path / "rank-0.jsonl")
    late = [Late(number / 4) for number in range(1, 5)]
    for number, loss in enumerate(late, 1):
        recorder.step(step(number), loss)
    assert losses_in(path) == []
    late[0].has_come = late[1].has_come = late[3].has_come = True
    recorder.step(step(5))
    assert losses_in(path) == [0.25, 0.5], "the fourth stays behind the third"
    late[2].has_come = True
    recorder.step(step(6))
    assert losses_in(path) == [0.25, 0.5, 0.75, 1.0, None, None]
    recorder.close()
    assert not any(loss.waited for loss in late)


def test_a_row_of_another_kind_waits_for_those_before_it(tmp_path: Path) -> None:
    recorder, late = Recorder(path := tmp_path / "rank-0.jsonl"), Late(0.5)
    recorder.step(step(1), late)
    recorder.write(Log(step=1, time=1.0, values={}))
    recorder.close()
    assert late.waited and [row["kind"] for row in rows(path)] == ["step", "log"]


def test_a_device_that_falls_behind_holds_no_endless_rows(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank-0.jsonl", held=2)
    late = [Late(1.0) for _ in range(40)]
    for number, loss in enumerate(late, 1):
        recorder.step(step(number), loss)
    assert late[0].waited and len(recorder._rows) <= 16
    recorder.close()


def test_what_a_grad_scaler_has_multiplied_is_undone() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weight = torch.ones(3, requires_grad=True)
    for divided_by in (1, 4):
        loss = (weight * torch.tensor([0.1, 0.2, 0.4])).sum() / divided_by
        seen = SeenLosses()
        seen.add(scaler.scale(loss))
        assert seen.of_script(is_scaled=True)[0] == pytest.approx(loss.item())
        assert seen.of_script(is_scaled=False)[0] == pytest.approx(1024 * loss.item())
    seen.add(loss)
    assert seen.of_script(is_scaled=True) == (None, None), "a loss whose scale is not known makes the mean unknown"


def test_a_loss_that_a_script_multiplies_by_0() -> None:
    seen = SeenLosses()
    seen.add(torch.ones((), requires_grad=True) * torch.tensor(0.0))
    assert seen.known == 0.0
    assert seen.of_script(is_scaled=True) == (None, None)
    assert seen.of_script(is_scaled=False) == (0.0, None)


def test_other_products_are_no_scale() -> None:
    weight, other = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    assert scale_of(weight * other) is None and scale_of(weight.sum()) is None and scale_of(torch.ones(())) is None
    assert scale_of(weight * torch.tensor(3.0)) == 3.0


def test_under_a_grad_scaler_the_records_have_the_scripts_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own: list[float] = []

    def train() -> None:
        world = quorate.join()
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for number in range(4):
            loss = model(torch.full((2, 3), float(number))).square().mean()
            scaler.scale(loss).backward()
            if number % 2:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            if world.is_first:
                own.append(loss.item())

    monkeypatch.chdir(tmp_path)
    run = quorate.launch(train, virtual=2, progress=False)
    assert losses_in(run.folder / "rank-0.jsonl") == pytest.approx(own, abs=1e-6)


def test_on_a_gpu_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that only says it is on a GPU refuses whatever needs its number."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    taken: list[torch.Tensor] = []
    monkeypatch.setattr(seen_losses, "copied", lambda number: taken.append(number) or (number, Late(0.0)))
    with FakeTensorMode():
        loss = torch.empty((), device="cuda")
        seen = SeenLosses()
        seen.add(loss)
        known, late = seen.of_script(is_scaled=False)
    assert known is None and isinstance(late, CopiedLosses) and seen.known is None
    assert [x.device.type for x in taken] == ["cuda"]


def test_the_copy_is_asynchronous() -> None:
    """No GPU is needed to see that nothing in it asks a tensor for its number."""
    called = {
        node.func.attr
        for node in ast.walk(ast.parse(inspect.getsource(seen_losses.copied)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert called == {"empty", "copy_", "Event", "record", "current_stream"}
    assert "non_blocking=True" in inspect.getsource(seen_losses.copied)
