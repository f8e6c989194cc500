"""The page of published claims beside what was measured, made from the JSON in `results/`.

    python benchmarks/truth/table.py

It writes `docs/benchmarks/truth.md`. Nothing is measured.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from harness import FAILS, HOLDS, PARTLY, RESULTS, ROOT, UNTRIED

PAGE = ROOT / "docs" / "benchmarks" / "truth.md"
TOPICS = {
    "eager_sgd": "Late workers: eager-SGD",
    "neighbours": "Gossip and group averages",
    "periods": "Local steps",
    "clients": "Federated learning",
    "codes": "Compressed gradients",
    "smaller": "Smaller models, few bits, long sequences",
    "fusion": "Parts of gradients",
    "wrong_workers": "Wrong workers",
    "pieces": "Models in pieces",
    "late_gradients_of_a_step": "Delayed and stale gradients",
    "large_batches": "Large batches, deaths",
    "published_here": "Measured on other pages, or not at all",
}
INTRODUCTION = """# Truth table

Figures that publications report, beside what was measured here. [All areas](../benchmarks.md) lists the other pages.

The page is made from the JSON of the scripts in `benchmarks/truth/` by `python benchmarks/truth/table.py`. Each script
takes `--quick`, which ends within 50 seconds, and all but the last take `--only "ROW"` for single rows.

- *Measured* is the median of all seeds with its 95 % bootstrap interval, and the number of values. With three seeds
  this interval is nearly that from the lowest to the highest.
- The verdict follows from bounds that the script declares. A claim *holds* if the whole interval is within the first
  bounds, which are mostly 0.9 of the published factor. It *holds partly* if the interval is within the second bounds,
  which are mostly those of an effect in the published direction. Otherwise it *does not hold*.
- A verdict is about the trial as described here, which is mostly smaller than the publication. It is no verdict on the
  publication.
- *Simulated* trials train in virtual workers: gradients are real, and network and compute times are simulated, so the
  figures are the same on a busy machine. *Computed* trials train nothing. *Real processes* are named as such.
- Learning rates are chosen for each side, with a seed that does not count.
- Methods that the library does not have are left out.
"""


def rows_of(script: str) -> list[dict[str, Any]]:
    """Return the rows that a script has written."""
    path = RESULTS / f"{script}.json"
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def number(x: float) -> str:
    """Write a figure with three significant digits."""
    return f"{x:.0f}" if abs(x) >= 999.5 else f"{x:.3g}"


def measured(row: dict[str, Any]) -> str:
    """Write a median with its interval."""
    if row["verdict"] == UNTRIED:
        return "–"
    count = "" if "cited" in row else f", n = {len(row['values'])}"
    return f"{number(row['median'])} ({number(row['low'])} to {number(row['high'])}){count}"


def sentences(row: dict[str, Any]) -> str:
    """Describe the trial of a row."""
    if row["verdict"] == UNTRIED:
        return f"It would take: {row['needs'][0].lower()}{row['needs'][1:]}"
    parts = [f"{row['world'].capitalize()}: {row['figure']}. Here: {row['differs']}."]
    note = row["note"]
    return " ".join([*parts, *([f"{note[0].upper()}{note[1:]}."] if note else [])])


def lines_of(script: str, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the section of a script."""
    yield from (f"## {TOPICS[script]}", "", "```bash", f"python benchmarks/truth/{script}.py", "```", "")
    yield "| row | claim | source | published, on | trial | measured | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        published = f"{row['published']}; {row['on_what']}"
        cells = (
            row["name"],
            row["claim"],
            row["source"],
            published,
            sentences(row),
            measured(row),
            f"*{row['verdict']}*",
        )
        yield f"| {' | '.join(cells)} |"
    yield ""


def page() -> str:
    """Return the page."""
    by_script = {script: rows for script in TOPICS if (rows := rows_of(script))}
    verdicts = Counter(row["verdict"] for rows in by_script.values() for row in rows)
    counts = ", ".join(f"{verdicts[word]} *{word}*" for word in (HOLDS, PARTLY, FAILS, UNTRIED) if verdicts[word])
    lines = [INTRODUCTION, f"Of {verdicts.total()} claims: {counts}.", ""]
    for script, rows in by_script.items():
        lines += lines_of(script, rows)
    return "\n".join(lines)


def main() -> int:
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
