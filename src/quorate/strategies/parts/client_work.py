"""Rounds of clients: what a worker has of those that it plays, from where all began to the mean of all.

In a round every drawn client begins at the global model x, makes local steps, and contributes its delta from x. A
worker plays several clients one after the other, adds up their weighted deltas, and returns to x after each. So it
holds three vectors beside the model, however many clients there are.

Where the loader plays clients (`quorate.loader(..., partition=, clients=)`), a round is one pass of it: its end is
reached by all workers together, and the mean is formed there. Workers have unequally many steps in a round, or none.
Elsewhere each worker is one client, whose round is `sync_every` steps.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from quorate.core.clients import ClientTerms, Turn
from quorate.core.device_copies import values_of, widest
from quorate.core.errors import ConfigurationError
from quorate.core.resize import kept
from quorate.core.strategy import Strategy, Worker
from quorate.core.vectors import Flat
from quorate.strategies.parts.local_steps import mean_of_all


@dataclass(frozen=True, kw_only=True)
class FederatedSettings(Strategy):
    """The settings that strategies of clients have in common; their hooks are their own."""

    replicas = "meet"

    sampled: float = 0.1
    """C: share of the clients that are drawn for each round, at least one client."""
    local_epochs: int = 1
    """E: number of epochs of a client in a round."""
    local_steps: int = 0
    """Maximum number of batches of each client in a round; 0: as many as `local_epochs` needs."""
    weigh: Literal["examples", "equal"] = "examples"
    """Weight of a client in the mean: the number of examples that it computed in the round, or the same for all
    clients."""
    stragglers: float = 0.0
    """Share of the drawn clients, chosen at random, that end their round early; their steps count. For experiments."""
    dropouts: float = 0.0
    """Share of the drawn clients, chosen at random, that leave before their round ends; their steps are lost. For
    experiments."""
    clip: float = 0.0
    """Maximum norm of a client's update; longer updates are clipped. 0: no clipping."""
    noise: float = 0.0
    """z: standard deviation of the noise in the sum of the updates of a round, in units of `clip` (client-level
    differential privacy). Clients are then drawn independently."""
    noise_seed: int | None = None
    """Seed of reproducible noise, for tests; it does not protect privacy. By default noise comes from the operating
    system."""
    secure: bool = False
    """Whether workers mask their contributions, so that only the sum of all is revealed (needs the extra `tls`)."""
    secure_dropouts: int = 1
    """Number of workers that may die while a masked sum is computed; if more die, the round is skipped."""
    secure_bits: int = 16
    """Number of fractional bits in masked sums, which are 32-bit integers."""
    sync_every: int = 8
    """H: number of local steps in a round if the loader simulates no clients; each worker is then one client."""
    buffers: Literal["none", "mean", "rank0", "rank0-each-step"] = "mean"
    """Buffers of workers, not of clients, as in `local-sgd`. They are exchanged without protection: `noise` and
    `secure` protect parameters only, and require "none" for a model with buffers."""
    on_death: Literal["stop", "continue"] = "continue"
    """Whether the others continue without a dead worker and its clients, or all workers stop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sampled <= 1:
            raise ConfigurationError(
                f"sampled is {self.sampled}; it must be a share of all clients, above 0 and up to 1"
            )
        for name, least in (("local_epochs", 1), ("local_steps", 0), ("sync_every", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}; it must be a whole number (at least {least})"
                )
        if self.stragglers < 0 or self.dropouts < 0 or self.stragglers + self.dropouts > 1:
            settings = f"stragglers={self.stragglers}, dropouts={self.dropouts}"
            raise ConfigurationError(f"{settings}: they must be shares of at least 0, together at most 1")

        check_privacy(self.weigh, self.clip, self.noise)
        if self.secure_dropouts < 0 or not 0 <= self.secure_bits <= 30:
            settings = f"secure_dropouts={self.secure_dropouts}, secure_bits={self.secure_bits}"
            raise ConfigurationError(f"{settings}: the first must be at least 0, the second from 0 to 30")

    @property
    def client_terms(self) -> ClientTerms | None:
        return ClientTerms(
            sampled=self.sampled,
            epochs=self.local_epochs,
            steps=self.local_steps or None,
            stragglers=self.stragglers,
            dropouts=self.dropouts,
            is_independent=self.noise > 0,
            is_hidden=self.noise > 0 or self.secure,
        )

    @property
    def lets_join(self) -> bool:
        return False


@dataclass(kw_only=True)
class ClientWork:
    """One worker's part of a round; the state of a federated strategy, or a part of it."""

    point: Flat = kept("same")
    """x: the global model, where every client of the round begins."""
    total: Flat | None = kept("sum", default=None)
    """The deltas of the clients that have ended, each times its weight."""
    weight: float = kept("sum", default=0.0)
    """The sum of these weights."""
    running: dict[int, list[float]] = kept("keyed", default_factory=dict)
    """The steps of the client in the middle of its turn, and their weight, by its number."""
    turn: Turn | None = kept("drop", default=None)
    """The turn of the newest step in this round."""
    noising: int = kept("drop", default=0)
    """Workers that added noise to the newest sum; 0 before the first one."""

    def begin(self, worker: Worker) -> None:
        """A step begins. Raises `ConfigurationError` for another client than the one that has not ended, and where the
        model is not where clients begin."""
        turn = worker.turn
        client = worker.rank if turn is None else turn.client
        if self.running and client not in self.running:
            (before,) = self.running
            raise ConfigurationError(
                f"a step of client {client} came before client {before} had ended: step after every batch, and let the "
                "loop over the loader end by itself"
            )
        if turn is not None:
            self.check_unedited(worker, "only the next client would see it")
        self.running.setdefault(client, [0, 0.0])
        self.turn = turn

    def check_unedited(self, worker: Worker, why: str) -> None:
        """Raise `ConfigurationError`, with `why`, if the parameters are not those at which the next client begins."""
        if not self.running and worker.replica.take_edits(self.point, into=self.point):
            raise ConfigurationError(
                f"parameters were changed between two clients, and {why}; change them inside world.evaluate(), on all "
                "workers"
            )

    def step_ends(self, worker: Worker, strategy: FederatedSettings) -> bool:
        """Count the step that the client has just made; whether its turn is over."""
        turn, (amounts,) = self.turn, self.running.values()
        amounts[0] += 1
        amounts[1] += worker.weight if turn is None else worker.examples
        return self.steps >= strategy.sync_every if turn is None else turn.is_last

    @property
    def steps(self) -> int:
        """The steps of the client that is in the middle of its turn."""
        return int(sum(steps for steps, _ in self.running.values()))

    def end_turn(self, worker: Worker, strategy: FederatedSettings, *, is_early: bool = False) -> bool:
        """End the turn of the client: its delta counts, and the next one begins at x, with a new optimizer state.

        Returns whether it counts: not if no client is running, or if it drops out and its steps are lost. With
        `is_early` the round ends in the middle of its turn; what is to be private counts once, and so not then.
        """
        if not self.running:
            return False
        turn, ((_, amount),) = self.turn, self.running.values()
        self.running = {}
        counts = not (turn is not None and turn.is_lost) and not (is_early and strategy.noise > 0)
        if counts:
            delta = clipped(worker.parameters - self.point, strategy.clip)
            self.add(delta, 1.0 if strategy.weigh == "equal" else amount)
        worker.parameters = self.point
        if turn is not None:
            worker.replica.forget_moments()
        return counts

    def add(self, delta: Flat, weight: float) -> None:
        """Add the delta of one client, with its weight."""
        if self.total is None:
            self.total = Flat.zeros(delta.layout)
        self.total.add_(delta, alpha=weight)
        self.weight += weight

    def mean_delta(self) -> tuple[Flat, float] | None:
        """The mean delta of this worker's clients and its weight; None where no client has ended."""
        if self.total is None or self.weight == 0:
            return None
        return self.total / self.weight, self.weight

    def go_on_at(self, worker: Worker, point: Flat) -> None:
        """Begin a round at `point`, where all workers are."""
        self.total, self.weight, self.running, self.turn = None, 0.0, {}, None
        self.point = worker.parameters = point

    def restore(self, worker: Worker, at: Flat | None) -> None:
        """Go on from `at`, or with None from a checkpoint."""
        if at is not None:
            self.go_on_at(worker, at)
        elif not self.running:
            worker.parameters = self.point


def make_step(worker: Worker, strategy: FederatedSettings, gradient: Flat | None = None) -> None:
    """A local step of a client, on the gradient in `.grad` or this one; the last of its turn ends it.

    Where workers are clients, it ends the round as well.
    """
    work: ClientWork = worker.state
    worker.update(gradient)
    if not work.step_ends(worker, strategy):
        return
    if work.turn is not None:
        work.end_turn(worker, strategy)
        return
    if strategy.noise > 0 or strategy.secure:
        raise ConfigurationError(
            "noise and secure need the clients of a loader; give quorate.loader partition= and clients="
        )
    contribution = strategy.contribution(worker)
    assert contribution is not None, "a client that has made steps contributes its delta"
    strategy.apply(worker, mean_of_all(worker, *contribution))


def check_privacy(weigh: str, clip: float, noise: float) -> None:
    """Raise `ConfigurationError` for settings under which noise would hide nothing."""
    if not (clip >= 0 and noise >= 0 and math.isfinite(clip) and math.isfinite(noise)):
        raise ConfigurationError(f"clip={clip}, noise={noise}: they are numbers from 0 on")
    if noise > 0 and not clip > 0:
        raise ConfigurationError("noise is measured in units of clip, the greatest norm of a delta; set clip as well")
    if noise > 0 and weigh != "equal":
        raise ConfigurationError(
            "with noise all clients count the same, because noise hides a client with more weight "
            'less; set weigh="equal"'
        )


def clipped(delta: Flat, most: float) -> Flat:
    """Return `delta`, scaled in place to the norm `most` where its norm is larger; 0: as it is.

    With a bound, a delta that is not finite becomes zeros: it has no norm.
    """
    if not most:
        return delta
    parts = [part.detach().abs().to(widest(part.device)) for part in delta.bare().parts]
    length = math.sqrt(sum(values_of([part.square().sum() for part in parts])))
    if not math.isfinite(length):
        return delta.map(torch.zeros_like)
    return delta.mul_(most / length) if length > most else delta


def noised(x: Flat, deviation: float, seed: list[int] | None) -> Flat:
    """`x` plus Gaussian noise in every coordinate, from the operating system's randomness or from `seed`.

    The sum of a round's deltas, each no longer than S, plus noise of deviation z S, hides whether any one client took
    part. This is Algorithm 1 of McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language
    models", ICLR 2018: flat clipping, with a fixed denominator. Each worker adds its share of the noise to its
    contribution, in every round, also if no client was drawn. The noise does not depend on how
    many clients were drawn.
    """
    draw = torch.Generator().manual_seed(secrets.randbits(63) if seed is None else _mixed(seed))
    return x.map(lambda part: part + (deviation * torch.randn(part.shape, generator=draw)).to(part))


def _mixed(seed: list[int]) -> int:
    return int(np.random.SeedSequence([number % 2**64 for number in seed]).generate_state(1, np.uint64)[0] >> 1)
