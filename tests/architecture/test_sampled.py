"""Which cases of which laws `make test` runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.sampled import STEPS, covering, sampled, two_of

LAWS = {"few": 1, "single": 0, "two": 2, "many": 41}


def items() -> list[Any]:
    return [
        SimpleNamespace(nodeid=f"tests/a.py::{law}[{case}]" if count else f"tests/a.py::{law}")
        for law, count in LAWS.items()
        for case in range(max(count, 1))
    ]


@pytest.mark.parametrize(("cases", "two", "many"), [("one", 1, 1), ("third", 1, 14)])
def test_of_every_law_some_cases_are_run(cases: str, two: int, many: int) -> None:
    every = items()
    run, others = sampled(every, STEPS[cases])
    kept = [item.nodeid.split("::")[1].split("[")[0] for item in run]
    assert sorted(map(id, [*run, *others])) == sorted(map(id, every))
    assert {law: kept.count(law) for law in LAWS} == {
        "few": 1,
        "single": 1,
        "two": two,
        "many": pytest.approx(many, abs=1),
    }
    assert sampled(every, STEPS[cases])[0] == run


def test_each_value_is_in_a_covering() -> None:
    cases = [(row, column) for row in "abcdefg" for column in range(3) if (row, column) != ("a", 0)]
    few = covering(cases)
    assert len(few) == 7 and set(few) <= set(cases)
    assert {row for row, _ in few} == set("abcdefg")
    assert sorted(sum(column == number for _, column in few) for number in range(3)) == [2, 2, 3]


def test_two_cases_are_others_in_each_law() -> None:
    assert two_of("a", "law") == ["a"]
    assert all(len(set(two_of("abcde", f"law {number}"))) == 2 for number in range(20))
    assert len({tuple(two_of("abcde", f"law {number}")) for number in range(20)}) > 2


def test_where_one_case_of_a_law_is_run_it_needs_no_hosts() -> None:
    def item(law: str, case: int, *marks: str) -> Any:
        return SimpleNamespace(nodeid=f"{law}[{case}]", own_markers=[SimpleNamespace(name=mark) for mark in marks])

    laws = [f"law {number}" for number in range(9)]
    items = [item(law, case, *["on_hosts"] * bool(case)) for law in laws for case in range(4)]
    run, others = sampled([*items, item("of hosts alone", 0, "on_hosts")], STEPS["one"])
    assert [one.nodeid for one in run] == [*(f"{law}[0]" for law in laws), "of hosts alone[0]"]
    assert len(others) == 27
