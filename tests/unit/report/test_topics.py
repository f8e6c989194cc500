"""The list of topics: what a topic in it adds to each file of a report."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from quorate.report import topics
from quorate.report.summary import summary_type, write_report
from tests.support.made_records import make_comparison

GUIDE = Path(__file__).parents[3] / "docs" / "howto" / "add-a-topic.md"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a comparison, with the topic of the guide in the list."""
    block = re.search(r"^```python\n(.*?)^```", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    names: dict[str, Any] = {"__name__": "losing"}
    exec(block[1], names)
    monkeypatch.setattr(topics, "TOPICS", (*topics.TOPICS, names["TOPIC"]))
    write_report(make_comparison(tmp_path, seeds=(0, 1), steps=20))
    return tmp_path


def test_a_topic_is_in_the_summary_and_in_its_schema(written: Path) -> None:
    arms = json.loads((written / "summary.json").read_text())["arms"]
    assert [sorted(arm["losing"]) for arm in arms] == [["loss", "rank"]] * len(arms) != []
    schema = summary_type().model_json_schema()["$defs"]
    assert "losing" in schema["ArmSummary"]["properties"] and schema["WorstRank"]["required"] == ["rank", "loss"]
    assert summary_type().model_validate_json((written / "summary.json").read_text()).arms[0].losing.rank >= 0


def test_a_topic_is_on_the_page_and_in_the_markdown(written: Path) -> None:
    page, markdown = ((written / name).read_text() for name in ("report.html", "summary.md"))
    assert '<section id="losing" class="folded">' in page and "Highest loss at the end" in page
    assert "<h2>Highest loss</h2>" in page and 'href="./data/losing.csv"' in page
    assert re.search(r"## Highest loss\n\n- ddp: rank \d, [\d.]+\.\n", markdown)


def test_a_topic_has_its_data_in_a_file(written: Path) -> None:
    rows = list(csv.reader((written / "data" / "losing.csv").read_text().splitlines()))
    assert rows[0] == ["arm", "rank", "loss"] and [row[0] for row in rows[1:]] == ["ddp", "all-reduce", "quorum"]


def test_without_it_nothing_is_left_of_it(tmp_path: Path) -> None:
    write_report(make_comparison(tmp_path, seeds=(0, 1), steps=20))
    assert not any("losing" in path.read_text() for path in tmp_path.glob("*.*") if path.suffix in (".json", ".html"))
    assert "losing" not in summary_type().model_json_schema()["$defs"]["ArmSummary"]["properties"]


def test_names_are_those_of_files_and_each_has_one_topic() -> None:
    files = {path.stem for path in Path(topics.__file__).parent.glob("*.py")} - {"__init__"}
    assert [topic.name for topic in topics.TOPICS if topic.name not in files] == []
    assert len(topics.TOPICS) == len(files)
