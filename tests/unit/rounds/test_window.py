"""How long a round waits for more workers than have to call."""

from __future__ import annotations

import math

import pytest

from quorate.core.errors import ConfigurationError
from quorate.rounds.calls import GAMMA, SHARE, Calls, Window
from quorate.rounds.terms import Agreed, check


def calls(cap: float, size: int = 3) -> Calls:
    return Calls(Agreed(size=size, wait_for=1, window=cap))


def test_it_waits_for_what_is_left_of_the_slack() -> None:
    one = Window(cap=10.0, exchange=0.25)
    one.called(2.0, 5.0)
    one.called(3.0, 5.5)
    assert not one.is_over(5.5)  # enough have called, half a second after the first
    assert one.until == pytest.approx(5.5 + GAMMA * (2.0 - 0.5 - 0.25))
    assert not one.is_over(one.until - 1e-9) and one.is_over(one.until)


def test_it_is_never_longer_than_the_cap_nor_below_nothing() -> None:
    long, short, unknown = Window(cap=0.5), Window(cap=0.5, exchange=9.0), Window(cap=0.5)
    long.called(100.0, 1.0)
    short.called(2.0, 1.0)
    unknown.called(None, 1.0)
    assert (long.is_over(1.0), short.is_over(1.0), unknown.is_over(1.0)) == (False, True, False)
    assert (long.until, short.until, unknown.until) == (1.5, 1.0, 1.5)


def test_without_one_a_round_starts_when_enough_have_called() -> None:
    one = calls(0.0)
    one.called(0, 0, None, 5.0)
    assert one.may_start() and one.window.until == math.inf


def test_a_round_starts_at_its_end_or_when_all_have_called() -> None:
    one = calls(1.0)
    one.now = 2.0
    one.called(0, 0, None, 0.5)
    assert not one.may_start() and one.window.until == pytest.approx(2.0 + GAMMA * 0.5)
    one.now = one.window.until
    assert one.may_start()
    one.begin()
    assert one.window.until == math.inf
    one.called(0, 1, None, 0.5)
    one.called(1, 1, None, 0.5)
    assert not one.may_start()
    one.called(2, 1, None, 0.5)
    assert one.may_start()


def test_nothing_is_to_be_looked_at_where_those_that_called_have_gone_away() -> None:
    one = calls(1.0)
    one.called(0, 0, None, 0.5)
    assert not one.may_start() and one.opens_at == one.window.until < math.inf
    one.went_away(0)
    assert one.opens_at == math.inf


@pytest.mark.parametrize("cap", [-1.0, math.inf, math.nan])
def test_a_cap_that_cannot_be_is_refused(cap: float) -> None:
    with pytest.raises(ConfigurationError, match="window is .*; it must be a number of seconds"):
        check(Agreed(size=2, window=cap))


def after_an_exchange(seconds: float, *, among_hosts: bool = True) -> Calls:
    one = calls(0.0)
    one.window.took(seconds, among_hosts=among_hosts)
    return one


def test_among_hosts_it_is_a_share_of_an_exchange() -> None:
    one = after_an_exchange(20.0)
    one.now = 1.0
    one.called(0, 0)
    assert not one.may_start() and one.window.until == pytest.approx(1.0 + SHARE * 20.0)
    one.now = one.window.until
    assert one.may_start()
    one.begin()
    assert one.window.used == pytest.approx(SHARE * 20.0)


def test_on_one_host_and_where_a_worker_goes_on_there_is_no_such_window() -> None:
    at_once, has_slack = after_an_exchange(20.0, among_hosts=False), after_an_exchange(20.0)
    at_once.called(0, 0)
    has_slack.called(0, 0, None, 5.0)
    assert at_once.may_start() and has_slack.may_start()


def test_windows_in_which_nobody_comes_grow_rare_and_one_in_which_somebody_comes_is_followed_by_another() -> None:
    one, waited = after_an_exchange(20.0), list[bool]()

    def round_starts(*late: int) -> None:
        one.called(0, one.started)
        waited.append(not one.may_start())
        for rank in late:
            one.called(rank, one.started)
        one.now += 30.0
        assert one.may_start()
        one.begin()

    for _ in range(8):
        round_starts()
    assert waited == [True, False, True, False, False, True, False, False]
    waited.clear()
    for late in [(), (), (1,), (1,), (), (), ()]:
        round_starts(*late)
    assert waited == [False, False, True, True, True, False, True]
