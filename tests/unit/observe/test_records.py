"""Records of training, and injected lateness, among virtual workers, where every figure is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.means.headers import COUNTS
from quorate.records.records import records_of, rows
from quorate.wire import current
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.scene import Scene, ones

STILL = Network(latency=0.0, bandwidth=1e15)


def run(
    size: int,
    task: Callable[[Any], object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    network: Network | None = STILL,
    **environment: str,
) -> list[list[dict[str, Any]]]:
    """The rows of every rank of a run of `task`, in which a step computes for 30 ms."""
    monkeypatch.setenv("QUORATE_RUN", str(folder))
    for name, value in environment.items():
        monkeypatch.setenv(f"QUORATE_{name}", value)

    VirtualWorld(size, compute=Constant(0.030), network=network).run(joined(task))
    return [list(rows(records_of(folder, rank))) for rank in range(size)]


def steps_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "step"]


def training(
    world: quorate.World, epochs: int = 1, share: str = "static", examples: int = 24, **fields: Any
) -> torch.nn.Module:
    data = TensorDataset(torch.ones(examples, 3), torch.arange(examples))
    loss = lambda trainer: trainer.model(trainer.batch[0]).square().mean()  # noqa: E731
    given: Any = {"data": data, "epochs": epochs, "shard": {"share": share}, "loss": loss, "model": (3, 2), **fields}
    model: torch.nn.Module = Scene(rate=0.1, **given).play(world).model
    return model


def test_where_the_time_of_a_step_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_by_rank = run(3, training, tmp_path, monkeypatch, IMBALANCE="rank:1:50ms")
    for rank in range(3):
        start, chosen, epoch, *steps, end = rows_by_rank[rank]
        assert (epoch["kind"], epoch["epoch"]) == ("epoch", 0)
        assert (start["kind"], start["rank"], start["size"], start["clock"]) == ("start", rank, 3, "virtual")
        assert (chosen["kind"], chosen["strategy"], chosen["parameters"]) == ("distribute", "all-reduce", 8)
        assert (end["kind"], end["steps"], end["peak_bytes"]) == ("end", 2, None)
        for number, step in enumerate(steps, 1):
            assert (step["kind"], step["step"], step["round"], step["examples"]) == ("step", number, number, 4)
            assert step["contributors"] == 3
            assert step["compute"] == pytest.approx(0.030, abs=1e-5)
            assert step["delay"] == pytest.approx(0.050 if rank == 1 else 0.0, abs=1e-5)
            assert step["wait"] == pytest.approx(0.0 if rank == 1 else 0.050, abs=1e-4)
            assert step["arrive"] - step["begin"] == pytest.approx(0.080 if rank == 1 else 0.030, abs=1e-4)
            assert step["end"] - step["begin"] == pytest.approx(0.080, abs=1e-3)
            assert step["loss"] > 0
        assert steps[1]["begin"] == steps[0]["end"]


def test_bytes_are_those_of_the_formula_and_belong_to_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_by_rank = run(3, training, tmp_path, monkeypatch)
    # parameters; header: what stands before its counts, used, parts, ranks
    numbers = 8 + COUNTS + 2 + 2 + 3
    assert COUNTS == 35, "each number of a header travels in every step"
    for ranks in rows_by_rank:
        for step in steps_of(ranks):
            assert step["bytes_out"] == step["bytes_in"] == all_reduce_bytes(4 * numbers, 3)


@pytest.mark.parametrize(
    ("said", "lateness"),
    [
        ({"IMBALANCE": "rank:2:x3"}, [0.030, 0.030, 0.090]),
        ({"MIN_STEP_TIME": "100ms"}, [0.120] * 3),  # forward takes 10 ms of the pace, backward comes after it
        ({"MIN_STEP_TIME": "100ms", "IMBALANCE": "rank:0:x2"}, [0.220, 0.120, 0.120]),
    ],
)
def test_imbalance_and_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], lateness: list[float]
) -> None:
    rows_by_rank = run(3, training, tmp_path, monkeypatch, **said)
    for ranks, expected in zip(rows_by_rank, lateness, strict=True):
        for step in steps_of(ranks):
            assert step["arrive"] - step["begin"] == pytest.approx(expected, abs=1e-4)
            if "MIN_STEP_TIME" in said:
                assert step["pace"] == pytest.approx(0.090, abs=1e-4), "no more than the pace, whoever is late"
            else:
                assert "pace" not in step


def test_a_worker_is_late_once_a_step_however_many_backward_passes_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(model=(3, 2), loss=ones, steps=3, passes=2)
    for ranks in run(2, scene.play, tmp_path, monkeypatch, IMBALANCE="rank:0:50ms+rank:1:50ms"):
        assert [step["delay"] for step in steps_of(ranks)] == pytest.approx([0.05] * 3)
        assert all(step["compute"] == pytest.approx(0.06, abs=1e-4) for step in steps_of(ranks))


def test_every_rank_draws_the_same_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_by_rank = run(
        4, lambda world: training(world, epochs=6), tmp_path, monkeypatch, IMBALANCE="one-of:40ms", SEED="3"
    )
    delays = [[step["delay"] for step in steps_of(ranks)] for ranks in rows_by_rank]
    assert all(sorted(together)[:3] == [0, 0, 0] and max(together) > 0.039 for together in zip(*delays, strict=True))
    assert len({max(range(4), key=together.__getitem__) for together in zip(*delays, strict=True)}) > 1


def test_step_times_do_not_show_who_is_slow_and_arrivals_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_by_rank = [
        steps_of(ranks)[1:]
        for ranks in run(4, lambda w: training(w, epochs=4), tmp_path, monkeypatch, IMBALANCE="rank:2:50ms")
    ]
    lengths = [sum(step["end"] - step["begin"] for step in ranks) / len(ranks) for ranks in rows_by_rank]
    assert max(lengths) - min(lengths) < 0.001
    arrivals = [[step["arrive"] for step in ranks] for ranks in rows_by_rank]
    assert all(max(range(4), key=together.__getitem__) == 2 for together in zip(*arrivals, strict=True))


def test_logs_and_evaluations_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(world: quorate.World) -> None:
        training(world)
        with world.evaluate():
            world.wire.clock.sleep(5.0)
        if world.is_first:
            quorate.log(accuracy=torch.tensor(0.5), epoch=1, note="half", none=None)

    first, second = run(2, task, tmp_path, monkeypatch)
    (log,) = [row for row in first if row["kind"] == "log"]
    assert log["values"] == {"accuracy": 0.5, "epoch": 1, "note": "half", "none": None}
    assert log["step"] == 3
    for own_rows in (first, second):
        (evaluation,) = [row for row in own_rows if row["kind"] == "evaluate"]
        assert evaluation["end"] - evaluation["begin"] == pytest.approx(5.0)
    assert not [row for row in second if row["kind"] == "log"]


@pytest.mark.parametrize("value", [torch.ones(2), [1.0], {"a": 1}])
def test_what_cannot_be_logged(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"quorate.log takes numbers.* but loss is a"):
        run(1, lambda world: quorate.log(loss=value), tmp_path, monkeypatch)


def test_without_records_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(world: quorate.World) -> None:
        quorate.log(a=1)
        training(world)

    def live(wire: Wire) -> None:
        current.enter(wire, thread_only=True)
        task(quorate.join(records=False))
        current.forget(thread_only=True)

    monkeypatch.setenv("QUORATE_RUN", str(tmp_path))
    VirtualWorld(2).run(live)
    assert not list(tmp_path.iterdir())


def test_learning_rates_are_multiplied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_by_rank = run(2, training, tmp_path, monkeypatch, LEARNING_RATE_FACTOR="0.25")
    assert rows_by_rank[0][1]["learning_rates"] == [0.025]


def test_a_scheduler_made_before_would_undo_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(world: quorate.World) -> None:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
        quorate.distribute(optimizer, model)

    with pytest.raises(ConfigurationError, match="create the scheduler after quorate.distribute"):
        run(2, task, tmp_path, monkeypatch, LEARNING_RATE_FACTOR="0.25")
