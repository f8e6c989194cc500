"""Cyclic codes: the sum of all vectors from what any of the workers sent, and who sent something else."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from quorate.aggregation.cyclic_code import CyclicCode
from quorate.core.errors import ConfigurationError

CODES = [(2, 1), (3, 2), (4, 1), (4, 2), (5, 1), (5, 2), (6, 2), (7, 2), (8, 3), (9, 4), (10, 4)]


@pytest.mark.parametrize(("size", "checks"), [*CODES, (1, 0), (4, 0)])
def test_any_so_many_may_be_missing(size: int, checks: int) -> None:
    code = CyclicCode(size, checks)
    for missing in combinations(range(size), checks):
        weights = code.weights([rank for rank in range(size) if rank not in missing])
        assert weights is not None and bool((weights[list(missing)] == 0).all())
        torch.testing.assert_close(weights @ code.matrix, torch.ones(size, dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("size", "checks"), CODES)
def test_one_more_is_too_many(size: int, checks: int) -> None:
    assert CyclicCode(size, checks).weights(range(size - checks - 1)) is None


@pytest.mark.parametrize(("size", "checks"), CODES)
def test_workers_have_their_own_vector_and_those_behind_it(size: int, checks: int) -> None:
    code = CyclicCode(size, checks)
    for rank in range(size):
        own = {(rank + step) % size for step in range(code.batches)}
        assert {place for place in range(size) if code.matrix[rank, place] != 0} == own
        assert len(code.coefficients(rank)) == checks + 1


@pytest.mark.parametrize(("size", "checks"), [code for code in CODES if code[1] > 1])
def test_whoever_sends_something_else_is_found(size: int, checks: int) -> None:
    """Numbers as they come of vectors in float32; also where nobody does, and where they are far more than all."""
    code, generator = CyclicCode(size, checks), torch.Generator().manual_seed(size)
    honest = (code.matrix @ torch.randn(size, generator=generator, dtype=torch.float64)).float().double()
    rounding = 2.0**-24 * float(honest.abs().max())
    for count in range(checks // 2 + 1):
        for wrong in combinations(range(size), count):
            numbers = honest.clone()
            numbers[list(wrong)] += 10 ** torch.randint(0, 7, (count,), generator=generator).double()
            assert code.wrong(numbers, rounding) == list(wrong)


@pytest.mark.parametrize(("size", "checks"), [(7, 4), (9, 4), (10, 6)])
def test_an_erased_worker_and_wrong_ones_are_told_apart(size: int, checks: int) -> None:
    code, generator = CyclicCode(size, checks), torch.Generator().manual_seed(size)
    honest = (code.matrix @ torch.randn(size, generator=generator, dtype=torch.float64)).float().double()
    rounding = 2.0**-24 * float(honest.abs().max())
    for erased, *wrong in combinations(range(size), checks // 2):
        numbers = honest.clone()
        numbers[erased] = 1e300
        assert code.wrong(numbers, rounding, [erased]) == []
        numbers[wrong] += 10 ** torch.randint(0, 4, (len(wrong),), generator=generator).double()
        assert code.wrong(numbers, rounding, [erased]) == wrong
    assert code.wrong(honest, rounding, range(checks // 2 + 1)) is None, "more than it bears"


def test_more_than_it_bears_are_not_explained() -> None:
    code = CyclicCode(9, 4)
    numbers = code.matrix @ torch.arange(9, dtype=torch.float64)
    numbers[[0, 3, 7]] += torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    assert code.wrong(numbers, 1e-7) is None
    assert CyclicCode(5, 1).wrong(torch.arange(5.0), 1e-7) is None, "one check says that, and not who"


def test_a_code_needs_workers() -> None:
    with pytest.raises(ConfigurationError, match="3 batches a worker is for 3 workers or more, not 2"):
        CyclicCode(2, 2)
