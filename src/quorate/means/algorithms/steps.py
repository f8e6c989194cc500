"""What an algorithm of all-reduce is made of: steps, in each of which a worker sends and receives at most one message,
and what they cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message, as one of its two ends sees it."""

    peer: int
    """The other end: to whom it is sent, or who sends it."""
    pieces: range
    """Which pieces of the vector it holds."""
    adds: bool
    """Whether the receiver adds them to its own; otherwise they are sums of all workers, and it takes them."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one worker sends and receives at the same time; the next step begins when both are over."""

    send: Transfer | None = None
    receive: Transfer | None = None


@dataclass(frozen=True)
class Cost:
    """What an all-reduce of n bytes costs, where each worker sends and receives one message at a time.

    The three terms of its time are those along the longest chain of messages that wait for each other, where all
    workers begin together, links are alike and n is a multiple of the pieces. Where the number of workers is no power
    of two, `recursive-doubling` and `tree` may take less: some messages are there before they are needed.
    """

    messages: int
    """In the chain."""
    moved: float
    """Bytes in these messages, in units of n."""
    added: float
    """Bytes that are added to others along the chain, in units of n."""
    sent: float
    """Bytes out of the worker that sends most, in units of n."""

    def seconds(self, nbytes: float, latency: float, bandwidth: float, adding: float = 0.0) -> float:
        """alpha `messages` + beta `moved` n + gamma `added` n.

        alpha is the `latency` of a message in seconds, beta is 1 / `bandwidth` in seconds per byte, and gamma is
        `adding`, the seconds that it takes to add one byte.
        """
        return self.messages * latency + self.moved * nbytes / bandwidth + self.added * nbytes * adding
