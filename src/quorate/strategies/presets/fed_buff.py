"""FedBuff: federated averaging that waits for a few clients only, whose late updates have less weight.

Idea: The strategy `async-local-sgd` with rounds that start at K updates (`wait_for`), plain SGD as the outer optimizer,
and equal numbers of local steps. Each worker is a client: it takes `sync_every` steps on its own data from the newest
common point, and sends its update. At K updates the common point moves by

    x = x - outer_rate / K sum_i s(T_i) Delta_i
    s(T) = 1 / sqrt(1 + T)

T is the number of rounds between the start of the client's steps and the round that applies them, so a fresh update has
the weight 1. The divisor is K, and not the sum of the weights.

Cost: With P workers and d parameters, 2 (P - 1) d numbers through the leading worker for every round of K updates. A
client waits until its own update was applied, which is the round of K updates that it is in.

When it loses: As `async-local-sgd`. With K = 1 every single update moves the model; with K = P all wait for the
slowest, as in `fed-avg`. It forms plain sums in rounds: masked sums (`secure`) and noise (`noise`) are refused, because
a client is in as many rounds as its speed allows. The privacy loss of `quorate.privacy_spent` is that of clients that
are drawn for each round at random, and would be too small here.

Honesty:
- worker death: goes on; its update is lost, and from then on a round starts at no more updates than there are live
  workers; the divisor remains K
- pause: goes on; others go on without it if K updates are there; its update later has less weight
- slow worker: goes on; its updates are in fewer rounds, with less weight

Paper: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, "Federated learning with buffered asynchronous
aggregation", AISTATS 2022 (arXiv 2106.06639), Algorithm 1, after public descriptions. The weight 1 / sqrt(1 + T) is as
recalled from them. That a client is a worker which waits for its round, half of the workers for K, and more than K
updates in a round are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quorate.strategies import register
from quorate.strategies.async_local_sgd import AsyncLocalSGD


@register("fed-buff")
@dataclass(frozen=True, kw_only=True)
class FedBuff(AsyncLocalSGD):
    """Clients train on their own data; every K updates move the model, late ones with less weight."""

    sync_every: int = 8
    """H: number of local steps of a client between two updates."""
    wait_for: int | float | Literal["all", "majority"] = 0.5
    """K: number of updates that start a round: a number, or a share of the workers. With fewer live workers than K, it
    is their number."""
    divide_by: Literal["world", "wait_for"] = "wait_for"
    dynamic: bool = False
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    late: Literal["carry", "cosine", "decay", "root", "turn"] = "root"
    secure: Literal[False] = False
    """Masked sums are for rounds in which all workers take part (`fed-avg`), so it stays off."""
    noise: Literal[0] = 0
    """Noise for privacy is for clients that are drawn for each round (`fed-avg`), so it stays 0."""
