"""The written files, whole; and the pages that tell users about them."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from quorate.records.rows import Step
from quorate.report.summary import summarize, summary_type, write_files, write_report
from quorate.report.topics import TOPICS
from quorate.report.wording import (
    bytes_in_words,
    counted,
    listed,
    number_in_words,
    ranks_named,
    rate_in_words,
    seconds_in_words,
    share_in_words,
    time_left_in_words,
)
from tests.support.made_records import make_comparison

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
SCHEMA = summary_type().model_json_schema()


def quoted(text: str) -> set[str]:
    """The words in code marks, blocks of code left out."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def test_the_report_of_a_folder(tmp_path: Path) -> None:
    page = write_report(make_comparison(tmp_path, seeds=(0, 1), steps=20))
    assert page == tmp_path / "report.html" and page.stat().st_size > 10_000
    written = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert written == {"compare.json", "report.html", "summary.json", "summary.md"}
    assert {path.name for path in (tmp_path / "data").iterdir()} == {
        f"{name}.csv" for topic in TOPICS for name in topic.data
    }


def test_a_file_that_cannot_be_written_leaves_the_older_one(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.txt": "first"})
    with pytest.raises(UnicodeEncodeError):
        write_files(tmp_path, {"a.txt": "second \ud800"})
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "first"}


@pytest.mark.parametrize("model", [SCHEMA, *SCHEMA["$defs"].values()], ids=lambda model: model["title"])
def test_the_reference_names_every_field(model: dict[str, Any]) -> None:
    text = (REFERENCE / "summary.md").read_text(encoding="utf-8")
    assert set(model["properties"]) <= quoted(text)
    assert model["title"] in quoted(text) or model["title"] == "RankArrival"


def test_the_reference_names_every_table_and_its_columns() -> None:
    text = (REFERENCE / "summary.md").read_text(encoding="utf-8")
    for name, (columns, _) in ((name, data) for topic in TOPICS for name, data in topic.data.items()):
        assert f"| `{name}.csv` | arm, {', '.join(columns.split())} |" in text


def test_the_reference_names_every_key_of_a_step() -> None:
    assert {field.name for field in fields(Step)} <= quoted((REFERENCE / "records.md").read_text(encoding="utf-8"))


def test_the_reference_names_what_a_run_json_has(tmp_path: Path) -> None:
    named = quoted((REFERENCE / "records.md").read_text(encoding="utf-8"))
    plan = summarize(make_comparison(tmp_path, seeds=(0,), steps=10)).reproduce
    assert {*plan.machine, "versions", "git", "command", "started"} <= named


def test_figures_in_words() -> None:
    assert [seconds_in_words(s) for s in (0.0000042, 0.01234, 0.2495, 3.14159, 99.96, 725.2, 12_000.0)] == [
        "4.20 µs", "12.3 ms", "0.249 s", "3.14 s", "1 min 40 s", "12 min 5 s", "3 h 20 min",
    ]  # fmt: skip
    assert [number_in_words(n) for n in (0.0, 0.00123456, 0.62, 1.0, 8.4, 12.34, 270.4, 12345.6)] == [
        "0", "0.00123", "0.620", "1.00", "8.40", "12.3", "270", "12,346",
    ]  # fmt: skip
    assert [bytes_in_words(n) for n in (0, 999, 40_000, 2.5e6, 1.25e9)] == [
        "0 B",
        "999 B",
        "40.0 kB",
        "2.50 MB",
        "1.25 GB",
    ]
    assert [share_in_words(s) for s in (0.0, 0.0004, 0.004, 0.0994, 0.0996, 0.97, 1.0)] == [
        "0%",
        "<0.1%",
        "0.4%",
        "9.9%",
        "10%",
        "97%",
        "100%",
    ]
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
    assert (counted(1, "seed"), counted(5, "seed")) == ("1 seed", "5 seeds")
    assert (ranks_named([1, 3], 4), ranks_named(range(32), 64)) == ("ranks 1 and 3", "32 of 64 ranks")


def test_rates_have_three_digits_and_estimates_are_of_whole_seconds() -> None:
    assert [rate_in_words(rate) for rate in (12_295.0, 1_234_567.0, 842.4, 8.4)] == [
        "12,300",
        "1,230,000",
        "842",
        "8.40",
    ]
    left = [time_left_in_words(seconds) for seconds in (0.166, 41.6, 99.4, 99.7, 725.2)]
    assert left == ["1 s", "42 s", "99 s", "1 min 40 s", "12 min 5 s"]
