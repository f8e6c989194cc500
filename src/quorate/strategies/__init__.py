"""When and with whom workers agree, and on what: one file per strategy, each known by one name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorate.core.registry import Registry

if TYPE_CHECKING:
    from quorate.core.strategy import Strategy

strategies: Registry[type[Strategy]] = Registry(
    "strategy",
    {
        "all-reduce": "quorate.strategies.all_reduce:AllReduce",
        "quorum": "quorate.strategies.quorum:Quorum",
    },
)
register = strategies.register
