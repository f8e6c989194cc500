"""`Cyclic`: the exact mean from combinations sent with a cyclic code, even if some of them are wrong.

Idea: Each worker owns a piece of all combinations. Owners compute the scalar product of each piece with a random
vector. The sums give one number for each worker, and the numbers satisfy the parity checks of the code unless a worker
has sent a wrong vector. The checks then show which worker it was. Combinations that are not finite, or out of all
proportion, are left out before. The remaining combinations, weighted by the code, give the sum of all gradients.

Cost: With P workers and n bytes each worker sends (P - 1) / P n bytes in the first exchange, and as many in the second,
as in an all-reduce. Between the two it sends 2 P numbers. Two vectors of memory, and two passes over them.

When it loses: Where more workers are wrong than the code tolerates: this is detected, and ends with an error. An error
designed for the random vector is not detected. The decoded mean is exact up to rounding times the size of the code's
weights: 1e-6 among few workers, 1e-4 among 40.

Paper: Chen, Wang, Charles and Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant
gradients", ICML 2018, section 4.2; in pieces, with a real code (`aggregation.cyclic_code`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from quorate.aggregation.cyclic_code import cyclic_code
from quorate.aggregation.mean import Mean
from quorate.aggregation.outcome import Outcome
from quorate.aggregation.rows import Rows
from quorate.aggregation.rule import mixed_rows
from quorate.core.codec import Draw
from quorate.core.contracts import Wire
from quorate.core.device_copies import widest
from quorate.core.errors import Mismatch
from quorate.core.redundancy import Redundancy
from quorate.core.vectors import Layout
from quorate.means.owned_pieces import Made, OwnedPieces

_OUT_OF_PROPORTION = 1e4
"""A combination this many times as long as an honest one is certainly wrong."""


class Cyclic(OwnedPieces):
    """The mean of the gradients in the combinations of all workers, even if some workers send wrong ones.

    Raises `Mismatch` where more are wrong or missing than the code tolerates. Cost per worker: `wire_bytes` sent.
    """

    def __init__(self, layout: Layout, wire: Wire, seed: int, redundancy: Redundancy) -> None:
        super().__init__(layout, wire)
        self._seed, self._number = seed, 0
        self._code = cyclic_code(wire.size, redundancy.batches - 1)
        self._rounding = max((torch.finfo(part.dtype).eps for part in layout.parts), default=0.0) / 2

    def commit(self) -> None:
        """Make the newest sum count: the next one draws another vector."""
        if self._is_over:
            self._number += 1
            self._is_over = False

    def factor(self, size: int, weight: float) -> float:
        """Return 1: each worker has divided by the number of workers, which is the number of gradients."""
        return 1.0

    def _draw(self) -> Draw:
        return Draw(seed=self._seed, round=self._number)

    def _measured_numbers(self, size: int) -> int:
        return 2 * size

    def _measured(self, rows: Mapping[int, Rows], counts: Tensor, ranks: Sequence[int], draw: Draw) -> Tensor:
        """Return the product of each row with a random vector, and with itself: (2, n)."""
        products = torch.zeros(2, len(ranks), dtype=torch.float64)
        for own in rows.values():
            generator = draw.generator(own.device)
            for _, columns in own.columns():
                wide = columns.to(widest(columns.device))
                drawn = torch.randn(wide.shape[1], generator=generator, device=wide.device, dtype=wide.dtype)
                products += torch.stack([wide @ drawn, wide.square().sum(1)]).cpu()
        return products

    def _wrong(self, numbers: Tensor, norms: Tensor, missing: Sequence[int]) -> list[int] | None:
        """Return the workers that have sent something wrong, apart from `missing`; None where there are too many.

        A combination that is out of all proportion is erased first: its error, located among the others, would be off
        by more than they are large. Of the other norms the largest one that may be honest is the unit of rounding.
        """
        bears = self._code.checks // 2
        present = sorted(set(range(len(norms))) - set(missing), key=lambda rank: -float(norms[rank]))
        if len(missing) > bears:
            return None
        honest = float(norms[present[min(bears - len(missing), len(present) - 1)]])
        absurd = [rank for rank in present if float(norms[rank]) > _OUT_OF_PROPORTION * honest]
        rounding = self._rounding * honest
        erased = [*missing, *absurd]
        wrong = self._code.wrong(numbers, rounding, erased)
        return None if wrong is None else sorted([*absurd, *wrong])

    def _decided(self, measured: Tensor, counts: Tensor, ranks: Sequence[int]) -> Made:
        size = self.wire.size
        numbers, squares = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        numbers[list(ranks)], squares[list(ranks)] = measured[0], measured[1]
        here = [rank for place, rank in enumerate(ranks) if counts[place] > 0]
        finite = [rank for rank in here if bool(torch.isfinite(squares[rank]))]
        missing = sorted(set(range(size)) - set(finite))
        wrong = self._wrong(numbers, squares.sqrt(), missing) if finite else []
        present = [rank for rank in finite if wrong is not None and rank not in wrong]
        weights = self._code.weights(present) if present else torch.zeros(size, dtype=torch.float64)
        if (finite and not present) or weights is None:
            raise Mismatch(
                f"the gradients of {size} workers do not decode: more than {self._code.checks // 2} of them are wrong "
                "or missing, or workers do not compute the batches that the code means"
            )
        not_finite = [rank for rank in here if rank not in finite]
        absent = [rank for rank in range(size) if rank not in here]
        outvoted = [rank for rank in finite if rank not in present]
        self.newest = Outcome(absent, not_finite, outvoted, weights=[float(rank in present) for rank in range(size)])
        places = [ranks.index(rank) for rank in present]

        def made(part: int, rows: Rows, into: Sequence[Tensor]) -> None:
            if places:
                mixed_rows(rows, places, weights[present].unsqueeze(0), Mean(f=0), into)
                return
            for x in into:
                x.fill_(torch.nan if not_finite else 0.0)

        return made
