"""The example `examples/flower/federated_strategy.py`: a round of clients' models; Flower itself is not needed here."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from quorate.core.errors import ConfigurationError, MissingExtra
from quorate.strategies import strategies

EXAMPLE = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).parents[3] / "examples" / "flower" / "federated_strategy.py"))
)
X = {"weight": torch.tensor([1.0, 2.0]), "count": torch.tensor(3)}
CLIENTS = [
    ({"weight": torch.tensor([2.0, 2.0]), "count": torch.tensor(7)}, 10.0),
    ({"weight": torch.tensor([1.0, 5.0]), "count": torch.tensor(8)}, 30.0),
]


def site(name: str, **settings: Any) -> Any:
    kind: Any = strategies.get(name)
    return EXAMPLE.Site(kind(**settings))


def test_a_round_is_the_mean_way_by_examples() -> None:
    there = site("fed-avg")
    there.begins(X, nodes=2)
    for model, examples in CLIENTS:
        there.comes(model, examples, None)
    found = there.ends()
    torch.testing.assert_close(found["weight"], torch.tensor([1.25, 4.25]))
    assert found["count"] == 8, "what is no floating-point number is a client's"
    assert found["weight"].dtype == torch.float32


def test_ways_are_clipped() -> None:
    there = site("fed-avg", clip=0.5, weigh="equal")
    there.begins(X, nodes=2)
    for model, examples in CLIENTS:
        there.comes(model, examples, None)
    torch.testing.assert_close(there.ends()["weight"], torch.tensor([1.25, 2.25]))


def test_moments_stay_from_round_to_round() -> None:
    there, x, m, v = site("fed-opt", server="adam", server_rate=0.1, tau=0.1), X["weight"], 0.0, 0.01
    for _ in range(3):
        there.begins({**X, "weight": x}, nodes=1)
        there.comes({**X, "weight": x + torch.tensor([1.0, -1.0])}, 5.0, None)
        delta = torch.tensor([1.0, -1.0])
        m, v = 0.9 * m + 0.1 * delta, 0.99 * v + 0.01 * delta**2
        x = x + 0.1 * m / (v.sqrt() + 0.1)
        torch.testing.assert_close(there.ends()["weight"], x)


def test_control_variates_go_to_clients_and_come_back() -> None:
    there = site("scaffold")
    there.begins(X, nodes=4)
    assert there.control()["weight"].tolist() == [0.0, 0.0]
    for model, examples in CLIENTS:
        there.comes(model, examples, {"weight": torch.tensor([1.0, 3.0])})
    torch.testing.assert_close(there.ends()["weight"], torch.tensor([1.5, 3.5]))
    torch.testing.assert_close(there.control()["weight"], torch.tensor([0.5, 1.5]))
    there.begins(X, nodes=4)
    with pytest.raises(ConfigurationError, match='clients reply with the arrays "control-change"'):
        there.comes(CLIENTS[0][0], 1.0, None)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("local-sgd", {}, "local-sgd is not a federated strategy; use fed-avg, fed-opt, fed-prox or scaffold"),
        ("fed-avg", {"noise": 1.0, "clip": 1.0, "weigh": "equal"}, "noise and secure are Flower's to see to"),
        ("fed-avg", {"dropouts": 0.5}, "leave them out"),
        ("fed-prox", {"mu": -1.0}, "mu is -1.0"),
    ],
)
def test_what_flower_cannot_be_given_is_refused(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EXAMPLE.strategy(name, **settings)


def test_without_flower_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flwr", "flwr.app"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match="pip install 'flwr"):
        EXAMPLE.strategy("fed-avg")
