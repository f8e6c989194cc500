"""What every registered workload promises (small settings where the full ones take long)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from quorate.cli.listing import costs_of
from quorate.core.settings import settings_for
from quorate.core.workload import Imbalance, Workload, per_example, total
from quorate.workloads import workloads
from tests.support.workload_files import write_cifar10_binary, write_images, write_translations, write_videos

SMALL: dict[str, Callable[[Path], dict[str, Any]]] = {
    "cifar10": lambda folder: {"folder": str(write_cifar10_binary(folder, 8)), "records": 8},
    "hyperplane": lambda folder: {"points": 512, "features": 64},
    "imagenet": lambda folder: {
        "path": str(write_images(folder, 24, classes=2)),
        "size": 64,
        "network": "squeezenet",
        "decoders": 0,
    },
    "stdlib-bytes": lambda folder: {"most_bytes": 400_000, "length": 32, "width": 64, "layers": 1, "heads": 2},
    "stdlib-functions": lambda folder: {"limit": 150, "smallest_class": 5},
    "translation": lambda folder: {
        "folders": (str(write_translations(folder, 60)),),
        "size": "tiny",
        "longest": 60,
    },
    "ucf101-features": lambda folder: {
        "folder": str(write_videos(folder, 32, features=64, classes=3)),
        "features": 64,
        "hidden": 32,
        "classes": 3,
    },
}
SMALL_BATCH = {"cifar10": 16, "imagenet": 4}
"""Instead of the usual one, where that takes long."""

Make = Callable[[], Workload[Any]]


@pytest.fixture(params=workloads.names())
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    settings = SMALL.get(request.param, lambda folder: {})(tmp_path / "files")
    return lambda: workloads.get(request.param)(**settings)


def batch_of(workload: Workload[Any], first: int, count: int) -> Any:
    data: Any = workload.dataset(train=True)
    return workload.collate([data[index] for index in range(first, first + count)])


def equal(ours: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours.parameters(), other.parameters(), strict=True))


def test_names_and_summaries_agree(make: Make) -> None:
    workload = make()
    assert workloads.get(workload.name) is type(workload)
    assert workload.summary == workloads.summary(workload.name) != ""
    assert all(isinstance(line, str) and "\n" not in line for line in workload.describe())


def test_the_same_settings_give_the_same_data_and_models(make: Make) -> None:
    one, other = make(), make()
    for ours, theirs in zip(batch_of(one, 3, 9), batch_of(other, 3, 9), strict=True):
        assert torch.equal(ours, theirs)
    assert equal(one.model(4), other.model(4))
    assert not equal(one.model(4), one.model(5))


def test_no_global_generator_is_touched(make: Make) -> None:
    before = torch.get_rng_state()
    workload = make()
    workload.loss(workload.model(1), batch_of(workload, 0, 4)).backward()
    assert torch.equal(before, torch.get_rng_state())


def test_a_few_steps_lower_the_loss(make: Make) -> None:
    workload = make()
    size = SMALL_BATCH.get(workload.name, workload.batch_size)
    model, batch = workload.model(), batch_of(workload, 0, size)
    optimizer = workload.optimizer(model)
    losses = []
    for _ in range(10):
        loss = workload.loss(model, batch)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.shape == ()
    assert losses[-1] < 0.9 * losses[0]
    assert optimizer.param_groups[0]["lr"] == workload.learning_rate
    assert workload.optimizer(model, 0.25).param_groups[0]["lr"] == 0.25


def test_quality_adds_up_over_batches(make: Make) -> None:
    workload = make()
    model = workload.model()
    parts = total(workload.quality(model, batch_of(workload, first, 8)) for first in (0, 8))
    whole = workload.quality(model, batch_of(workload, 0, 16))
    assert parts == pytest.approx(whole, rel=1e-4)
    assert whole["examples"] == 16
    assert workload.headline in per_example(whole)
    assert "examples" not in per_example(whole)


def test_quality_leaves_the_model_as_it_is(make: Make) -> None:
    workload = make()
    model = workload.model()
    modules = list(model.modules())
    modules[-1].eval()
    modes = [module.training for module in modules]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    workload.quality(model, batch_of(workload, 0, 8))
    assert [module.training for module in modules] == modes
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


def test_quality_is_of_evaluation_mode(make: Make) -> None:
    workload = make()
    model, batch = workload.model(), batch_of(workload, 0, 8)
    as_it_is = workload.quality(model, batch)
    assert as_it_is == workload.quality(model.eval(), batch)


@pytest.mark.parametrize("train", [True, False])
def test_a_loader_gives_batches(make: Make, *, train: bool) -> None:
    workload = make()
    data: Any = workload.dataset(train=train)
    loader = DataLoader(data, batch_size=3, collate_fn=workload.collate)
    first = next(iter(loader)).to("cpu")
    assert type(first) is type(batch_of(workload, 0, 3))
    assert len(loader) == -(-len(data) // 3)
    if not train:  # training images may be cropped anew in every batch
        for ours, theirs in zip(first, workload.collate([data[index] for index in range(3)]), strict=True):
            assert torch.equal(ours, theirs)
    with pytest.raises(IndexError):
        data[len(data)]


def test_tokens_are_what_is_padded_to(make: Make) -> None:
    batch = batch_of(make(), 0, 5)
    lengths = getattr(batch, "lengths", None)
    assert hasattr(batch, "tokens") == (make().imbalance == "natural")
    if lengths is not None:
        assert batch.tokens == 5 * int(lengths.max())
        assert type(batch.tokens) is int


def test_the_usual_numbers_are_given(make: Make) -> None:
    kind = type(make())
    assert kind.epochs >= 1 and kind.batch_size >= 1 and kind.learning_rate > 0


def test_every_setting_can_be_written_down(make: Make) -> None:
    workload: Any = make()
    written = json.loads(json.dumps({setting.name: getattr(workload, setting.name) for setting in fields(workload)}))
    assert type(workload)(**settings_for(type(workload), written)) == workload


def test_shares_are_means() -> None:
    assert per_example({"top1": 12.0, "examples": 64.0}) == {"top1": 0.1875}
    assert total([{"top1": 1.0, "examples": 2.0}, {"top1": 3.0, "examples": 4.0}]) == {"top1": 4.0, "examples": 6.0}
    assert per_example({"top1": 0.0, "examples": 0.0})["top1"] != 0.0


def test_settings_are_frozen_and_closed(make: Make) -> None:
    workload = make()
    assert is_dataclass(workload)
    settings = fields(workload)
    assert all(setting.kw_only for setting in settings)
    with pytest.raises(FrozenInstanceError):
        setattr(workload, settings[0].name, 1)
    with pytest.raises(TypeError):
        type(make())(no_such_setting=1)


def test_listing_imports_no_torch() -> None:
    code = (
        "import sys; from quorate.workloads import workloads\n"
        "assert all(workloads.summary(name) for name in workloads)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})


@pytest.mark.parametrize("name", workloads.names())
def test_the_list_says_what_a_workload_costs_and_how_it_is_imbalanced(name: str) -> None:
    kind = workloads.get(name)
    line = costs_of(name)
    assert line == (
        f"Quality: {kind.headline} (without learning {kind.baseline}). A step: {kind.cost}. "
        f"Imbalance: {kind.imbalance}."
    )
    assert kind.baseline[0].isdigit() or kind.baseline.startswith("about ")
    assert "parameters" in kind.cost and kind.imbalance in get_args(Imbalance)
