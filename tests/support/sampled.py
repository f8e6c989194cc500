"""`--cases third`, as of `make test`: of laws with several cases every third one; continuous integration runs them all.

Which ones follows from the name of the law alone, so that they are the same in every run; the first is always among
them, and laws beside each other take other thirds of the strategies.
"""

from __future__ import annotations

import zlib
from collections import Counter

import pytest

MANY = 2
"""Cases from which on not all of a law are run."""


def third(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that are run, and the others."""
    laws = [item.nodeid.split("[")[0] for item in items]
    cases, seen, run, others = Counter(laws), Counter[str](), list[pytest.Item](), list[pytest.Item]()
    for item, law in zip(items, laws, strict=True):
        place, seen[law] = seen[law], seen[law] + 1
        is_run = cases[law] < MANY or place == 0 or (place + zlib.crc32(law.encode())) % 3 == 0
        (run if is_run else others).append(item)
    return run, others
