"""Synchronous servers with backup workers: every step takes the first P - 1 gradients.

Idea: The strategy `parameter-server` with `mode="sync"` and `backup=1`. A step is the mean of the first gradients that
arrive, all of the same parameters. Later ones are dropped, and their workers continue from the new parameters at once.

Cost: As `parameter-server`; the work of the workers left out is lost.

When it loses: If the same worker is always slow: the model never learns from its data. With equal workers a P-th of the
work is lost.

Honesty:
- pause: goes on; the others go on if it is the only one; otherwise they wait
- slow worker: goes on; it is left out; its gradients are dropped, and their number is recorded

Paper: Chen, Pan, Monga, Bengio, Jozefowicz, "Revisiting distributed synchronous SGD", 2016, Algorithms 3 and 4. The
preset `backup-workers` does the same without servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.strategies import register
from quorate.strategies.parameter_server import ParameterServer


@register("sync-backup")
@dataclass(frozen=True, kw_only=True)
class SyncBackup(ParameterServer):
    """A synchronous parameter server that uses the first P - 1 gradients of every step."""

    backup: int = 1
