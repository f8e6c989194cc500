"""Packages stay within their ceilings."""

from __future__ import annotations

import tomllib

from tests.architecture.size import CEILINGS, sizes


def test_no_package_is_larger_than_its_ceiling() -> None:
    assert not [size for size in sizes() if size.is_too_large], "make it smaller, or say in ceilings.toml what came in"


def test_ceilings_are_of_packages_that_exist() -> None:
    known = {size.package for size in sizes()}
    assert not set(tomllib.loads(CEILINGS.read_text(encoding="utf-8"))) - known


def test_every_raise_says_what_came_in() -> None:
    """Each line of `raised` is `+LINES: what came in`."""
    for package, entry in tomllib.loads(CEILINGS.read_text(encoding="utf-8")).items():
        for line in entry.get("raised", []):
            lines, _, reason = line.partition(": ")
            assert lines.startswith("+") and lines[1:].isdigit() and len(reason) > 10, f"{package}: {line}"
