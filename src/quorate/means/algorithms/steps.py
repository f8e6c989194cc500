"""Steps of an all-reduce, in each of which a worker sends and receives one message or none; and their cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message, seen from one of its two ends."""

    peer: int
    """The other end: the receiver, or the sender."""
    pieces: range
    """The pieces of the vector in the message."""
    adds: bool
    """Whether the receiver adds them to its own; otherwise they are sums of all workers, and replace its own."""


@dataclass(frozen=True, slots=True)
class Step:
    """The messages that one worker sends and receives at the same time; the next step begins when both are over."""

    send: Transfer | None = None
    receive: Transfer | None = None


@dataclass(frozen=True)
class Cost:
    """The cost of an all-reduce of n bytes, where each worker sends and receives one message at a time.

    The three terms of its time are those along the longest chain of messages that wait for each other. All workers
    begin together, links are alike, and n is a multiple of the pieces. Where the number of workers is no power of two,
    `recursive-doubling` and `tree` may take less: some messages arrive before they are needed.
    """

    messages: int
    """Messages in the chain."""
    moved: float
    """Bytes in these messages, in units of n."""
    added: float
    """Bytes that are added to others along the chain, in units of n."""
    sent: float
    """Bytes sent by the worker that sends most, in units of n."""

    def seconds(self, nbytes: float, latency: float, bandwidth: float, adding: float = 0.0) -> float:
        """Return alpha `messages` + beta `moved` n + gamma `added` n.

        alpha is the `latency` of a message in seconds, beta is 1 / `bandwidth` in seconds per byte, and gamma is
        `adding`, the seconds that it takes to add one byte.
        """
        return self.messages * latency + self.moved * nbytes / bandwidth + self.added * nbytes * adding
