"""Clients of federated training: what a strategy asks of the loader that plays them, and whose batch a step is of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClientTerms:
    """How many clients are in a round, and how much each of them computes; a strategy's, equal on all workers."""

    sampled: float
    """C: the share of all clients that is drawn for a round; at least one client, unless draws are independent."""
    epochs: int
    """E: number of epochs of a client in a round."""
    steps: int | None = None
    """At most so many batches of each client in a round."""
    stragglers: float = 0.0
    """The share of drawn clients that end their round early, by a draw; what they did counts."""
    dropouts: float = 0.0
    """The share of drawn clients that leave before the round ends, by a draw; what they did is lost."""
    is_independent: bool = False
    """Whether each client is drawn by itself with probability `sampled`, as accountants of privacy assume (Poisson
    sampling), and not a fixed number of them."""
    is_hidden: bool = False
    """Whether noise or masks hide the parameters that workers contribute; they never hide buffers."""


@dataclass(frozen=True, kw_only=True)
class ClientRound:
    """A round of clients that a worker takes part in, whether or not any of its clients were drawn."""

    number: int
    """From 0."""
    clients: int
    """N: how many clients there are, drawn or not."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Whose batch a step is of: one client's part in one round."""

    round: int
    """From 0."""
    client: int
    """Its number, from 0."""
    clients: int
    """N: how many there are, drawn or not."""
    drawn: int
    """How many were drawn for this round."""
    players: int
    """How many workers play some of them."""
    own: int
    """How many of them this worker plays."""
    is_last: bool = False
    """Whether this is the client's last batch in the round."""
    is_lost: bool = False
    """Whether the client drops out: nothing of this turn counts."""
