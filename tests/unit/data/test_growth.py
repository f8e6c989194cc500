"""Batches that grow with the noise of gradients, on problems whose noise is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import quorate
from quorate.core.errors import ConfigurationError
from quorate.core.gradient_noise import Squares
from quorate.data.growth import FEW, Growth
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIGNAL, NOISE, PLACES = 1.0, 70.0, 400
"""Squares of one example's gradient: the critical batch is 70."""


@pytest.fixture(autouse=True)
def measures_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second update."""
    monkeypatch.setattr("quorate.observe.gradient_noise.EVERY", 2)


def measured(signal: float, noise: float, workers: int = 2, count: int = FEW) -> Growth:
    """The growth after so many measurements of gradients with this signal and noise."""
    growth = Growth()
    for _ in range(count):
        growth.measured(Squares(gradients=workers, own=signal + noise, mean=signal + noise / workers))
    return growth


@pytest.mark.parametrize(
    ("noise", "count", "most", "size"),
    [
        (4.0, FEW, 100, 20),  # the batch of 2 workers is 2 gradients; 4 are as many as the critical batch
        (3.9, FEW, 100, 10),
        (400.0, FEW, 100, 20),  # no more than twice at a time
        (400.0, FEW, 19, 10),
        (400.0, FEW, 20, 20),
        (400.0, FEW - 1, 100, 10),
        (-1.0, FEW, 100, 10),
    ],
)
def test_doubled_up_to_the_critical_batch(noise: float, count: int, most: int, size: int) -> None:
    assert measured(1.0, noise, count=count).grown(10, 2, most) == size


def test_a_signal_is_taken_for_a_standard_error_more() -> None:
    """The mean of two signals of 0 and 1, four times each, is 0.5, and its standard error 0.19."""
    growth = Growth()
    for signal in 4 * (0.0, 1.0):
        growth.measured(Squares(gradients=2, own=signal + 3.0, mean=signal + 1.5))
    assert growth.scale == pytest.approx(3.0 / (0.5 + 0.5345224838 / 8**0.5))
    assert growth.grown(10, 2, 100) == 20
    assert growth.grown(10, 3, 100) == 10


def test_what_was_measured_before_a_change_counts_no_more() -> None:
    factors: list[float] = []
    growth = measured(1.0, 100.0)
    growth.followers.append(factors.append)
    growth.changed(2.0)
    assert (growth.grown(20, 2, 1000), factors) == (20, [2.0])


def examples(count: int) -> TensorDataset:
    """The gradient of the loss of one is a constant and normal noise."""
    draw = torch.Generator().manual_seed(0)
    way = torch.randn(count, PLACES, generator=draw) * (NOISE / PLACES) ** 0.5
    return TensorDataset(way - way.mean(0) + (SIGNAL / PLACES) ** 0.5)


def training(epochs: int, root: Path | None = None, **settings: Any) -> Any:
    """Each epoch's batch, and its number of batches; then the schedule's batch, and its rate."""

    def live(world: quorate.World) -> tuple[list[tuple[int, int]], int, float]:
        if root is not None:
            from quorate.checkpoint.participants import CheckpointContext

            current.here().context(CheckpointContext).root = root
        model = torch.nn.Linear(PLACES, 1, bias=False)
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-4)
        optimizer = quorate.distribute(optimizer, model)
        loader = quorate.loader(examples(1024), 4, batch="auto", **settings)
        total = 1e6
        rates = quorate.schedule(
            optimizer, total, batch_size=4, base_batch_size=8, scaling="linear", warm_up="none", decay="constant"
        )
        if root is not None:
            quorate.load(schedule=rates)
        epochs_seen = list[tuple[int, int]]()
        while loader.epoch < epochs:
            batches = list[int]()
            for (x,) in loader:
                optimizer.zero_grad()
                (model.weight * x.mean(0)).sum().backward()
                optimizer.step()
                rates.step()
                batches.append(len(x))
            epochs_seen.append((batches[0], len(batches)))
            assert len(loader) == len(batches)
            if loader.epoch == epochs - 1:
                break
        if root is not None:
            quorate.save(schedule=rates)
        return epochs_seen, rates.batch, optimizer.param_groups[0]["lr"] / 1e-4

    return live


def test_batches_reach_the_critical_one_on_all_workers(capfd: pytest.CaptureFixture[str]) -> None:
    ends = VirtualWorld(2).run(joined(training(6)))
    assert ends[0] == ends[1]
    assert ends[0] == ([(4, 128), (8, 64), (16, 32), (32, 16), (32, 16), (32, 16)], 32, 8.0)
    said = [line for line in capfd.readouterr().err.splitlines() if "on batches of" in line]
    assert len(said) == 3
    assert said[2].startswith("quorate: from epoch 3 on batches of 32 examples (64 of all workers); the critical batch")


def test_up_to_a_limit() -> None:
    assert VirtualWorld(2).run(joined(training(4, max_batch_size=8)))[1][0] == [(4, 128), (8, 64), (8, 64), (8, 64)]


def test_a_checkpoint_goes_on_with_what_batches_had_become(tmp_path: Path) -> None:
    VirtualWorld(2).run(joined(training(3, tmp_path)))
    ends = VirtualWorld(2).run(joined(training(5, tmp_path)))
    assert ends == [([(16, 32), (32, 16)], 32, 8.0)] * 2, "what was measured before counts no more"


def test_positions_have_the_batch() -> None:
    """For one worker, and for one that joins."""

    def live(world: quorate.World) -> list[tuple[int, int]]:
        loaders = [quorate.loader(examples(64), 2, batch="auto") for _ in range(3)]
        loaders[1].load_state_dict({**loaders[0].state_dict(), "batch_size": 8})
        loaders[2].enter_at({**loaders[0].whereabouts(), "batch_size": 4})
        return [(loader.batch_size, len(loader)) for loader in loaders]

    assert VirtualWorld(2).run(joined(live)) == [[(2, 16), (8, 4), (4, 8)]] * 2


@pytest.mark.parametrize(
    ("settings", "strategy", "words"),
    [
        ({"batch": "automatic"}, "all-reduce", 'unknown batch "automatic"; did you mean "auto"?'),
        ({"batch": "auto"}, "quorum", "and a strategy in which all workers meet in each step"),
        ({"batch": "auto", "share": "dynamic"}, "all-reduce", 'it goes with share="static"'),
        ({"batch": "auto", "max_batch_size": 3}, "all-reduce", "at least the batch_size of 4, not 3"),
        ({"max_batch_size": 8}, "all-reduce", 'max_batch_size is the limit of batch="auto"'),
    ],
)
def test_refused(settings: dict[str, Any], strategy: str, words: str) -> None:
    def live(world: quorate.World) -> None:
        model = torch.nn.Linear(4, 1)
        quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy, with_one_worker="algorithm")
        with pytest.raises(ConfigurationError) as refused:
            quorate.loader(examples(64), 4, **settings)
        assert words in str(refused.value)

    VirtualWorld(2).run(joined(live))
