"""What servers write down: how stale gradients were and what they counted, what was dropped, and what went through."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from quorate.records.records import records_of, rows
from quorate.report.reading.rank import served_of
from quorate.report.reading.run import read_run
from quorate.report.topics.servers import figures_of_servers
from quorate.wire.virtual.compute import Constant
from quorate.wire.virtual.network import Network
from tests.support.scene import Scene, Trainer

SIZE, STEPS, BYTES = 4, 12, 8 * 4
"""Workers, steps of each, and bytes of the model."""
STILL = Network(latency=0.0, bandwidth=1e15)


def lived(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    slow: int = SIZE - 1,
    late: float = 0.05,
    idle: int | None = None,
    **settings: Any,
) -> list[list[Any]]:
    """The `served` rows of every rank; all rest once, and rank `slow` sleeps `late` seconds before each step.

    Rank `idle` never has a gradient.
    """
    monkeypatch.setenv("QUORATE_RUN", str(folder))

    def loss(trainer: Trainer) -> Any:
        return sum((p * p).sum() for p in trainer.model.parameters()) if trainer.rank != idle else None

    fields: dict[str, Any] = {"model": (3, 2), "rate": 0.01, "steps": STEPS, "rests": [STEPS // 2], **settings}
    pause, world = (lambda rank, _: late * (rank == slow)), {"compute": Constant(0.030), "network": STILL}
    Scene("parameter-server", SIZE, loss=loss, pause=pause, world=world, **fields).run()
    told = [[row for row in rows(records_of(folder, rank)) if row["kind"] == "served"] for rank in range(SIZE)]
    assert all(served_of(row) is not None for own in told for row in own)
    return told


def summed(own: list[Any], key: str) -> Counter[int]:
    """How many gradients, by the first number of each entry."""
    found: Counter[int] = Counter()
    for row in own:
        for first, count, *_ in row[key]:
            found[int(first)] += count
    return found


def test_every_gradient_is_told_once_by_the_server_that_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = lived(tmp_path, monkeypatch, servers=2, mode="async")
    assert [len(own) >= 2 for own in told] == [True, True, False, False], "at every rest, and in the end"
    assert summed(told[0], "taken").total() == sum(row["steps"] for row in told[0]) == SIZE * STEPS
    assert summed(told[0], "given") == dict.fromkeys(range(SIZE), STEPS)
    assert max(summed(told[0], "taken")) > 2, "the late one"
    assert all("taken" not in row and row["steps"] for row in told[1])


@pytest.mark.parametrize("servers", [1, 2])
def test_bytes_are_those_of_the_other_workers(servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = lived(tmp_path, monkeypatch, servers=servers, mode="async")
    came = sum(row["bytes_in"] for own in told for row in own)
    went = sum(row["bytes_out"] for own in told for row in own)
    assert came == (SIZE - 1) * STEPS * BYTES
    assert went == (SIZE - 1) * (STEPS + 2) * BYTES, "each reads once a step, and at both rests"


def test_rows_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = lived(tmp_path, monkeypatch, servers=1, mode="async", slow=0, late=3.0)[0]
    assert len(told) > 4, "one every few seconds"
    for row, after in pairwise(told):
        assert after["time"] - after["seconds"] == pytest.approx(row["time"])
    assert sum(row["seconds"] for row in told) == pytest.approx(told[-1]["time"], abs=0.1)


def test_what_is_scaled_counts_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = lived(tmp_path, monkeypatch, servers=1, mode="async", staleness_scaling="inverse")
    for row in told[0]:
        for (age, count), counted in zip(row["taken"], row["counted"], strict=True):
            assert counted == pytest.approx(count / max(1, age), abs=1e-5)
    assert max(summed(told[0], "taken")) > 2


def test_what_comes_too_late_is_told_as_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own, *_) = lived(tmp_path, monkeypatch, servers=1, mode="sync", backup=1)
    taken, dropped = summed(own, "taken"), summed(own, "dropped")
    assert taken.total() + dropped.total() == SIZE * STEPS and taken.keys() == {0}
    assert dropped.total() >= 3 and min(dropped) > 0, "the late one of four"
    late = [0, 0]
    for rank, ours, theirs in (given for row in own for given in row["given"]):
        late = [late[0] + ours, late[1] + theirs] if rank == SIZE - 1 else late
        assert rank == SIZE - 1 or not theirs
    assert late[1] == dropped.total() and sum(late) == STEPS


def test_all_in_step_count_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own, *_) = lived(tmp_path, monkeypatch, servers=1, mode="sync")
    assert sum(row["steps"] for row in own) == STEPS
    for row in own:
        assert row["counted"] == [count for _, count in row["taken"]]


def test_readers_find_those_of_the_first_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own, *_) = lived(tmp_path, monkeypatch, servers=1, mode="async")
    with records_of(tmp_path, 0).open("a") as file:
        file.write(json.dumps({**own[0], "optimizer": "2"}) + "\n")
    found = figures_of_servers({one.rank: one.served for one in read_run(tmp_path).ranks})
    assert found is not None and found.steps == found.taken.total() == SIZE * STEPS
    assert found.loads.keys() == {0} and found.loads[0].bytes_in == (SIZE - 1) * STEPS * BYTES


@pytest.mark.parametrize("servers", [1, 2, SIZE])
def test_traffic_is_as_the_formulas_say(servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts of equal size; see the explanation of parameter servers."""
    model = lambda: torch.nn.ParameterList([torch.ones(3) for _ in range(SIZE)])  # noqa: E731
    lived(tmp_path, monkeypatch, model=model, servers=servers, mode="sync", late=0.0)
    as_server = ((SIZE - 1) + (servers - 1)) / servers
    for rank in range(SIZE):
        steps = [row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "step"][1 : STEPS // 2 - 1]
        for key in ("bytes_out", "bytes_in"):
            found = sum(step[key] for step in steps) / len(steps) / (3 * 4 * SIZE)
            assert found == pytest.approx(as_server if rank < servers else 1.0), key


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_who_has_no_gradient_has_none_dropped(mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own, *_) = lived(tmp_path, monkeypatch, servers=1, mode=mode, idle=1)
    assert summed(own, "taken").total() == (SIZE - 1) * STEPS and not summed(own, "dropped")
    assert {rank for row in own for rank, *_ in row["given"]} == {0, 2, 3}
