"""`make size`: the lines of each package beside its ceiling (`ceilings.toml`)."""

from __future__ import annotations

import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.tree import PACKAGE

CEILINGS = Path(__file__).parent / "ceilings.toml"


@dataclass(frozen=True)
class Size:
    """The size of one package, in lines of Python."""

    package: str
    files: int
    lines: int
    ceiling: int

    @property
    def is_too_large(self) -> bool:
        return self.lines > self.ceiling


def sizes() -> list[Size]:
    """The size of every package, the largest first. A package without a ceiling has the ceiling 0."""
    ceilings = tomllib.loads(CEILINGS.read_text(encoding="utf-8"))
    lines, files = Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        package = parts[0] if len(parts) > 1 else "(top)"
        lines[package] += len(path.read_text(encoding="utf-8").splitlines())
        files[package] += 1
    found = [
        Size(package, files[package], lines[package], ceilings.get(package, {}).get("lines", 0)) for package in lines
    ]
    return sorted(found, key=lambda size: -size.lines)


def main() -> None:
    """Print the table."""
    every = sizes()
    print(f"{'package':14}{'files':>7}{'lines':>9}{'ceiling':>9}")
    for size in every:
        mark = "  too large" if size.is_too_large else ""
        print(f"{size.package:14}{size.files:>7,}{size.lines:>9,}{size.ceiling:>9,}{mark}")
    print(f"{'all':14}{sum(size.files for size in every):>7,}{sum(size.lines for size in every):>9,}")


if __name__ == "__main__":
    main()
