"""The workers that a training is planned for, and how long they take to exchange something. Pure.

Notation: a group has n workers, `stride` ranks apart, k on each of H hosts of h workers; L and B are latency and
bandwidth. Inside of a host, where each worker has a way of its own, a sum of b bytes takes as a ring
2 (k - 1) (L + b / (k B)). Between hosts, whose port all h workers share, and with them h / k groups, it takes
2 (H - 1) (L + (h / k) b / (H B)); a group on several hosts does both (Thakur, Rabenseifner, Gropp 2005, ring forms). To
gather, or to reduce and scatter, is half of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorate.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Workers that are alike. Bytes, bytes per second, seconds."""

    workers: int
    memory: float
    """Of each worker."""
    bandwidth: float
    """Of the port of a host, each way; where no hosts are told apart, of a worker."""
    latency: float
    per_host: int = 0
    """Workers of each host; 0: no hosts are told apart."""
    inside_bandwidth: float = 0.0
    """Of a worker, to others on its host."""
    inside_latency: float = 0.0
    cores: int = 0
    """How many workers of a host compute at a time; 0: all do."""
    overlaps: bool = True
    """Whether parameters and gradients are exchanged while workers compute."""
    sends_pieces: bool = False
    """Whether the workers of a tensor axis send a T-th of activations to the next stage each, and gather them there."""

    def __post_init__(self) -> None:
        """Raises `ConfigurationError` for figures that cannot be."""
        if self.workers < 1:
            raise ConfigurationError(f"a plan needs at least one worker, not {self.workers}")
        for what in ("memory", "bandwidth", *(("inside_bandwidth",) if self.per_host else ())):
            if not getattr(self, what) > 0:
                raise ConfigurationError(f"the {what.replace('_', ' ')} of a worker is above 0")
        if self.per_host and self.workers > self.per_host and self.workers % self.per_host:
            raise ConfigurationError(
                f"{self.workers} workers are not on hosts of {self.per_host}; give a multiple, or leave hosts out"
            )

    @property
    def on_host(self) -> int:
        """Workers that share a port."""
        return min(self.per_host, self.workers) or 1

    @property
    def crowd(self) -> float:
        """Workers of a host for each of its cores; 0: each worker has its own."""
        here = self.on_host if self.per_host else self.workers
        return here / self.cores if self.cores else 0.0

    def all_reduce(self, nbytes: float, size: int, stride: int) -> float:
        """Seconds until all of a group have a sum."""
        inside, hosts = self._spread(size, stride)
        shared = self.on_host / inside
        found = 0.0
        if inside > 1:
            found += 2 * (inside - 1) * (self.inside_latency + nbytes / inside / self.inside_bandwidth)
        if hosts > 1:
            found += 2 * (hosts - 1) * (self.latency + shared * nbytes / hosts / self.bandwidth)
        return found

    def gather(self, nbytes: float, size: int, stride: int) -> float:
        """Seconds until all of a group have the `nbytes` of which each has a piece, or each a piece of a sum."""
        return self.all_reduce(nbytes, size, stride) / 2

    def send(self, nbytes: float, stride: int, tensor: int = 1) -> float:
        """Seconds of a message to the worker that is `stride` ranks away, while all that share its port do the same.

        `tensor` workers with neighbouring ranks have the same to send, where `sends_pieces`.
        """
        pieces = tensor if self.sends_pieces else 1
        if self.per_host and stride < self.on_host and self.workers <= self.per_host:
            found = self.inside_latency + nbytes / pieces / self.inside_bandwidth
        else:
            leaving = min(self.on_host, stride)
            found = self.latency + leaving * nbytes / pieces / self.bandwidth
        return found + (self.gather(nbytes, pieces, 1) if pieces > 1 else 0.0)

    def hides(self, size: int, stride: int) -> bool:
        """Whether what a group exchanges can be under way while its workers compute: not where exchanges never overlap,
        and not on one host whose workers take all of its cores, as copying in its memory takes a core as well."""
        here = self.on_host if self.per_host else self.workers
        is_here = self.is_inside(size, stride) or not self.per_host
        return self.overlaps and not (is_here and 0 < self.cores <= here)

    def is_inside(self, size: int, stride: int) -> bool:
        """Whether all of a group are on one host."""
        return self._spread(size, stride)[1] == 1

    def _spread(self, size: int, stride: int) -> tuple[int, int]:
        """Members of a group on a host of theirs, and their hosts."""
        inside = max(1, min(size, self.on_host // stride)) if self.per_host else 1
        return inside, -(-size // inside)
