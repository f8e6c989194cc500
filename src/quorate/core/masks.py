"""A mask: the numbers of a tensor that pruning keeps. The others are zero, and are in no vector."""

from __future__ import annotations

import hashlib
from functools import cached_property

import torch
from torch import Tensor


class Mask:
    """The kept numbers of one tensor; masks are equal if they keep the same numbers of the same shape.

    Cost: one byte for each number of the tensor, and eight for each that is kept.
    """

    def __init__(self, kept: Tensor) -> None:
        """`kept` has the shape and the device of the tensor, and is true where a number is kept."""
        self.kept = kept.detach().bool()
        self.shape = tuple(kept.shape)
        self.places = self.kept.reshape(-1).nonzero().view(-1)
        """The places of kept numbers in the flattened tensor, in ascending order."""

    @property
    def count(self) -> int:
        """The number of kept numbers."""
        return len(self.places)

    @cached_property
    def pruned(self) -> Tensor:
        """True where a number is not kept."""
        return ~self.kept

    @cached_property
    def digest(self) -> str:
        """A digest that is equal for equal masks on every device."""
        numbers = self.places.cpu().numpy().tobytes()
        return hashlib.sha256(repr(self.shape).encode() + numbers).hexdigest()

    def gather(self, x: Tensor) -> Tensor:
        """Return the kept numbers of `x`, in one dimension (a copy)."""
        return x.detach().reshape(-1)[self.places.to(x.device)]

    def scatter(self, numbers: Tensor) -> Tensor:
        """Return a new tensor of the full shape with the kept `numbers`, and zeros elsewhere."""
        full = numbers.new_zeros(self.kept.numel())
        full[self.places.to(numbers.device)] = numbers.reshape(-1)
        return full.view(self.shape)

    def apply_(self, x: Tensor) -> None:
        """Set the numbers of `x` that are not kept to zero, NaN included."""
        with torch.no_grad():
            x.detach().masked_fill_(self.pruned.to(x.device), 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mask) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Mask({self.count} of {self.kept.numel()})"
