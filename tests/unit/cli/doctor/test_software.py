"""What is installed, judged: each fault that can be injected, and the table of versions held against pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from quorate.cli.doctor.findings import Level
from quorate.cli.doctor.software import (
    EXTRAS,
    NEEDED,
    OLDEST_PYTHON,
    Package,
    admits,
    judge_extras,
    judge_gpu,
    judge_packages,
    judge_python,
    judge_torch,
    probe_extras,
    probe_packages,
    probe_python,
)

PROJECT = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_an_old_python_fails() -> None:
    old = judge_python((3, 10, 9))
    assert (old.level, old.fix) == (Level.FAIL, "install Python 3.11 or later, and Quorate in it")
    assert judge_python(probe_python()).level is Level.OK


def test_what_is_needed_is_what_the_project_declares() -> None:
    declared = dict(re.fullmatch(r"(\w+)(.*)", line).groups() for line in PROJECT["dependencies"])  # type: ignore[union-attr]
    assert declared == NEEDED
    assert all(re.fullmatch(r">=[\d.]+(,<[\d.]+)?", admitted) for admitted in NEEDED.values()), "what `admits` reads"
    assert PROJECT["requires-python"] == f">={'.'.join(map(str, OLDEST_PYTHON))}"
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"dev"}


@pytest.mark.parametrize(
    ("version", "level", "found"),
    [
        ("2.13.0", Level.OK, "torch 2.13.0"),
        ("2.10.0+cpu", Level.OK, "torch 2.10.0+cpu"),
        ("2.9.1", Level.FAIL, "torch 2.9.1, supported >=2.10,<2.14"),
        ("2.14.0", Level.FAIL, "torch 2.14.0, supported >=2.10,<2.14"),
        (None, Level.FAIL, "torch is missing, supported >=2.10,<2.14"),
    ],
)
def test_torch_has_a_supported_range(version: str | None, level: Level, found: str) -> None:
    others = Package("numpy", None, ">=2")
    finding = judge_torch([Package("torch", version, ">=2.10,<2.14"), others])
    assert (finding.level, finding.found) == (level, found)
    assert finding.fix == ("" if level is Level.OK else "pip install 'torch>=2.10,<2.14'")


def test_every_other_package_that_is_wrong_is_named() -> None:
    packages = [
        Package("torch", None, ">=2"),
        Package("numpy", "1.26.4", ">=2"),
        Package("rich", "15.0.0", ">=14.2"),
        Package("typer", None, ">=0.15"),
    ]
    finding = judge_packages(packages)
    assert finding.level is Level.FAIL
    assert finding.found == "numpy 1.26.4, supported >=2; typer is missing, supported >=0.15"
    assert finding.fix == "pip install 'numpy>=2' 'typer>=0.15'"
    assert judge_packages(probe_packages()).level is Level.OK


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
    assert admits(admitted, version) is holds


def test_a_missing_extra_is_no_fault_but_told_how_to_get() -> None:
    finding = judge_extras({"digits": True, "tensorboard": False, "docs": False})
    assert finding.level is Level.OK
    assert finding.found == "installed: digits; not installed: tensorboard, docs"
    assert "pip install '.[tensorboard]'" in finding.fix
    assert judge_extras(dict.fromkeys(EXTRAS, True)).fix == ""
    assert set(probe_extras()) == set(EXTRAS)


def test_a_gpu_that_torch_cannot_use_is_a_warning() -> None:
    assert judge_gpu([], None, has_driver=False).level is Level.OK
    assert judge_gpu(["H100", "H100"], "CUDA 13.0", has_driver=True).found.startswith("2: H100 (")
    cpu_build = judge_gpu([], None, has_driver=True)
    assert (cpu_build.level, "built for the CPU" in cpu_build.found) == (Level.WARN, True)
    old_driver = judge_gpu([], "CUDA 13.0", has_driver=True)
    assert (old_driver.level, "sees none" in old_driver.found) == (Level.WARN, True)
