"""Cyclic codes over sums: n workers each send one combination of a few vectors, and the sum of all n survives some.

Worker i has the vectors i, i + 1, ..., i + c (modulo n), and sends x_i = sum_j B_ij g_j. Whatever the vectors are, the
sent combinations satisfy c equations, the parity checks: sum_i H_ki x_i = 0 for k = 1 ... c. So any c of the n
combinations can be missing, and the sum of all g is a combination of the rest (gradient coding). Or any s = c / 2 can
be wrong, at any places; the c sums that should be 0 then give their errors.

H_ki = exp(2 pi I f_k i / n) for c neighbouring frequencies f_k around n / 2. They come in conjugate pairs, so B is
real, and needs half of the bytes of the published codes over complex numbers. Around n / 2 the coefficients have
similar sizes (for c = 2 nearly 1 : 2 : 1); any c columns of H are independent, as in a Vandermonde matrix.

Source: Chen, Wang, Charles and Papailiopoulos, "DRACO: Byzantine-resilient distributed training via redundant
gradients", ICML 2018, section 4 (cyclic code; theirs is complex); Tandon, Lei, Dimakis and Karampatziakis, "Gradient
coding: avoiding stragglers in distributed learning", ICML 2017, section 3.2 (cyclic support; theirs is drawn at
random). Real codes of the discrete Fourier transform: Marshall, "Coding of real-number sequences for error correction",
1984.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError

_TRIES = 64
_ENOUGH = 64.0
"""Largest parity check, as a multiple of the rounding error of the sent vectors."""


class CyclicCode:
    """The code of `size` workers with `checks` parity checks; pure, and the same on all workers. Float64 on the CPU.

    Raises `ConfigurationError` for fewer workers than a worker has vectors.
    """

    def __init__(self, size: int, checks: int) -> None:
        if not 0 <= checks < size:
            raise ConfigurationError(
                f"a cyclic code with {checks + 1} batches a worker is for {checks + 1} workers or more, not {size}"
            )
        self.size, self.checks = size, checks
        frequencies = size / 2 + torch.arange(checks, dtype=torch.float64) - (checks - 1) / 2
        phases = 2 * math.pi / size * torch.outer(frequencies, torch.arange(size, dtype=torch.float64))
        self._parity = torch.polar(torch.ones_like(phases), phases)
        self._nodes = torch.polar(
            torch.ones(size, dtype=torch.float64), 2 * math.pi / size * torch.arange(size, dtype=torch.float64)
        )
        self.matrix = self._scaled(self._columns())
        """B (n, n): the coefficient of vector j at worker i, 0 where the worker does not have it."""

    @property
    def batches(self) -> int:
        """Number of vectors that a worker combines."""
        return self.checks + 1

    def coefficients(self, worker: int) -> list[float]:
        """Return the coefficients of a worker's vectors: its own, and those of the next workers."""
        return [float(self.matrix[worker, (worker + step) % self.size]) for step in range(self.batches)]

    def _columns(self) -> Tensor:
        """Return the columns of B, each up to a factor."""
        columns = torch.zeros(self.size, self.size, dtype=torch.float64)
        for vector in range(self.size):
            workers = [(vector - step) % self.size for step in range(self.batches)]
            checked = torch.view_as_real(self._parity[:, workers]).permute(0, 2, 1).reshape(-1, self.batches)
            null = torch.linalg.svd(checked, full_matrices=True).Vh[-1] if self.checks else torch.ones(1)
            columns[workers, vector] = (null / null.abs().sum()).to(columns)
        return columns

    def _scaled(self, columns: Tensor) -> Tensor:
        """Return the columns scaled so that a combination of all rows, the best of some, is the sum of all vectors."""
        place = torch.arange(self.size, dtype=torch.float64) / self.size
        generator = torch.Generator().manual_seed(self.size)
        drawn = torch.randn(_TRIES, self.size, generator=generator, dtype=torch.float64)
        waves = [torch.cos(math.pi * (place + phase / 16)) for phase in range(16)]
        rows = torch.stack([torch.ones_like(place), 1 + place, *waves, *drawn])
        rows = rows / rows.norm(dim=1, keepdim=True)
        sums = rows @ columns
        best = sums[int(sums.abs().amin(1).argmax())]
        scaled: Tensor = columns / best
        return scaled

    def weights(self, present: Sequence[int]) -> Tensor | None:
        """Return weights (n; float64) of the workers `present` (0 for the others) with which their sum is that of all
        vectors; None where too many are missing."""
        rows = self.matrix[list(present)]
        if len(present) < self.size - self.checks:
            return None
        result = torch.zeros(self.size, dtype=torch.float64)
        ones = torch.ones(self.size, 1, dtype=torch.float64)
        result[list(present)] = torch.linalg.lstsq(rows.T, ones, driver="gelsd").solution[:, 0]
        return result

    def wrong(self, numbers: Tensor, rounding: float, erased: Sequence[int] = ()) -> list[int] | None:
        """Return the workers that sent wrong vectors, from one number (n) of each that is linear in its vector.

        `rounding` is the error of honest numbers. The numbers of `erased` workers are ignored. Together with these at
        most half as many as there are checks; None where these do not explain the numbers, as more are wrong.
        """
        most = self.checks // 2 - len(erased)
        if most < 0:
            return None
        numbers = numbers.to(torch.complex128)
        numbers[list(erased)] = 0.0
        syndromes, allowed = self._parity @ numbers, _ENOUGH * rounding * math.sqrt(self.size)
        if self._explains(erased, syndromes, allowed):
            return []
        if most == 0:
            return None
        known = self._without(erased, syndromes)
        equations = torch.stack([known[k : k + most] for k in range(len(known) - most)])
        locator = torch.linalg.lstsq(equations, -known[most:].unsqueeze(1), rcond=1e-10, driver="gelsd").solution[:, 0]
        powers = torch.stack([self._nodes**k for k in range(most + 1)], 1)
        values = powers @ torch.cat([locator, torch.ones(1, dtype=torch.complex128)])
        candidates = [int(place) for place in values.abs().argsort() if int(place) not in erased]
        for count in range(1, most + 1):
            if self._explains([*erased, *candidates[:count]], syndromes, allowed):
                return sorted(candidates[:count])
        return None

    def _explains(self, workers: Sequence[int], syndromes: Tensor, allowed: float) -> bool:
        """Whether errors of these workers alone explain the syndromes."""
        if not workers:
            return _largest(syndromes) <= allowed
        columns = self._parity[:, list(workers)]
        errors = torch.linalg.lstsq(columns, syndromes.unsqueeze(1), driver="gelsd").solution
        return _largest(columns @ errors - syndromes.unsqueeze(1)) <= allowed

    def _without(self, erased: Sequence[int], syndromes: Tensor) -> Tensor:
        """Return combinations of neighbouring syndromes to which errors of `erased` workers add nothing (Forney)."""
        for worker in erased:
            syndromes = syndromes[1:] - self._nodes[worker] * syndromes[:-1]
        return syndromes


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


@lru_cache(maxsize=16)
def cyclic_code(size: int, checks: int) -> CyclicCode:
    """Return the code, which is made once."""
    return CyclicCode(size, checks)
