"""Compiled passes give what torch's give; those that only compare, to the bit."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.aggregation import compiled_rows as module
from quorate.aggregation import rules
from quorate.aggregation.compiled_rows import CompiledRows, compiled_rows
from quorate.aggregation.rows import Rows
from quorate.aggregation.rule import finite_rows, mixed_rows
from quorate.core.codec import Draw

pytest.importorskip("numba")

WIDTH = 3001  # no multiple of a block


def drawn(count: int, dtype: torch.dtype = torch.float32, width: int = WIDTH) -> list[Tensor]:
    """Vectors that have much in common."""
    generator = torch.Generator().manual_seed(count)
    truth = torch.randn(width, generator=generator, dtype=torch.float64)
    return [
        (truth + 0.3 * torch.randn(width, generator=generator, dtype=torch.float64)).to(dtype) for _ in range(count)
    ]


def both(vectors: list[Tensor], divided: bool = False, centred: bool = False) -> Iterator[Rows]:
    count, like = len(vectors), vectors[0]
    divisors = torch.arange(1, count + 1, dtype=torch.float64) / 2 if divided else None
    centre = 0.9 * vectors[0] + 0.01 if centred else None
    yield Rows([x.clone() for x in vectors], divisors, centre)
    yield CompiledRows([x.clone() for x in vectors], divisors, None if centre is None else centre.to(like.dtype))


@pytest.mark.parametrize("is_exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("divided", "centred"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_products_and_sums(count: int, divided: bool, centred: bool, dtype: torch.dtype, is_exact: bool) -> None:
    ours, compiled = both(drawn(count, dtype), divided, centred)
    is_fine = dtype == torch.float64 or (is_exact and not divided and not centred)  # else rows are rounded to float32
    close = {"rtol": 1e-12, "atol": 1e-9} if is_fine else {"rtol": 1e-5, "atol": 1e-3}
    torch.testing.assert_close(compiled.products(is_exact=is_exact), ours.products(is_exact=is_exact), **close)
    weights = [0.0 if place == 1 else 1.0 / (place + 1) for place in range(count)]
    written, expected = ([torch.empty(WIDTH, dtype=dtype) for _ in range(2)] for _ in range(2))
    compiled.write_weighed(weights, written, is_exact=is_exact)
    ours.write_weighed(weights, expected, is_exact=is_exact)
    assert torch.equal(written[0], written[1])
    ulp = 1e-14 if dtype == torch.float64 else 1e-6
    torch.testing.assert_close(written[0], expected[0], rtol=ulp, atol=4 * ulp)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 12, 24, 25])
def test_means_of_the_middle_have_the_same_bits(count: int, dtype: torch.dtype, divided: bool) -> None:
    vectors = drawn(count, dtype)
    vectors[0][:5] = torch.tensor([0.0, -0.0, 3e38, -3e38, 1e-40])
    for places in (range(count), [place for place in range(count) if place != 1]):
        if not len(places):
            continue
        for first, last in {((len(places) - 1) // 2, len(places) // 2 + 1), (len(places) // 3, len(places)), (0, 1)}:
            means = []
            for rows in both(vectors, divided):
                into = [torch.empty(WIDTH, dtype=dtype) for _ in range(2)]
                rows.write_middle(list(places), first, last, into)
                assert torch.equal(into[0], into[1])
                means.append(into[0])
            assert torch.equal(*means), (places, first, last)


def test_what_is_chosen_keeps_its_bits() -> None:
    vectors = drawn(3)
    vectors[1][:3] = torch.tensor([-0.0, 1e-42, 3e38])
    for rows in both(vectors):
        written = torch.ones(WIDTH)
        rows.write_weighed([0.0, 1.0, 0.0], [written], is_exact=True)
        assert torch.equal(written.view(torch.int32), vectors[1].view(torch.int32))
        rows.write_weighed([0.0, 0.0, 0.0], [written], is_exact=True)
        assert not written.any()


@pytest.mark.parametrize("worst", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_seen_and_not_read(worst: float) -> None:
    vectors = drawn(4)
    vectors[2][2777] = worst
    for is_exact in (False, True):
        for rows in both(vectors):
            assert finite_rows(rows.products(is_exact=is_exact)).tolist() == [True, True, False, True]
            written = torch.empty(WIDTH)
            rows.write_weighed([0.5, 0.5, 0.0, 0.5], [written], is_exact=is_exact)
            assert bool(torch.isfinite(written).all())


@pytest.mark.parametrize("name", [name for name in rules if name != "majority"])
def test_rules_write_where_the_vectors_lie(name: str) -> None:
    """As owners of pieces do: everyone's vector becomes the result; as from torch's passes into other memory."""
    kind = rules.get(name)
    rule = kind(f=0 if name == "mean" else 1)
    count = max(4, rule.least)
    vectors = drawn(count)
    plain, compiled = both(vectors, centred=rule.has_centre)
    gram = plain.products(is_exact=rule.is_exact)
    mixing, expected = rule.mixing(gram, Draw(seed=3)), torch.empty(WIDTH)
    mixed_rows(plain, range(count), mixing, rule, [expected])
    for rows in (compiled, plain):
        mixed_rows(rows, range(count), mixing, rule, rows._vectors)
        for x in rows._vectors:
            torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(x, rows._vectors[0])


def test_few_columns_and_other_dtypes_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = module._COLUMNS_AT_LEAST
    assert type(compiled_rows(drawn(2, width=wide))) is CompiledRows
    assert type(compiled_rows(drawn(2, width=wide - 1))) is Rows
    assert type(compiled_rows(drawn(2, torch.bfloat16, width=wide))) is Rows
    assert type(compiled_rows([x[::2] for x in drawn(2, width=2 * wide)])) is Rows
    module._kernels.cache_clear()
    monkeypatch.delattr("quorate.aggregation.kernels")
    monkeypatch.setitem(sys.modules, "quorate.aggregation.kernels", None)
    assert type(compiled_rows(drawn(2, width=wide))) is Rows, "numba is not installed"
    module._kernels.cache_clear()


def test_where_nothing_may_be_kept_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an installation that belongs to another user, without a folder of this one's own."""
    from quorate.aggregation import kernels

    plain, asked = kernels.numba.njit, list[bool]()

    def njit(*function: Any, cache: bool = False, **options: Any) -> Any:
        if function:  # numba's own
            return plain(*function, cache=cache, **options)
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'twice': no locator available")
        return plain(**options)

    monkeypatch.setattr(kernels.numba, "njit", njit)

    def twice(x: float) -> float:
        return 2 * x

    assert kernels._compiled()(twice)(1.5) == 3.0
    assert asked == [True, False]
