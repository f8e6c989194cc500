"""Records, baseline, injected lateness and seeds among real workers."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from statistics import median

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import quorate
from quorate.core.draws import common_seed
from quorate.core.errors import ConfigurationError
from quorate.launch.run.overrides import Overrides
from quorate.launch.worker.join import prepare
from quorate.launch.worker.world import World
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of, rows
from quorate.wire import current
from quorate.wire.cut import all_reduce_bytes
from tests.support.processes import run_real_world
from tests.support.programs import quorate as quorate_command


def net() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.BatchNorm1d(9), torch.nn.Linear(9, 2))


def train(
    model: torch.nn.Module, call: torch.nn.Module, optimizer: torch.optim.Optimizer, world: World
) -> torch.Tensor:
    draw = torch.Generator().manual_seed(world.rank)
    for step in range(6):
        optimizer.zero_grad()
        if step == 3:
            paused = call.no_sync() if isinstance(call, DistributedDataParallel) else optimizer.accumulate()  # type: ignore[attr-defined]
            with paused:
                call(torch.randn(5, 6, generator=draw)).square().mean().backward()
        call(torch.randn(5, 6, generator=draw)).square().mean().backward()
        optimizer.step()
    return torch.cat([x.detach().double().reshape(-1) for x in model.state_dict().values()])


def as_ddp_and_as_baseline(folder: str, world: World) -> tuple[list[float], list[float], str]:
    torch.set_num_threads(1)
    model = net()
    theirs = train(model, DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=0.1), world)
    place = current.here()
    prepare(place, Overrides(strategy="ddp", imbalance="rank:1:80ms"))
    place.context(Timing).recorder = Recorder(records_of(Path(folder), world.rank))
    with pytest.raises(ConfigurationError, match="ddp needs the same number of batches"):
        quorate.loader([1, 2, 3], 1, share="dynamic")  # type: ignore[arg-type]
    model = net()
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    mine = train(model, model, optimizer, world)
    optimizer.finish()  # type: ignore[attr-defined]
    place.context(Timing).recorder.close()
    return theirs.tolist(), mine.tolist(), type(optimizer).__mro__[1].__name__


def test_the_baseline_is_torch_ddp_and_its_records_name_the_slow_worker(tmp_path: Path) -> None:
    for theirs, mine, kind in run_real_world(2, functools.partial(as_ddp_and_as_baseline, str(tmp_path))):
        assert theirs == mine
        assert kind == "Compared"
    steps = [[row for row in rows(records_of(tmp_path, rank)) if row["kind"] == "step"] for rank in range(2)]
    numbers = sum(p.numel() for p in net().parameters())
    first, second = (ranks[2:] for ranks in steps)
    assert all(row["delay"] == 0 for row in first) and all(row["delay"] >= 0.08 for row in second)
    assert median([b["arrive"] - a["arrive"] for a, b in zip(first, second, strict=True)]) > 0.04
    assert median([a["wait"] - b["wait"] for a, b in zip(first, second, strict=True)]) > 0.04
    assert first[0]["bytes_out"] == all_reduce_bytes(4 * numbers, 2)


DRAWS = """
import random, numpy, torch, quorate
world = quorate.join()
drawn = [world.seed, random.random(), float(numpy.random.rand()), torch.rand(1).item()]
quorate.log(**{f"drawn{i}": number for i, number in enumerate(drawn)})
"""


def test_a_seed_reaches_the_generators_of_a_script(tmp_path: Path) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    quorate_command(tmp_path, "run", "-n", "2", "--seed", "3", "--name", "a", "draws.py").check_returncode()
    assert json.loads((tmp_path / "runs" / "a" / "run.json").read_text())["seed"] == 3
    for rank in range(2):
        drawn = common_seed(3)
        expected = [
            3,
            random.Random(drawn).random(),
            np.random.RandomState(drawn % 2**32).rand(),
            torch.rand(1, generator=torch.Generator().manual_seed(drawn % 2**63)).item(),
        ]
        (found,) = [row for row in rows(records_of(tmp_path / "runs" / "a", rank)) if row["kind"] == "log"]
        assert list(found["values"].values()) == pytest.approx(expected)


EVENTS = """
import torch, quorate
world = quorate.join()
model = torch.nn.Linear(2, 1)
optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
for step in range(3):
    model(torch.ones(1, 2)).square().sum().backward()
    optimizer.step()
quorate.log(accuracy=0.25 + world.rank, name="not a number")
"""


def test_tensorboard_gets_what_rank_0_logs_and_loses(tmp_path: Path) -> None:
    files = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "events.py").write_text(EVENTS)
    quorate_command(tmp_path, "run", "-n", "2", "--name", "a", "events.py").check_returncode()
    (kept,) = (tmp_path / "runs" / "a").glob("events.out.tfevents*")
    found = files.EventAccumulator(str(kept)).Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "accuracy"}
    steps = [event.step for event in found.Scalars("loss")]
    assert steps[0] == 1 and steps[-1] == 3 and steps == sorted(set(steps))
    assert [(event.step, event.value) for event in found.Scalars("accuracy")] == [(3, 0.25)]
