"""How much longer passes take in shards, of the times of two runs."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.cli.planner.timed import mapped


def times(*blocks: tuple[float, float], rest: tuple[float, float] = (0.0, 0.0)) -> dict[str, Any]:
    return {"blocks": {str(n): list(one) for n, one in enumerate(blocks)}, "rest": list(rest)}


def test_all_blocks_and_the_rest_count() -> None:
    plain, slow = times((1.0, 2.0), (3.0, 4.0), rest=(1.0, 2.0)), times((2.0, 3.0), (4.0, 5.0), rest=(1.5, 2.0))
    assert mapped(plain, slow) == (pytest.approx(7.5 / 5), pytest.approx(10 / 8))
    assert mapped(slow, plain) == (1.0, 1.0), "noise makes nothing faster"
    assert mapped(times(), times()) == (1.0, 1.0)
