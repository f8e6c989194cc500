"""Bytes that a worker holds of a model, predicted from the sizes of its tensors.

Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054, section 3 and figure 1) count bytes for Psi numbers, N workers and Adam
in mixed precision. These are 16 Psi without ZeRO, 4 Psi + 12 Psi / N for ZeRO 1, 2 Psi + 14 Psi / N for ZeRO 2 and 16
Psi / N for ZeRO 3. In float32 parameters take 4 Psi, gradients 4 Psi and Adam's state 8 Psi. `by_formula` applies this
to the bytes of a model. `held` returns the bytes that `quorate.parallelize` holds, which differ:

- Parameters are sharded in their own precision for every ZeRO stage, and between steps so are gradients and the
  optimizer's state: 1 / N of all. The paper has full parameters for ZeRO 1 and 2, and full gradients for ZeRO 1.
- Full parameters, in the precision of activations, are held in addition. With ZeRO 1 and 2 these are all parameters
  from the forward pass to the backward pass. With ZeRO 3 they are those in no block, and two blocks (the one in use,
  and the next in the backward pass). Block by block, four more tensors are held. These are the full gradient, the
  gradient packed to be reduced, the piece that remains of it, and with ZeRO 3 the buffer into which a block is
  gathered. The paper leaves these out, as buffers.
- With ZeRO 1 gradients are full within `optimizer.accumulate()`, which `held` leaves out.
- A tensor is cut along its first dimension; the first worker holds the larger, rounded-up part.

With `offload` the host holds the optimizer's state. With "optimizer" and "disk" it also holds copies of the trained
pieces and of their gradients; with "all", the pieces themselves, their gradients, and no copies. Where pieces are of 16
bits, numbers of 32 bits are kept besides. A delayed update of "all" takes copies as "optimizer" does.

State of strategies between replicas, and a module's scratch memory, are in neither. `held_between_replicas` adds the
vectors of some strategies, without activations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from quorate.core.axes import Offload

_BY_VECTORS: Mapping[float, Sequence[str]] = {
    0.5: ("hogwild",),
    1: ("all-reduce",),
    1.5: ("backup-workers", "quorum"),
    2: ("eager-majority", "eager-solo", "hierarchical-local-sgd"),
    2.25: ("bounded-staleness",),
    2.5: ("adaptive", "d-psgd"),
    3: (
        "auto",
        "local-sgd",
        "one-bit-adam",
        "one-bit-lamb",
        "post-local-sgd",
        "sgp",
        "symmetric-easgd",
        "zero-one-adam",
    ),
    3.5: ("choco-sgd", "dcd-psgd"),
    4: ("adaptive-local-sgd", "fed-avg", "fed-prox", "relay"),
    4.25: ("robust",),
    4.5: ("osgp",),
    4.75: ("eager-averaging", "ecd-psgd"),
    5: ("ad-psgd", "decoupled-diloco", "group-averaging", "noloco", "slowmo"),
    5.5: ("async-local-sgd", "parameter-server", "sparse-loco"),
    6: ("eamsgd", "easgd", "fed-buff", "fed-opt"),
    6.5: ("d2", "diloco", "downpour", "muloco"),
    7: ("scaffold", "ssp", "sync-backup"),
    7.5: ("streaming-diloco",),
    8: ("dana",),
    13.5: ("dc-asgd",),
}
VECTORS = {strategy: vectors for vectors, strategies in _BY_VECTORS.items() for strategy in strategies}
"""Vectors like the gradient, itself included, of a worker of two on a host: the most of a period, as its proportional
share, where nobody is late. `auto` and `post-local-sgd` have those of `local-sgd`, to which they change."""
_QUORUMS = ("adaptive", "backup-workers", "bounded-staleness", "eager-majority", "eager-solo", "quorum")
"""A large gradient is its contribution if the optimizer has no state; otherwise there is one vector more."""
_LARGE = 1 << 25
_RUNNING = 1 << 25
"""Bytes that a process takes with its first backward pass, whatever the model."""

Mode = Literal[0, 1, 2, 3]
"""The stage of ZeRO; 0 is none: every worker has all of the model."""
MODES: tuple[Mode, ...] = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of one full parameter."""

    numbers: int
    rows: int
    """Size of its first dimension; 1 for a single number."""
    bytes: int
    gathered_bytes: int
    """In the precision of activations."""
    is_trained: bool = True
    kept_like: int = 0
    """Bytes of the optimizer's state with the parameter's shape."""
    kept_apart: int = 0
    """Bytes of the optimizer's state with another shape, which every worker holds."""
    block: str = ""
    """The name of its block; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a model, on one worker that has all of it."""

    sizes: Sequence[Size]
    buffers: int = 0
    """Bytes; every worker holds all of them."""
    activations: int = 0
    """Bytes saved for the backward pass, by a batch of one worker."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Model:
        """Return the model that `as_json` has described."""
        return cls(
            sizes=[Size(**size) for size in values["sizes"]],
            buffers=values["buffers"],
            activations=values["activations"],
        )

    def as_json(self) -> dict[str, Any]:
        """Return the model as plain JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes on one worker, the first of its replica."""

    parameters: int
    """Includes buffers."""
    gradients: int
    optimizer: int
    gathered: int = 0
    """Full parameters besides, in the forward and backward pass, at most."""
    exchanged: int = 0
    """Full gradients, and packed and received ones, in the backward pass, at most."""
    activations: int = 0
    host: int = 0
    """In memory of the host, or in files that are mapped into it, with offloading; not part of the sums here."""

    @property
    def between_steps(self) -> int:
        """The bytes that remain when a step has ended, until gradients are freed."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """The bytes in the backward pass, as if all maxima fell together; without the memory of messages."""
        return self.between_steps + self.gathered + self.exchanged + self.activations


def held(model: Model, zero: Mode, shards: int, offload: Offload | None = None) -> Held:
    """Return the bytes that each of `shards` workers holds; with one worker, or `zero` 0, all of the model."""
    on_device = _on_device(model, zero, shards)
    if offload is None:
        return on_device
    cut = 1 if zero == 0 else shards
    trained = [size for size in model.sizes if size.is_trained]
    masters = sum(_piece(4 * size.numbers + size.kept_like, size.rows, cut) for size in trained if _is_small(size))
    copies = sum(_piece(size.bytes, size.rows, cut) for size in trained)
    return offloaded(on_device, offload, buffers=model.buffers, copies=copies, masters=masters)


def offloaded(
    on_device: Held, offload: Offload, *, buffers: int, copies: int, masters: int, delays: bool = False
) -> Held:
    """Return the bytes of a worker after offloading, from those without it.

    `copies` are the bytes of the trained pieces, and `masters` those that 32-bit copies of pieces of 16 bits add, with
    their state. `delays` says whether the update of "all" is delayed.
    """
    moved = on_device.optimizer + masters
    if offload != "all" or delays:
        moved += copies + on_device.gradients
    if offload != "all":
        return replace(on_device, optimizer=0, host=moved)
    host = moved + on_device.parameters - buffers + on_device.gradients
    return replace(on_device, parameters=buffers, gradients=0, optimizer=0, host=host)


def held_between_replicas(model: Model, strategy: str) -> int:
    """Return the bytes of a worker at the end of a backward pass or a step, as its proportional share, where no worker
    is late.

    There are two workers on a host, and one of the strategies of `VECTORS` joins the replicas (`benchmarks/memory.py`).
    """
    alone = _on_device(model, 0, 1)
    has_copy = strategy in _QUORUMS and (alone.optimizer > 0 or alone.gradients < _LARGE)
    return alone.between_steps + round((VECTORS[strategy] - 1 + has_copy) * alone.gradients) + _RUNNING


def _is_small(size: Size) -> bool:
    return size.bytes <= 2 * size.numbers


def _on_device(model: Model, zero: Mode, shards: int) -> Held:
    trained = [size for size in model.sizes if size.is_trained]
    if zero == 0 or shards == 1:
        gradients = sum(size.bytes for size in trained)
        return Held(
            parameters=sum(size.bytes for size in model.sizes) + model.buffers,
            gradients=gradients,
            optimizer=sum(size.kept_like + size.kept_apart for size in trained),
            exchanged=gradients if shards > 1 else 0,
            activations=model.activations,
        )
    gathered = _by_block(model.sizes, lambda size: size.gathered_bytes)
    outside_blocks = gathered.pop("", 0)
    if zero == 3:
        whole = outside_blocks + sum(sorted(gathered.values())[-2:])
        received = max(gathered.values(), default=outside_blocks)
    else:
        whole, received = outside_blocks + sum(gathered.values()), 0
    reduced = _by_block(trained, lambda size: size.gathered_bytes + size.bytes + _piece(size.bytes, size.rows, shards))
    return Held(
        parameters=sum(_piece(size.bytes, size.rows, shards) for size in model.sizes) + model.buffers,
        gradients=sum(_piece(size.bytes, size.rows, shards) for size in trained),
        optimizer=sum(_piece(size.kept_like, size.rows, shards) + size.kept_apart for size in trained),
        gathered=whole,
        exchanged=max(reduced.values(), default=0) + received,
        activations=model.activations,
    )


def by_formula(model: Model, zero: Mode, shards: int) -> float:
    """Return bytes of parameters, gradients and optimizer by the paper: those that ZeRO shards divided by `shards`."""
    trained = [size for size in model.sizes if size.is_trained]
    parameters, gradients = sum(size.bytes for size in model.sizes), sum(size.bytes for size in trained)
    optimizer = sum(size.kept_like + size.kept_apart for size in trained)
    parts = ((optimizer, 1), (gradients, 2), (parameters, 3))
    return sum(part / shards if zero >= least else part for part, least in parts)


def numbers_sent(model: Model, zero: Mode, shards: int) -> float:
    """Return the numbers that each worker sends in a step without accumulation, within its replica (section 7). ZeRO 0,
    1 and 2: 2 Psi (N - 1) / N; ZeRO 3: 3 Psi (N - 1) / N, where parameters in no block are gathered once."""
    everything = sum(size.numbers for size in model.sizes)
    trained = sum(size.numbers for size in model.sizes if size.is_trained)
    in_blocks = sum(size.numbers for size in model.sizes if size.block)
    passes = {0: 2 * trained, 1: everything + trained, 2: everything + trained, 3: everything + in_blocks + trained}
    return passes[zero] * (shards - 1) / shards


def _piece(nbytes: int, rows: int, shards: int) -> int:
    return -(-rows // shards) * (nbytes // max(1, rows))


def _by_block(sizes: Iterable[Size], bytes_of: Callable[[Size], int]) -> dict[str, int]:
    totals: dict[str, int] = defaultdict(int)
    for size in sizes:
        totals[size.block] += bytes_of(size)
    return dict(totals)
