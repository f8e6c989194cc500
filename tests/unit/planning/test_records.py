"""The published records of ResNet-50 on ImageNet against what is foreseen of them."""

from __future__ import annotations

import math

import pytest

from quorate.planning.records import (
    EFFICIENCY,
    EXAMPLES,
    FIXED,
    RECORDS,
    Family,
    Record,
    foreseen,
    out_of_order,
)

NAMES = [record.who for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_each_is_within_half_again(record: Record) -> None:
    prediction = foreseen(record)
    assert prediction.is_near and 1 / 1.5 < prediction.ratio < 1.5
    assert prediction.exchange < prediction.step


def test_the_order_is_the_published_one() -> None:
    assert out_of_order([foreseen(record) for record in RECORDS]) == []
    assert [record.seconds for record in RECORDS] == sorted((record.seconds for record in RECORDS), reverse=True)


def test_what_was_not_fitted_still_is_within_a_factor_of_two() -> None:
    """One efficiency for all, and no fixed time: then three pairs are in another order."""
    efficiency: dict[Family, float] = dict.fromkeys(EFFICIENCY, 0.21)
    predictions = [foreseen(record, efficiency, dict.fromkeys(FIXED, 0.0)) for record in RECORDS]
    assert all(prediction.is_near for prediction in predictions)
    assert out_of_order(predictions) == [
        ("You", "Akiba"), ("Mikami", "Ying"), ("Mikami, second version", "Yamazaki"),
    ]  # fmt: skip


def test_the_fitted_figures_are_the_best_that_keep_the_order() -> None:
    def farthest(**changed: float) -> float:
        efficiency: dict[Family, float] = {**EFFICIENCY, **changed}  # type: ignore[dict-item]
        predictions = [foreseen(record, efficiency) for record in RECORDS]
        return (
            math.inf
            if out_of_order(predictions)
            else max(abs(math.log(prediction.ratio)) for prediction in predictions)
        )

    best = farthest()
    assert math.exp(best) == pytest.approx(1.47, abs=0.01)
    for family, share in EFFICIENCY.items():
        for other in (share - 0.02, share + 0.02):
            assert farthest(**{family: other}) >= best - 1e-3


def test_each_family_is_near_in_the_mean() -> None:
    for family in EFFICIENCY:
        ratios = [math.log(foreseen(record).ratio) for record in RECORDS if record.device.family == family]
        assert abs(sum(ratios) / len(ratios)) < 0.15, family


def test_a_step_by_hand() -> None:
    """Yamazaki: 40 examples on each of 2,048 V100, four to a host."""
    record = RECORDS[-1]
    example = (22.8e9 / 125e12 + 8 * 11.1e6 * 2 / 900e9) / 0.47
    nbytes = 2 * 25_557_032
    exchange = 2 * 3 * (5e-6 + nbytes / 4 / 75e9) + 2 * 511 * (5e-6 + nbytes / 512 / 25e9)
    prediction = foreseen(record)
    assert prediction.exchange == pytest.approx(exchange)
    assert prediction.step == pytest.approx(0.035 + 40 * example + exchange)
    assert prediction.seconds == pytest.approx(90 * EXAMPLES / 81920 * prediction.step)


@pytest.mark.parametrize("record", RECORDS, ids=NAMES)
def test_the_rows_hold_together(record: Record) -> None:
    assert sum(share for share, _ in record.batches) == pytest.approx(1.0)
    assert all(batch % record.devices == 0 for _, batch in record.batches)
    assert record.network.per_host == 0 or record.devices % record.network.per_host == 0
