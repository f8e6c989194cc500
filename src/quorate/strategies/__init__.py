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
        "backup-workers": "quorate.strategies.backup_workers:BackupWorkers",
        "bounded-staleness": "quorate.strategies.bounded_staleness:BoundedStaleness",
        "eager-majority": "quorate.strategies.eager_majority:EagerMajority",
        "eager-solo": "quorate.strategies.eager_solo:EagerSolo",
        "quorum": "quorate.strategies.quorum:Quorum",
    },
)
register = strategies.register
