"""Counts of batches: when they are taken, or, where another thread takes them ahead, when a step uses them."""

from __future__ import annotations

from quorate.data.consumption import Consumed


def test_batches_that_are_taken_ahead_count_in_the_step_that_uses_them() -> None:
    consumed = Consumed()
    consumed.count_when_used()
    for examples in (16, 16, 4):
        consumed.note(0.5, examples, None)
    assert consumed.take() == (0.0, None, None)
    consumed.use()
    assert consumed.take() == (0.0, 16, None)
    consumed.use()
    consumed.use()
    assert consumed.take() == (0.0, 20, None) and consumed.all_examples == 36


def test_batches_ahead_that_no_step_will_use_do_not_count() -> None:
    consumed = Consumed()
    consumed.count_when_used()
    consumed.note(0.5, 16, None)
    consumed.forget_ahead()
    consumed.use()
    assert consumed.take() == (0.0, None, None)
