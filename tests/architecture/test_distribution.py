"""The files of the distribution name one version, and the pages name each extra."""

from __future__ import annotations

import re
import tomllib

from quorate.core.installed import DISTRIBUTION
from tests.architecture.tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
README_WORDS = 900


def test_the_distribution_has_one_name_and_one_version() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[(.+?)\](.*)$", changelog, re.MULTILINE)
    assert [name for name, _ in sections][:2] == ["Unreleased", PROJECT["version"]]
    assert all(re.fullmatch(r" - \d{4}-\d\d-\d\d", date) for name, date in sections[1:])
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, re.MULTILINE) == [PROJECT["version"]]
    wheels = [
        wheel
        for page in (ROOT / "docs").rglob("*.md")
        for wheel in re.findall(r"\btorch_quorate-(.+?)-py3", page.read_text(encoding="utf-8"))
    ]
    assert set(wheels) == {PROJECT["version"]}


def test_the_page_about_installation_lists_each_extra_with_its_packages() -> None:
    page = (ROOT / "docs" / "howto" / "install.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    assert rows.keys() == PROJECT["optional-dependencies"].keys()
    for extra, requirements in PROJECT["optional-dependencies"].items():
        packages = sorted(re.split(r"[<>=]", requirement)[0] for requirement in requirements)
        assert extra == "dev" or sorted(rows[extra].lower().split(", ")) == packages


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= README_WORDS
