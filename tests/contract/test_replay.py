"""A run under rounds, trained once more as its records say it went: every round has the bits it had."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.replay import Compared, compared
from quorate.core.errors import ConfigurationError
from quorate.core.tape import tape_of
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun
from quorate.launch.warm.virtual import run_request
from quorate.strategies import strategies

SCRIPT = """
import os, sys, torch, quorate
world = quorate.join()
size, dies = int(sys.argv[1]), sys.argv[2:] == ["dies"] and not os.environ.get("QUORATE_REPLAY")
torch.manual_seed(7)
x = torch.randn(size, 5)
data = torch.utils.data.TensorDataset(x, x @ torch.randn(5, 2))
model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.02), model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
loader = quorate.shard(data, 4)
torch.manual_seed(world.rank)
steps = 0
for epoch in range(2):
    for a, b in loader:
        (model(a + 0.1 * torch.randn_like(a)) - b).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        steps += 1
        if dies and (world.rank, steps) == (1, 5):
            world.wire.crash()
    with world.evaluate():
        quorate.log(loss=(model(x) - x[:, :2]).square().mean().item())
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "decoupled-diloco": {"sync_every": 4, "fragments": 2},
    "async-local-sgd": {"sync_every": 3},
    "eager-averaging": {"sync_every": 1},
    "quorum": {"wait_for": 2, "overlap": True, "late_weight": "falling"},
    "backup-workers": {"wait_for": "majority"},
}
OF_ROUNDS = sorted(name for name in strategies.names() if strategies.get(name).meets == "rounds")


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def trained(
    folder: Path, strategy: str, size: int, *arguments: str, replay: Path | None = None, **settings: Any
) -> int:
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    folder.mkdir()
    virtual = VirtualRun(seed=3, compute=None if replay is not None else "lognormal:10ms:1.0")
    request = RunRequest(
        script=str(script),
        arguments=[str(12 * size), *arguments],
        overrides=Overrides(
            strategy=strategy, settings=settings, seed=3, replay=None if replay is None else str(replay)
        ),
        size=size,
        folder=folder,
        virtual=virtual,
    )
    return run_request(request, virtual)


def replayed(tmp_path: Path, strategy: str, size: int, *arguments: str, **settings: Any) -> Compared:
    """A run, and what its replay has made of it."""
    status = trained(tmp_path / "run", strategy, size, *arguments, **settings)
    tape = tape_of(tmp_path / "run")
    assert status == 0 or tape.gone
    trained(tmp_path / "again", strategy, size, *arguments, replay=tmp_path / "run", **settings)
    found = compared(tape, tmp_path / "again")
    assert found.equal > 2
    return found


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("strategy", OF_ROUNDS)
def test_every_round_has_the_bits_it_had(strategy: str, size: int, tmp_path: Path) -> None:
    settings = SETTINGS.get(strategy, {})
    if settings.get("wait_for") == 2 and size == 2:
        settings = {**settings, "wait_for": 1}
    found = replayed(tmp_path, strategy, size, **settings)
    assert found.is_equal, found


@pytest.mark.parametrize("strategy", ["eager-solo", "quorum", "decoupled-diloco", "async-local-sgd"])
def test_who_died_dies_again(strategy: str, tmp_path: Path) -> None:
    found = replayed(tmp_path, strategy, 3, "dies", **SETTINGS.get(strategy, {}), on_death="continue")
    assert found.is_equal, found
    assert tape_of(tmp_path / "again").gone == tape_of(tmp_path / "run").gone == {1}


def test_another_number_somewhere_is_found(tmp_path: Path) -> None:
    replayed(tmp_path, "eager-solo", 3)
    tape = tape_of(tmp_path / "run")
    last = max(number for number, row in tape.rounds["1"].items() if row.digest is not None)
    records = tmp_path / "again" / "rank-0.jsonl"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "round" and line["number"] == last:
            line["digest"] = "0" * 16
    records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = compared(tape, tmp_path / "again")
    assert found.differs is not None and found.differs[1].number == last
    assert f"round {last} has other bits" in found.in_words(tape)


def test_a_script_that_does_something_else_is_said_to(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "run", "eager-solo", 3) == 0
    again = tmp_path / "other.py"
    again.write_text(SCRIPT.replace("quorate.shard(data, 4)", "quorate.shard(data, 2)"))
    request = RunRequest(
        script=str(again),
        arguments=["36"],
        overrides=Overrides(strategy="eager-solo", seed=3, replay=str(tmp_path / "run")),
        size=3,
        folder=tmp_path / "other",
        virtual=VirtualRun(seed=3),
    )
    assert run_request(request, VirtualRun(seed=3)) != 0
    assert "the script does something else than it did" in capfd.readouterr().err


def test_what_cannot_be_replayed_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "all", "all-reduce", 2) == 0
    with pytest.raises(ConfigurationError, match="has records of no rounds"):
        tape_of(tmp_path / "all")
    assert trained(tmp_path / "run", "eager-solo", 2) == 0
    records = tmp_path / "run" / "rank-1.jsonl"
    whole = records.read_text()
    records.write_text("".join(line + "\n" for line in whole.splitlines() if '"kind":"end"' not in line))
    with pytest.raises(ConfigurationError, match="did not come to its end"):
        tape_of(tmp_path / "run")
    records.write_text(whole + whole)
    with pytest.raises(ConfigurationError, match="was resumed"):
        tape_of(tmp_path / "run")
    row = {"kind": "applied", "optimizer": "1", "rests": 0, "look": 3, "round": 7, "is_copy": True}
    records.write_text(whole)
    for rank in (0, 1):
        with (tmp_path / "run" / f"rank-{rank}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    assert trained(tmp_path / "again", "eager-solo", 2, replay=tmp_path / "run") == 2
    assert "nobody else is known to have applied that round" in capfd.readouterr().err
    row = {"kind": "joined", "time": 1.0, "rank": 2, "round": 3, "live": 3}
    records.write_text(whole + json.dumps(row) + "\n")
    with pytest.raises(ConfigurationError, match="rank 2 joined"):
        tape_of(tmp_path / "run")
