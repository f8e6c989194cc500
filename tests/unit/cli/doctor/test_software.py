"""Installed software, judged: each fault that can be injected."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from quorate.cli.doctor import machine

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = (
    "torch<2.14,>=2.10",
    "numpy>=2",
    "scikit-learn>=1.5; extra == 'digits'",
    "furo>=2025.9; extra == 'docs'",
    "sphinx>=9; extra == 'docs'",
    "numba>=0.61; (sys_platform == 'linux' or platform_machine == 'arm64') and extra == 'dev'",
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = {"torch": "2.13.0", "numpy": "2.4.6"}
    monkeypatch.setattr(metadata, "requires", lambda package: list(REQUIREMENTS))
    monkeypatch.setattr(machine, "version_of", versions.get)
    return versions


def test_clauses_of_the_project_are_those_that_can_be_read() -> None:
    clauses = [re.sub(r"^[\w.-]+", "", requirement) for requirement in PROJECT["dependencies"]]
    assert all(re.fullmatch(r">=[\d.]+(,<[\d.]+)?", clause) for clause in clauses)
    assert machine.packages().level == "OK"


@pytest.mark.parametrize(
    ("torch", "level", "found"),
    [
        ("2.13.0", "OK", "torch 2.13.0, numpy 2.4.6"),
        ("2.10.0+cpu", "OK", "torch 2.10.0+cpu, numpy 2.4.6"),
        ("2.9.1", "FAIL", "torch 2.9.1 (<2.14,>=2.10)"),
        ("2.14.0", "FAIL", "torch 2.14.0 (<2.14,>=2.10)"),
    ],
)
def test_torch_has_a_supported_range(torch: str, level: str, found: str, installed: dict[str, str]) -> None:
    installed["torch"] = torch
    finding = machine.packages()
    assert (finding.level, finding.found) == (level, found)
    assert finding.fix == ("" if level == "OK" else "pip install 'torch<2.14,>=2.10'")


def test_every_package_that_is_wrong_is_named(installed: dict[str, str]) -> None:
    installed.update(numpy="1.26.4")
    del installed["torch"]
    finding = machine.packages()
    assert finding.level == "FAIL" and finding.found == "torch is missing (<2.14,>=2.10), numpy 1.26.4 (>=2)"
    assert finding.fix == "pip install 'torch<2.14,>=2.10' 'numpy>=2'"


@pytest.mark.parametrize(
    ("admitted", "version", "holds"),
    [
        (">=2", "2", True),
        (">=2", "1.9", False),
        (">=2.10,<3", "2.9", False),
        (">=2.10,<3", "3.0rc1", False),
        (">=2.0", "2", True),
        (">=2.10,<3", "3.0", False),
        ("", "anything", True),
    ],
)
def test_clauses(admitted: str, version: str, holds: bool) -> None:
    assert machine.admits(admitted, version) is holds


def test_an_extra_is_there_with_all_of_its_packages(installed: dict[str, str]) -> None:
    assert machine.extras() == ("OK", "none; without digits, docs", "")
    installed.update({"scikit-learn": "1.5", "furo": "2025.9"})
    assert machine.extras().found == "digits; without docs"
    installed["sphinx"] = "9.0"
    assert machine.extras().found == "digits, docs"


@pytest.mark.parametrize(
    ("names", "level"), [(["quorate", "torch-quorate"], "WARN"), (["torch-quorate"], "OK"), (["quorate"], "OK")]
)
def test_another_program_of_that_name_is_a_warning(
    names: list[str], level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        folder = tmp_path / f"{name.replace('-', '_')}-0.1.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    finding = machine.namesake()
    assert finding.level == level
    assert ("quorate 0.1.1 is another program" in finding.found) == (level == "WARN")
