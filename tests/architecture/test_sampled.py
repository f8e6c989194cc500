"""Which cases of which laws `make test` runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.sampled import MANY, third


def test_every_law_stays_and_of_several_cases_every_third_one() -> None:
    laws = {"few": 1, "one": 0, "many": MANY, "more": 41}
    items: Any = [
        SimpleNamespace(nodeid=f"tests/a.py::{law}[{case}]" if count else f"tests/a.py::{law}")
        for law, count in laws.items()
        for case in range(max(count, 1))
    ]
    run, others = third(items)
    kept = [item.nodeid.split("::")[1] for item in run]
    assert sorted(map(id, [*run, *others])) == sorted(map(id, items))
    assert {name.split("[")[0] for name in kept} == set(laws)
    assert {"few[0]", "one", "many[0]", "more[0]"} <= set(kept)
    counts = {law: sum(name.startswith(law + "[") for name in kept) for law in ("many", "more")}
    assert counts["many"] in (1, 2) and counts["more"] in (13, 14, 15)
    assert third(items)[0] == run
