"""Models that become smaller as the command line says: at shares and at steps, with a guard, and what is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import quorate
from quorate.core.errors import ConfigurationError
from quorate.launch.run.overrides import Overrides
from quorate.launch.worker.join import prepare
from quorate.observe.step_times import Timing
from quorate.records.records import Recorder, records_of, rows
from quorate.shrink import Shrinking
from quorate.wire import current
from tests.support.scene import virtual

STEPS = 40


@dataclass
class End:
    """The model and the optimizer of one worker at the end of its training."""

    shrinking: Shrinking
    model: nn.Sequential
    optimizer: Any
    parameters: Tensor


def train(
    text: str,
    world: quorate.World,
    *,
    strategy: str = "all-reduce",
    reaches: Sequence[float] = (0.1, 0.25, 0.5, 0.6, 0.75, 0.9),
    folder: Path | None = None,
    rate: float = 0.05,
) -> End:
    """Train a small net for `STEPS` steps."""
    place = current.here()
    prepare(place, Overrides(shrink=text))
    if folder is not None:
        recorder = place.context(Timing).recorder = Recorder(records_of(folder, world.rank), closes=True)
        place.leaving.insert(0, recorder.close)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 3))
    plain = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    optimizer: Any = quorate.distribute(plain, model, strategy, **({"sync_every": 2} if "loco" in strategy else {}))
    shrinking = quorate.shrink.chosen(optimizer)
    for step in range(STEPS):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(100 * step + world.rank))
        optimizer.zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        optimizer.step()
        if (step + 1) / STEPS in reaches:
            shrinking.reached((step + 1) / STEPS)
    optimizer.finish()
    return End(shrinking, model, optimizer, torch.cat([p.detach().flatten() for p in model.parameters()]))


def ends_of(text: str, workers: int = 2, **settings: Any) -> list[End]:
    return virtual(workers, partial(train, text, **settings))


@pytest.mark.parametrize("strategy", ["all-reduce", "quorum", "diloco", "d-psgd", "parameter-server"])
def test_several_steps_in_turn(strategy: str) -> None:
    ends = ends_of("prune:amount=0.8+low-rank:rank=3,layers=2,at=0.25+cluster:groups=4,layers=0", strategy=strategy)
    model = ends[0].model
    assert all(torch.equal(end.parameters, ends[0].parameters) for end in ends)
    assert {"weight_a", "weight_b"} <= model[2]._parameters.keys() and len(model[0].weight_values) <= 4
    assert float((model[0].weight == 0).float().mean()) == pytest.approx(0.8, abs=0.01)
    before, after = (ends[0].shrinking.sizes[moment] for moment in ("before", "end"))
    assert after.parameters < before.parameters / 4
    assert after.file_bytes is not None and before.file_bytes is not None and after.file_bytes < before.file_bytes / 2
    assert "bytes of the packed file" in ends[0].shrinking.table()


def test_steps_at_numbers_of_steps_need_no_call() -> None:
    first, second = ends_of("prune:amount=0.5,at=5,until=9,count=2+cluster:at=20", reaches=())
    assert torch.equal(first.parameters, second.parameters)
    assert first.shrinking.shares == []
    assert first.shrinking.sizes["end"].parameters == sum(p.numel() for p in first.model.parameters()) < 110


def test_none_measures_only(tmp_path: Path) -> None:
    (end,) = ends_of("none", workers=1, folder=tmp_path)
    assert [row["moment"] for row in rows(records_of(tmp_path, 0)) if row["kind"] == "shrunk"] == ["before", "end"]
    assert end.shrinking.shares == [] and type(end.model[0]) is nn.Linear


def test_records(tmp_path: Path) -> None:
    ends_of("cluster:groups=4", folder=tmp_path)
    written = [row for row in rows(records_of(tmp_path, 0)) if row["kind"] == "shrunk"]
    assert [(row["moment"], row["step"]) for row in written] == [("before", 30), ("smaller", 30), ("end", STEPS)]
    before, smaller, end = written
    weights, biases = 6 * 32 + 32 * 24 + 24 * 3, 32 + 24 + 3
    assert (before["parameters"], smaller["parameters"]) == (weights + biases, 3 * 4 + biases)
    assert before["vector_bytes"] == 4 * before["parameters"] and before["operations"] == 2 * 8 * weights
    assert before["forward"] > 0 and before["backward"] > 0 and before["file_bytes"] > end["file_bytes"] > 0
    assert not [row for row in rows(records_of(tmp_path, 1)) if row["kind"] == "shrunk"]


@pytest.mark.parametrize("text", ["low-rank:rank=1,layers=0|2|4,at=0.6", "prune:amount=0.97,at=0.6,count=1"])
@pytest.mark.parametrize("strategy", ["all-reduce", "d-psgd"])
def test_a_guard_puts_the_model_back(text: str, strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its forms, numbers and momenta, on all workers; and training goes on from there."""
    ends = ends_of(f"{text},guard=0.2,patience=0.15", strategy=strategy)
    assert all(torch.equal(end.parameters, ends[0].parameters) for end in ends)
    assert ends[0].shrinking.undone == ends[1].shrinking.undone == [text.partition(":")[0]]
    model, state = ends[0].model, ends[0].optimizer.state
    assert [type(layer) for layer in model[::2]] == [nn.Linear] * 3
    assert all("weight" in layer._parameters for layer in model[::2])
    if strategy == "all-reduce":
        assert all(state[p]["momentum_buffer"].shape == p.shape for p in model.parameters())
    assert ends[0].shrinking.sizes["end"].parameters == ends[0].shrinking.sizes["before"].parameters
    assert "is undone after step 30: the loss has risen from" in capsys.readouterr().err


def test_a_guard_that_is_kept_changes_nothing() -> None:
    plain, guarded = (ends_of(text)[0] for text in ("cluster:at=0.6", "cluster:at=0.6,guard=100"))
    assert torch.equal(plain.parameters, guarded.parameters) and guarded.shrinking.undone == []


def test_later_turns_are_left_out_after_one_is_undone() -> None:
    (end, _) = ends_of("prune:amount=0.99,by=random,at=0.5,until=0.9,count=2,guard=0.1")
    assert end.shrinking.undone == ["prune"]
    assert bool((end.model[0].weight != 0).all())


def test_a_share_that_the_script_never_reaches() -> None:
    with pytest.raises(ConfigurationError, match=r"cluster was asked for at 0.75, and the script never called"):
        ends_of("cluster", workers=1, reaches=())


def test_a_step_after_the_end() -> None:
    with pytest.raises(ConfigurationError, match="cluster was asked for at 100, and the training ended after 40 steps"):
        ends_of("cluster:at=100", workers=1)


def test_a_guard_without_losses() -> None:
    def task(world: quorate.World) -> None:
        prepare(current.here(), Overrides(shrink="cluster:at=0,guard=1"))
        model = nn.Linear(6, 3)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        quorate.shrink.chosen(optimizer).reached(0.0)

    with pytest.raises(ConfigurationError, match="guard of cluster compares training losses, and before it no worker"):
        virtual(1, task)


def test_nothing_was_chosen() -> None:
    def task(world: quorate.World) -> str:
        model = nn.Linear(6, 3)
        optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
        shrinking = quorate.shrink.chosen(optimizer)
        shrinking.reached(1.0)
        with pytest.raises(
            ConfigurationError, match=r"chosen\(\) takes an optimizer that quorate.distribute has returned"
        ):
            quorate.shrink.chosen(torch.optim.SGD(model.parameters(), lr=0.1))
        return shrinking.table()

    assert virtual(1, task) == ["nothing was made smaller, or another worker has measured it"]
