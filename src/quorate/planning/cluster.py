"""The workers for which a training is planned, and the duration of their exchanges. Pure.

Notation: a group has n workers, `stride` ranks apart, k on each of H hosts of h workers; L and B are latency and
bandwidth. Inside of a host, where each worker has a link of its own, a sum of b bytes takes as a ring
2 (k - 1) (L + b / (k B)). Between hosts, whose port all h workers share, and with them h / k groups, it takes 2 (H - 1)
(L + (h / k) b / (H B)). A group on several hosts does both (Thakur, Rabenseifner, Gropp 2005, ring forms). To gather,
or to reduce and scatter, takes half of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from quorate.core.errors import ConfigurationError


@dataclass(frozen=True)
class Way:
    """How the bytes of one axis of a mesh go from worker to worker of a host."""

    latency: float
    """Seconds."""
    bandwidth: float
    """Bytes per second of a worker, each way."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A number of identical workers. Bytes, bytes per second, seconds."""

    workers: int
    memory: float
    """Memory of each worker."""
    bandwidth: float
    """Bandwidth of the port of a host, each way; of a worker, if hosts are not distinguished."""
    latency: float
    per_host: int = 0
    """Workers of each host; 0: hosts are not distinguished."""
    inside_bandwidth: float = 0.0
    """Bandwidth of a worker to others on its host."""
    inside_latency: float = 0.0
    cores: int = 0
    """Workers of a host that can compute at a time; 0: all."""
    overlaps: bool = True
    """Whether parameters and gradients are exchanged while workers compute."""
    sends_pieces: bool = False
    """Whether each of T workers of a tensor axis sends a T-th of activations to the next stage, which gathers them."""

    ways: Mapping[str, Way] = field(default_factory=dict)
    """By axis (replicas, stages, shards, tensor), where its bytes go another way than those of other axes: by shared
    memory, the sockets of messages, or a process group of torch."""

    def of_axis(self, axis: str) -> Cluster:
        """Return the cluster as exchanges along `axis` see it."""
        way = self.ways.get(axis)
        if way is None:
            return self
        if not self.per_host:  # all workers reach each other alike
            return replace(self, latency=way.latency, bandwidth=way.bandwidth)
        return replace(self, inside_latency=way.latency, inside_bandwidth=way.bandwidth)

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` for impossible figures."""
        if self.workers < 1:
            raise ConfigurationError(f"a plan needs at least one worker, not {self.workers}")
        for name in ("memory", "bandwidth", *(("inside_bandwidth",) if self.per_host else ())):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"the {name.replace('_', ' ')} of a worker is above 0")
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

    def all_reduce(self, nbytes: float, size: int, stride: int, count: int = 1) -> float:
        """Return the seconds until all of a group have a sum, in `count` exchanges one after the other."""
        inside, hosts = self._spread(size, stride)
        shared = self.on_host / inside
        seconds = 0.0
        if inside > 1:
            seconds += 2 * (inside - 1) * (count * self.inside_latency + nbytes / inside / self.inside_bandwidth)
        if hosts > 1:
            seconds += 2 * (hosts - 1) * (count * self.latency + shared * nbytes / hosts / self.bandwidth)
        return seconds

    def gather(self, nbytes: float, size: int, stride: int, count: int = 1) -> float:
        """Return the seconds until all of a group have the `nbytes` of which each has a piece.

        A sum, of which each gets a piece, takes as long. `count` exchanges are one after the other.
        """
        return self.all_reduce(nbytes, size, stride, count) / 2

    def send(self, nbytes: float, stride: int, tensor: int = 1) -> float:
        """Return the seconds of a message to the worker `stride` ranks away, while all that share its port send as
        well.

        `tensor` workers with neighbouring ranks send the same, where `sends_pieces`.
        """
        pieces = tensor if self.sends_pieces else 1
        if self.per_host and stride < self.on_host and self.workers <= self.per_host:
            seconds = self.inside_latency + nbytes / pieces / self.inside_bandwidth
        else:
            leaving = min(self.on_host, stride)
            seconds = self.latency + leaving * nbytes / pieces / self.bandwidth
        return seconds + (self.gather(nbytes, pieces, 1) if pieces > 1 else 0.0)

    def hides(self, size: int, stride: int) -> bool:
        """Return whether exchanges of a group overlap with computing.

        They do not where exchanges never overlap, and on one host whose workers use all of its cores, as copying in
        memory uses a core as well.
        """
        here = self.on_host if self.per_host else self.workers
        is_here = self.is_inside(size, stride) or not self.per_host
        return self.overlaps and not (is_here and 0 < self.cores <= here)

    def is_inside(self, size: int, stride: int) -> bool:
        """Return whether all of a group are on one host."""
        return self._spread(size, stride)[1] == 1

    def _spread(self, size: int, stride: int) -> tuple[int, int]:
        """Return the members of a group on each host, and the number of its hosts."""
        inside = max(1, min(size, self.on_host // stride)) if self.per_host else 1
        return inside, -(-size // inside)
