"""A run under rounds, trained once more as its records say it went: every round has the bits it had."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from quorate.cli.replay import Compared, compared
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat
from quorate.launch.run.overrides import Overrides
from quorate.launch.warm.request import RunRequest, VirtualRun, run_request
from quorate.records.records import records_of, rows
from quorate.records.tape import tape_of
from quorate.rounds import forming
from quorate.rounds.coding import Coding, Encoded
from quorate.strategies import strategies
from tests.unit.rounds.test_silence import let_stand_still, small_logs

SCRIPT = """
import os, sys, torch, quorate
world = quorate.join()
size, dies = int(sys.argv[1]), sys.argv[2:] == ["dies"] and not os.environ.get("QUORATE_REPLAY")
stands = sys.argv[2:] == ["stands"] and not os.environ.get("QUORATE_REPLAY")
torch.manual_seed(7)
x = torch.randn(size * (5 if sys.argv[2:] == ["stands"] else 1), 5)
data = torch.utils.data.TensorDataset(x, x @ torch.randn(5, 2))
model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.02), model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
loader = quorate.loader(data, 4)
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
        if stands and (world.rank, steps) == (1, 5):
            from tests.unit.rounds.test_silence import stand_still
            stand_still(1.0)
            world.wire.clock.sleep(1.0)
    with world.evaluate():
        quorate.log(loss=(model(x) - x[:, :2]).square().mean().item())
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "decoupled-diloco": {"sync_every": 4, "fragments": 2},
    "async-local-sgd": {"sync_every": 3, "outer": "adam", "outer_rate": 0.01, "late": "cosine", "late_cutoff": 3.0},
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
    folder: Path,
    strategy: str,
    size: int,
    *arguments: str,
    replay: Path | None = None,
    text: str = SCRIPT,
    joiners: int = 0,
    seed: int = 3,
    **settings: Any,
) -> int:
    script = folder.parent / "script.py"
    script.write_text(text)
    folder.mkdir()
    compute = None if replay is not None else "lognormal:10ms:1.0"
    virtual = VirtualRun(seed=seed, compute=compute, joiners=joiners)
    request = RunRequest(
        script=str(script),
        arguments=[str(12 * size), *arguments],
        overrides=Overrides(
            strategy=strategy, settings=settings, seed=seed, replay=None if replay is None else str(replay)
        ),
        size=size,
        folder=folder,
        virtual=virtual,
    )
    return run_request(request, virtual)


def replayed(
    tmp_path: Path, strategy: str, size: int, *arguments: str, text: str = SCRIPT, joiners: int = 0, **settings: Any
) -> Compared:
    """A run, and what its replay has made of it."""
    status = trained(tmp_path / "run", strategy, size, *arguments, text=text, joiners=joiners, **settings)
    tape = tape_of(tmp_path / "run")
    assert status == 0 or tape.dead
    again: dict[str, Any] = {"replay": tmp_path / "run", "joiners": tape.joiners, "text": text, **settings}
    trained(tmp_path / "again", strategy, size, *arguments, **again)
    found = compared(tape, tmp_path / "again")
    assert found.equal > 2
    return found


@pytest.mark.covering(("strategy", "size"), product(OF_ROUNDS, [2, 3, 5]))
def test_every_round_has_the_bits_it_had(strategy: str, size: int, tmp_path: Path) -> None:
    settings = SETTINGS.get(strategy, {})
    if settings.get("wait_for") == 2 and size == 2:
        settings = {**settings, "wait_for": 1}
    found = replayed(tmp_path, strategy, size, **settings)
    assert found.is_equal, found


def test_rounds_with_rows_of_sparse_gradients_have_the_bits_they_had(tmp_path: Path) -> None:
    bags = "torch.nn.EmbeddingBag(40, 5, mode='sum', sparse=True)"
    text = SCRIPT.replace("torch.nn.Sequential(", f"torch.nn.Sequential({bags}, ").replace("AdamW", "SGD")
    text = text.replace("a + 0.1 * torch.randn_like(a)", "(7 * a).long() % 40").replace(
        "model(x)", "model((7 * x).long() % 40)"
    )
    text = text.replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", "")
    found = replayed(tmp_path, "quorum", 3, text=text, wait_for=2, on_death="stop")
    assert found.is_equal, found


CODED = {"compress": "top-k", "density": 0.1, "dense_below": 4}
CODECS: dict[str, dict[str, Any]] = {
    "top-k": {"density": 0.1},
    "random-k": {"density": 0.2, "error_feedback": True},
    "qsgd": {},
    "one-bit": {},
    "threshold": {"at": 1e-4},
}


@pytest.mark.covering(
    ("codec", "strategy"), product(CODECS, ["eager-solo", "quorum", "decoupled-diloco", "async-local-sgd"])
)
def test_what_codecs_have_written_small_has_the_bits_it_had(strategy: str, codec: str, tmp_path: Path) -> None:
    """Each worker encodes again, with what was left out of what it had given before."""
    settings = {**SETTINGS.get(strategy, {}), "compress": codec, "dense_below": 4, **CODECS[codec]}
    found = replayed(tmp_path, strategy, 3, **settings)
    assert found.is_equal, found


@pytest.mark.parametrize("strategy", ["eager-solo", "quorum", "decoupled-diloco"])
def test_what_a_round_that_went_by_was_given_small_is_as_if_it_had_not_been(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came_back, undo = list[bool](), Coding.undone

    def undone(self: Coding, given: Encoded, error: Flat | None) -> Flat | None:
        came_back.append(error is given.after)
        return undo(self, given, error)

    let_stand_still(monkeypatch)
    monkeypatch.setattr(Coding, "undone", undone)
    found = replayed(tmp_path, strategy, 3, "stands", **SETTINGS.get(strategy, {}), **CODED)
    assert came_back and all(came_back)
    assert found.is_equal, found


@pytest.mark.parametrize("coded", [{}, CODED])
@pytest.mark.parametrize("strategy", ["eager-solo", "decoupled-diloco"])
def test_a_layer_freezes_again(strategy: str, coded: dict[str, Any], tmp_path: Path) -> None:
    """What was left out of the other one goes on."""
    end = "    with world.evaluate():"
    text = SCRIPT.replace(end, f"    model[0].requires_grad_(False)\n{end}")
    found = replayed(tmp_path, strategy, 3, text=text, **SETTINGS.get(strategy, {}), **coded)
    assert found.is_equal, found


TWO = """
import torch, quorate
world = quorate.join()
torch.manual_seed(7)
x = torch.randn(60, 5)
models = [torch.nn.Linear(5, 2), torch.nn.Linear(2, 1)]
optimizers = [quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.02), model) for model in models]
torch.manual_seed(world.rank)
for (a,) in quorate.loader(torch.utils.data.TensorDataset(x), 4):
    models[1](models[0](a + 0.1 * torch.randn_like(a))).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""


def test_each_of_two_optimizers_has_rounds_of_its_own(tmp_path: Path) -> None:
    found = replayed(tmp_path, "eager-solo", 3, text=TWO)
    assert found.is_equal, found
    rounds = tape_of(tmp_path / "run").rounds
    assert sorted(rounds) == ["1", "2"]
    assert [one.digest for one in rounds["1"].values()] != [one.digest for one in rounds["2"].values()]


@pytest.mark.parametrize("coded", [{}, CODED])
@pytest.mark.parametrize("strategy", ["eager-solo", "quorum", "decoupled-diloco", "async-local-sgd"])
def test_who_died_dies_again(strategy: str, coded: dict[str, Any], tmp_path: Path) -> None:
    found = replayed(tmp_path, strategy, 3, "dies", **SETTINGS.get(strategy, {}), **coded, on_death="continue")
    assert found.is_equal, found
    assert tape_of(tmp_path / "again").dead == tape_of(tmp_path / "run").dead == {1}


@pytest.mark.parametrize("coded", [{}, CODED])
@pytest.mark.parametrize("strategy", ["eager-solo", "decoupled-diloco", "async-local-sgd"])
def test_who_went_on_from_a_copy_does_so_again(
    strategy: str, coded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_stand_still(monkeypatch)
    small_logs(monkeypatch)
    found = replayed(tmp_path, strategy, 3, "stands", **SETTINGS.get(strategy, {}), **coded)
    assert 1 in tape_of(tmp_path / "run").copies["1"]
    assert found.is_equal, found


JOINING = """
import os, random, sys, torch, quorate
from quorate.wire import current
wire = current.here().wire
draw = random.Random(int(sys.argv[2]) * 100 + wire.rank)
if wire.rank >= wire.size:
    wire.clock.sleep(draw.uniform(0.0, 0.4))
may_die = sys.argv[3:] == ["dies"] and wire.rank != int(sys.argv[2]) % wire.size
dies = draw.choice([0, 0, -1, 5, 9]) if may_die and not os.environ.get("QUORATE_REPLAY") else 0
world = quorate.join()
torch.manual_seed(7)
x = torch.randn(4 * int(sys.argv[1]), 5)
data = torch.utils.data.TensorDataset(x, x @ torch.randn(5, 2))
model = torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
optimizer = quorate.distribute(torch.optim.AdamW(model.parameters(), lr=0.02), model)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
loader = quorate.loader(data, 4)
torch.manual_seed(world.rank)
steps = 0
if dies < 0:
    world.wire.crash()
for epoch in range(loader.epoch, 3):
    for a, b in loader:
        (model(a + 0.1 * torch.randn_like(a)) - b).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        steps += 1
        if steps == dies:
            world.wire.crash()
    with world.evaluate():
        quorate.log(loss=(model(x) - x[:, :2]).square().mean().item(), here=len(world.gather(world.rank)))
"""
LET_JOIN = ["eager-solo", "quorum", "decoupled-diloco", "async-local-sgd"]


@pytest.mark.seeds(2, 6)
@pytest.mark.parametrize("strategy", LET_JOIN)
def test_who_joined_joins_again(strategy: str, seed: int, tmp_path: Path) -> None:
    """From a copy of the same replica, as that was then; on the batches that it had."""
    size = 1 + seed % 3
    settings = {name: value for name, value in SETTINGS.get(strategy, {}).items() if name != "wait_for"}
    settings |= CODED if seed % 4 == 0 else {}
    who = [str(seed), *(["dies"] if seed % 2 else [])]
    found = replayed(tmp_path, strategy, size, *who, text=JOINING, joiners=2, on_death="continue", **settings)
    assert found.is_equal, found
    tape, again = tape_of(tmp_path / "run"), tape_of(tmp_path / "again")
    assert (again.joined, again.dead) == (tape.joined, tape.dead)
    for rank in () if tape.dead else range(size):  # who dies is in no evaluation behind its last round
        assert logged(tmp_path / "again", rank) == logged(tmp_path / "run", rank)


def logged(folder: Path, rank: int) -> list[Any]:
    """What a worker told of its evaluations."""
    return [row["values"] for row in rows(records_of(folder, rank)) if row["kind"] == "log"]


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
    again.write_text(SCRIPT.replace("quorate.loader(data, 4)", "quorate.loader(data, 2)"))
    request = RunRequest(
        script=str(again),
        arguments=["36"],
        overrides=Overrides(strategy="eager-solo", seed=3, replay=str(tmp_path / "run")),
        size=3,
        folder=tmp_path / "other",
        virtual=VirtualRun(seed=3),
    )
    assert run_request(request, VirtualRun(seed=3)) != 0
    assert "the script does something else than the recorded run did" in capfd.readouterr().err


def test_what_cannot_be_replayed_is_one_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert trained(tmp_path / "all", "all-reduce", 2) == 0
    with pytest.raises(ConfigurationError, match="has no records of rounds"):
        tape_of(tmp_path / "all")
    assert trained(tmp_path / "run", "eager-solo", 2) == 0
    records = tmp_path / "run" / "rank-1.jsonl"
    whole = records.read_text()
    records.write_text("".join(line + "\n" for line in whole.splitlines() if '"kind":"end"' not in line))
    with pytest.raises(ConfigurationError, match="did not end normally"):
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
    assert "no other worker is known to have applied that round" in capfd.readouterr().err
    row = {"kind": "joined", "time": 1.0, "rank": 2, "round": 3, "live": 3}
    records.write_text(whole + json.dumps(row) + "\n")
    with pytest.raises(ConfigurationError, match="did not end normally .rank 2"):
        tape_of(tmp_path / "run")


@pytest.mark.parametrize(
    ("strategy", "most", "coded"),
    [
        ("quorum", 0, {}),
        ("quorum", 0, CODED),
        ("decoupled-diloco", 0, {}),
        ("decoupled-diloco", 0, CODED),
        ("eager-majority", forming.HUB_BYTES, {}),
    ],
)
def test_rounds_that_several_hosts_have_formed_have_the_bits_they_had(
    strategy: str, most: int, coded: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is played on one; in pieces, in codes, and by the leader."""
    usual = VirtualRun.network
    with monkeypatch.context() as only:
        only.setattr(forming, "HUB_BYTES", most)
        only.setattr(VirtualRun, "network", lambda run: replace(usual(run), hosts=(0, 1, 2, 0, 1)))
        settings = {**SETTINGS.get(strategy, {}), **({"wait_for": 4} if strategy == "quorum" else {}), **coded}
        assert trained(tmp_path / "run", strategy, 5, **settings) == 0
    tape = tape_of(tmp_path / "run")
    (told,) = tape.rounds.values()
    assert [one.hosts for one in told.values() if one.hosts and one.hosts[0] == [0, 3] and len(one.hosts) > 1]
    trained(tmp_path / "again", strategy, 5, replay=tmp_path / "run", **settings)
    found = compared(tape, tmp_path / "again")
    assert found.equal > 2 and found.differs is None
