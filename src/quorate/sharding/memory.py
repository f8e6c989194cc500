"""Bytes that a worker holds of a model, foreseen from the sizes of its tensors.

With Psi numbers and N workers, Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054, section 3 and figure 1) count, for Adam
in mixed precision, 16 Psi without ZeRO, 4 Psi + 12 Psi / N for ZeRO 1, 2 Psi + 14 Psi / N for ZeRO 2 and 16 Psi / N for
ZeRO 3; in float32 parameters are 4 Psi, gradients 4 Psi and what Adam keeps 8 Psi. `by_formula` is that, for the bytes
that a model has. `held` is what `quorate.parallelize` holds, which differs:

- Parameters lie sharded in their own precision whatever ZeRO is, and between steps so do gradients, and what the
  optimizer keeps: 1 / N of all, where the paper has whole parameters for ZeRO 1 and 2, and whole gradients for ZeRO 1.
- Beside them are whole parameters, in the precision of activations: with ZeRO 1 and 2 all of them from the forward pass
  to the backward pass; with ZeRO 3 what is in no block, and two blocks (the one in use, and the next in the backward
  pass). And so are, block by block, the whole gradient, the gradient packed to be reduced, the piece that is left of
  it, and with ZeRO 3 what a block is gathered into. The paper leaves these out, as buffers.
- With ZeRO 1 gradients are whole within `optimizer.accumulate()`, which `held` leaves out.
- A tensor is cut along its first dimension; the first worker has what is rounded up.

With `offload` the host has what the optimizer keeps and, with "optimizer" and "disk", copies of the pieces that are
trained and of their gradients; with "all", the pieces themselves, their gradients, and no copies. Where pieces are of
16 bits, numbers of 32 are kept besides. A delayed update of "all" takes copies as "optimizer" does.

What strategies keep between replicas, and a module's scratch memory, is in neither.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from quorate.core.axes import Offload

Mode = Literal[0, 1, 2, 3]
"""ZeRO; 0 is none: every worker has all of the model."""
MODES: tuple[Mode, ...] = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Size:
    """One parameter, whole."""

    numbers: int
    rows: int
    """Of its first dimension; 1 for a single number."""
    bytes: int
    gathered_bytes: int
    """In the precision in which it is used."""
    is_trained: bool = True
    kept_like: int = 0
    """Bytes that the optimizer keeps in its shape."""
    kept_apart: int = 0
    """Bytes of what the optimizer keeps of it in another shape, which every worker has."""
    block: str = ""
    """The name of the block that it is in; empty: none."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is known of a model, on one worker that has all of it."""

    sizes: Sequence[Size]
    buffers: int = 0
    """Bytes; every worker has all."""
    activations: int = 0
    """Bytes saved for the backward pass, by a batch of one worker."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Model:
        """What `as_json` gave."""
        return cls(
            sizes=[Size(**one) for one in told["sizes"]], buffers=told["buffers"], activations=told["activations"]
        )

    def as_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes on one worker, the first of its replica."""

    parameters: int
    """With buffers."""
    gradients: int
    optimizer: int
    gathered: int = 0
    """Whole parameters beside, in the forward and backward pass, at most."""
    exchanged: int = 0
    """Whole gradients, and what is packed and received, in the backward pass, at most."""
    activations: int = 0
    host: int = 0
    """In memory of the host, or in files that are mapped into it, where something is offloaded; in no sum here."""

    @property
    def between_steps(self) -> int:
        """What stays when a step has ended, until gradients are freed."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """In the backward pass, as if all that comes and goes were there at once; what messages take is not in it."""
        return self.between_steps + self.gathered + self.exchanged + self.activations


def held(model: Model, zero: Mode, shards: int, offload: Offload | None = None) -> Held:
    """What each of `shards` workers holds; alone, and with `zero` 0, all of the model."""
    found = _on_device(model, zero, shards)
    if offload is None:
        return found
    cut = 1 if zero == 0 else shards
    trained = [one for one in model.sizes if one.is_trained]
    masters = sum(_piece(4 * one.numbers + one.kept_like, one.rows, cut) for one in trained if _is_small(one))
    if offload == "all":
        host = found.between_steps - model.buffers + masters
        return replace(found, parameters=model.buffers, gradients=0, optimizer=0, host=host)
    copies = sum(_piece(one.bytes, one.rows, cut) for one in trained)
    return replace(found, optimizer=0, host=found.optimizer + copies + found.gradients + masters)


def _is_small(one: Size) -> bool:
    return one.bytes <= 2 * one.numbers


def _on_device(model: Model, zero: Mode, shards: int) -> Held:
    trained = [one for one in model.sizes if one.is_trained]
    if zero == 0 or shards == 1:
        gradients = sum(one.bytes for one in trained)
        return Held(
            parameters=sum(one.bytes for one in model.sizes) + model.buffers,
            gradients=gradients,
            optimizer=sum(one.kept_like + one.kept_apart for one in trained),
            exchanged=gradients if shards > 1 else 0,
            activations=model.activations,
        )
    gathered = _by_block(model.sizes, lambda one: one.gathered_bytes)
    rest = gathered.pop("", 0)
    if zero == 3:
        whole = rest + sum(sorted(gathered.values())[-2:])
        received = max(gathered.values(), default=rest)
    else:
        whole, received = rest + sum(gathered.values()), 0
    reduced = _by_block(trained, lambda one: one.gathered_bytes + one.bytes + _piece(one.bytes, one.rows, shards))
    return Held(
        parameters=sum(_piece(one.bytes, one.rows, shards) for one in model.sizes) + model.buffers,
        gradients=sum(_piece(one.bytes, one.rows, shards) for one in trained),
        optimizer=sum(_piece(one.kept_like, one.rows, shards) + one.kept_apart for one in trained),
        gathered=whole,
        exchanged=max(reduced.values(), default=0) + received,
        activations=model.activations,
    )


def by_formula(model: Model, zero: Mode, shards: int) -> float:
    """Parameters, gradients and optimizer by the paper: what ZeRO shards is divided by `shards`, the rest is whole."""
    trained = [one for one in model.sizes if one.is_trained]
    parameters, gradients = sum(one.bytes for one in model.sizes), sum(one.bytes for one in trained)
    optimizer = sum(one.kept_like + one.kept_apart for one in trained)
    parts = ((optimizer, 1), (gradients, 2), (parameters, 3))
    return sum(part / shards if zero >= least else part for part, least in parts)


def numbers_sent(model: Model, zero: Mode, shards: int) -> float:
    """By each worker in a step without accumulation, within its replica (section 7 of the paper).

    ZeRO 0, 1 and 2: 2 Psi (N - 1) / N; ZeRO 3: 3 Psi (N - 1) / N, less what is in no block, which is gathered once.
    """
    everything = sum(one.numbers for one in model.sizes)
    trained = sum(one.numbers for one in model.sizes if one.is_trained)
    in_blocks = sum(one.numbers for one in model.sizes if one.block)
    passes = {0: 2 * trained, 1: everything + trained, 2: everything + trained, 3: everything + in_blocks + trained}
    return passes[zero] * (shards - 1) / shards


def _piece(nbytes: int, rows: int, shards: int) -> int:
    return -(-rows // shards) * (nbytes // max(1, rows))


def _by_block(sizes: Iterable[Size], bytes_of: Callable[[Size], int]) -> dict[str, int]:
    found: dict[str, int] = defaultdict(int)
    for one in sizes:
        found[one.block] += bytes_of(one)
    return dict(found)
