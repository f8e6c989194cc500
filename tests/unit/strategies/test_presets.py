"""A preset is its strategy with these settings: the same bits and times, on late and unequal workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.support import every_strategy
from tests.support.sampled import PRESETS, STEPS, sampled, without_repetition
from tests.support.scene import Scene

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "backup-workers": ("quorum", {"wait_for": 0.9, "late": "drop", "divide_by": "arrived"}),
    "bounded-staleness": ("quorum", {"wait_for": 1, "max_staleness": 4}),
    "dana": ("parameter-server", {"mode": "async", "momentum": "worker"}),
    "dc-asgd": ("parameter-server", {"mode": "async", "delay_compensation": "adaptive", "compensation": 2.0}),
    "downpour": ("parameter-server", {"mode": "async", "consistent": False}),
    "eager-majority": ("quorum", {"wait_for": "designated"}),
    "eager-solo": ("quorum", {"wait_for": 1}),
    "eamsgd": ("easgd", {}),
    "fed-buff": (
        "async-local-sgd",
        {
            "sync_every": 8,
            "wait_for": 0.5,
            "divide_by": "wait_for",
            "dynamic": False,
            "outer_rate": 1.0,
            "outer_momentum": 0.0,
            "late": "root",
        },
    ),
    "muloco": ("diloco", {"sync_every": 30, "outer_rate": 0.7, "outer_momentum": 0.6}),
    "sparse-loco": (
        "diloco",
        {
            "outer_rate": 0.6,
            "outer_momentum": 0.0,
            "sync_every": 30,
            "compress": "tiled-top-k",
            "error_decay": 0.95,
            "clip_codes": True,
        },
    ),
    "ssp": ("parameter-server", {"mode": "bounded"}),
    "streaming-diloco": ("diloco", {"fragments": 2, "overlap": 1, "sync_every": 100}),
    "sync-backup": ("parameter-server", {"backup": 1}),
}


def test_every_preset_has_its_settings_here() -> None:
    assert SETTINGS.keys() == PRESETS


@pytest.mark.parametrize("name", SETTINGS)
def test_a_preset_is_its_strategy_with_these_settings(name: str) -> None:
    whole, settings = SETTINGS[name]

    def trained(strategy: str, **chosen: Any) -> list[tuple[torch.Tensor, list[float]]]:
        fields: dict[str, Any] = {"model": (6, 12, 1), "heavy": 0.9, "steps": [12, 14, 13], "rests": (5,)}
        pause = lambda rank, step: 0.01 + 0.001 * ((7 * rank + 5 * step) % 11) + 0.0001 * rank  # noqa: E731
        return Scene(strategy, pause=pause, settings=chosen, **fields).run(lambda t: (t.parameters, t.times))

    for (end, times), (expected, their_times) in zip(trained(name), trained(whole, **settings), strict=True):
        assert torch.equal(end, expected)
        assert times == pytest.approx(their_times, abs=1e-6), "names are of different lengths on the wire"


def item(law: str, name: str, module: object = None) -> Any:
    params = {"nodeid": f"{law}[{name}]", "callspec": SimpleNamespace(params={"name": name}), "module": module}
    return SimpleNamespace(**params, iter_markers=lambda kind: [])


def test_a_law_over_all_strategies_takes_every_third_preset() -> None:
    names = [*every_strategy.NAMES]
    assert {*names} > PRESETS
    for module, count in ((every_strategy, len(names) - 10), (None, len(names))):
        run, others = without_repetition([item("law 1", name, module) for name in names])
        assert (len(run), len(others)) == (count, len(names) - count)
    laws = [f"law {n}" for n in range(20)]
    run, _ = without_repetition([item(law, name, every_strategy) for law in laws for name in names])
    assert {name for name in names if any(one.callspec.params["name"] == name for one in run)} == {*names}


def test_where_one_case_of_a_law_is_run_it_is_of_no_preset() -> None:
    items = [item(f"law {n}", name) for n in range(30) for name in ("eager-solo", "quorum", "ssp")]
    run, others = sampled([*items, item("of one", "ssp")], STEPS["one"])
    assert [one.nodeid for one in run] == [*(f"law {n}[quorum]" for n in range(30)), "of one[ssp]"]
    assert len(others) == 60


def test_in_a_large_product_each_value_is_in_two_cases() -> None:
    def of(law: str, **params: object) -> Any:
        marks = [SimpleNamespace(args=(names, [])) for names in ("size, seed", ["kind"])]
        return SimpleNamespace(nodeid=f"{law}[]", callspec=SimpleNamespace(params=params), iter_markers=lambda _: marks)

    pairs = [(2, 0), (2, 1), (3, 0), (5, 7)]
    product = [of("law", size=size, seed=seed, kind=kind) for size, seed in pairs for kind in "abc"]
    run, others = without_repetition([*product, *(of("small", size=2, seed=0, kind=kind) for kind in "abcdefgh")])
    params = [item.callspec.params for item in run if item.nodeid == "law[]"]
    assert len(params) == 8 and {item.nodeid for item in others} == {"law[]"}
    assert all(sum((x["size"], x["seed"]) == pair for x in params) >= 2 for pair in pairs)
    assert all(sum(x["kind"] == kind for x in params) >= 2 for kind in "abc")
