"""Parameters on servers, among real processes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import PeerFailed
from tests.support.processes import Outcome, outcomes_real_world
from tests.support.scene import Scene, Trainer, parameters, played, squares
from tests.support.tables import Bags, of_rank


def late(rank: int, step: int) -> float:
    return 0.02 * (step % 3 == rank)


def scene(name: str, size: int = 3, **settings: Any) -> Scene:
    """A training in which one worker is late now and then, with a rest in it."""
    fields: dict[str, Any] = {"model": (4, 6, 1), "make": partial(torch.optim.AdamW, lr=0.02), "steps": 10}
    return Scene(name, size, pause=late, rests=[6], seed="rank", loss=squares, settings=settings, **fields)


IN_ORDER: dict[str, tuple[str, dict[str, Any]]] = {
    **{mode: ("parameter-server", {"mode": mode, "in_order": True}) for mode in ("async", "bounded", "sync")},
    "elastic": ("easgd", {"sync_every": 2, "in_order": True}),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_in_order_real_runs_are_the_same_to_the_bit(case: str) -> None:
    name, settings = IN_ORDER[case]
    trained = scene(name, **settings)
    first, again, expected = trained.ends(real=True)[0], trained.ends(real=True)[0], trained.ends()[0]
    assert torch.equal(first, again)
    assert torch.equal(first, expected)


def ended(trainer: Trainer) -> tuple[Tensor, int]:
    return trainer.parameters, trainer.bytes_out


def test_rows_of_sparse_tables_are_the_same_to_the_bit_and_to_the_byte() -> None:
    settings = {"mode": "bounded", "overlap": True, "in_order": True}
    fields: dict[str, Any] = {"model": Bags, "steps": 8, "rests": [4], "loss": of_rank}
    trained = Scene("parameter-server", 3, pause=late, settings=settings, **fields)
    for real, expected in zip(trained.run(ended, real=True), trained.run(ended), strict=True):
        assert torch.equal(real[0], expected[0])
        assert real[1] == expected[1]


AS_THEY_COME: list[tuple[str, dict[str, Any]]] = [
    ("parameter-server", {"mode": "async"}),
    ("parameter-server", {"mode": "bounded", "overlap": True}),
    ("parameter-server", {"backup": 1}),
    ("easgd", {"sync_every": 2, "overlap": True}),
    ("eamsgd", {"sync_every": 2, "servers": 1}),
]


@pytest.mark.parametrize(("name", "settings"), AS_THEY_COME)
def test_workers_end_with_what_the_servers_have(name: str, settings: dict[str, Any]) -> None:
    scene(name, **settings).end(real=True)


def test_sync_is_all_reduce() -> None:
    served, reduced = (scene(name, 2).ends(real=True)[0] for name in ("parameter-server", "all-reduce"))
    torch.testing.assert_close(served, reduced, rtol=1e-5, atol=1e-6)


def dying(dead: int, **settings: Any) -> list[Outcome[Tensor]]:
    given = {"servers": 1, "mode": "bounded", "on_death": "continue", **settings}
    training = Scene("parameter-server", dies={dead: 5}, steps=30, pause=0.02, loss=squares, settings=given)
    return outcomes_real_world(3, partial(played, training, parameters))


def test_the_others_go_on_without_a_worker_that_is_no_server() -> None:
    first, dead, last = dying(1)
    assert dead.exit_code != 0
    assert first.result is not None
    assert last.result is not None
    assert torch.equal(first.result, last.result)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_others_go_on_without_a_server_whose_part_is_on_another(mode: str) -> None:
    dead, *others = dying(0, mode=mode, servers="all", replication=2)
    assert dead.exit_code != 0
    first, second = (one.result for one in others)
    assert first is not None and second is not None, [one.error_message for one in others]
    assert torch.equal(first, second)


def test_without_the_server_all_stop_in_a_sentence() -> None:
    _, *others = dying(0)
    for one in others:
        assert one.error_type is PeerFailed
        assert "it was a server, and all parameters were on it alone" in one.error_message
