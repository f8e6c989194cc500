"""On which host a worker is, as the processes of a run on several hosts know it."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.wire.real.endpoint import Endpoint, Places
from quorate.wire.real.trust import sign

KEY = b"of this run"


@pytest.mark.parametrize(
    ("is_local", "hosts"), [(True, [0, 0, 0, 0, 0, 0]), (False, [0, 1, 0, 3, 1, 5])], ids=["one host", "several"]
)
def test_hosts_are_named_for_their_lowest_ranks(is_local: bool, hosts: list[int]) -> None:
    """Ranks 3 and 4 have joined, as the board says; of rank 5 there is nothing but what somebody else wrote."""
    endpoint: Any = object.__new__(Endpoint)
    endpoint.is_local = is_local
    board: Any = {
        "generation/0/place/3": sign(KEY, "place", 3, "c"),
        "generation/0/place/4": sign(KEY, "place", 4, "b"),
        "generation/0/place/5": sign(b"of another run", "place", 5, "a"),
    }
    endpoint._places = Places(lambda: board, "generation/0", KEY, {0: "a", 1: "b", 2: "a"})
    for _ in range(2):  # of what nothing can change any more the board is not asked again
        assert [endpoint.host_of(rank) for rank in range(6)] == hosts
