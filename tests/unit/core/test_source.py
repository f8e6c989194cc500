"""What is read from source text without importing it: documentation, settings, facts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quorate.core.registry import Registry
from quorate.core.source import Setting, Source, read_source

GARDEN = '''"""Flowers.

Cost: water.
"""
raise RuntimeError("the module was imported")

@dataclass(frozen=True)
class Rose(Flower):
    """It has thorns.

    Many.
    """

    name: ClassVar[str] = "rose"
    """No setting."""
    kind: ClassVar[str]
    agrees_on = "colours"
    _hidden = 3
    _cache: int = 0
    height: float
    """In metres,
    above the ground."""
    colours: tuple[str, ...] = ("red", "white")
    thorns: list[int] = field(default_factory=list)
    leaves: int | None = field(default=None, repr=False)
    """Counted."""
    grown: bool = field(init=False)

    def smell(self) -> None: ...


class Weed:
    height: int = 3


def seed(depth: int = 2) -> None:
    """Put into the ground."""


SOIL: Mud = Mud(1)
"""Brown.

And wet.
"""

STONE = 1
print("no text of the stone's")
'''


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    package = tmp_path / "garden_of_sources"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('the package was imported')\n")
    (package / "beds.py").write_text(GARDEN)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "garden_of_sources.beds"


def test_a_dataclass_has_settings_and_facts(garden: str) -> None:
    assert read_source(f"{garden}:Rose") == Source(
        module="Flowers.\n\nCost: water.",
        documentation="It has thorns.\n\nMany.",
        settings=(
            Setting(name="height", type="float", default=None, meaning="In metres, above the ground."),
            Setting(name="colours", type="tuple[str, ...]", default="('red', 'white')", meaning=""),
            Setting(name="thorns", type="list[int]", default="list()", meaning=""),
            Setting(name="leaves", type="int | None", default="None", meaning="Counted."),
        ),
        facts=(("name", "'rose'"), ("agrees_on", "'colours'")),
    )
    assert not any(name.startswith("garden_of_sources") for name in sys.modules)


def test_other_things_have_documentation_only(garden: str) -> None:
    about = "Flowers.\n\nCost: water."
    assert read_source(f"{garden}:Weed") == Source(module=about, documentation="")
    assert read_source(f"{garden}:seed") == Source(module=about, documentation="Put into the ground.")
    assert read_source(f"{garden}:SOIL") == Source(module=about, documentation="Brown.\n\nAnd wet.")
    assert read_source(f"{garden}:STONE") == Source(module=about, documentation="")


@pytest.mark.parametrize("place", ["beds:Tulip", "nowhere:Rose", "beds.deeper:Rose"])
def test_what_is_not_there_is_none(garden: str, place: str) -> None:
    assert read_source(f"garden_of_sources.{place}") is None
    assert read_source("itertools:count") is None


def test_a_registry_reads_what_it_was_given_as_a_place(garden: str) -> None:
    registry: Registry[object] = Registry("flower", {"rose": f"{garden}:Rose", "soil": f"{garden}:SOIL"})
    source = registry.source("rose")
    assert source is not None and source.documentation.startswith("It has thorns.")
    assert registry.summary("soil") == "Brown."


def test_values_keep_their_summary_when_they_are_loaded() -> None:
    registry: Registry[object] = Registry("trace", {"lstm": "quorate.core.durations:UCF101_LSTM"})
    before = registry.summary("lstm")
    registry.get("lstm")
    assert registry.summary("lstm") == before != ""


def test_what_a_script_registers_has_no_source_to_read() -> None:
    registry: Registry[type] = Registry("thing")

    class Mine:
        """Made here."""

        __module__ = "__main__"

    registry.register("mine")(Mine)
    assert registry.source("mine") is None
    assert registry.summary("mine") == "Made here."


@pytest.mark.parametrize(("line", "base"), [("beds import Rose", "Rose"), ("import beds", "beds.Rose")])
def test_settings_of_a_base_are_inherited_however_it_is_imported(garden: str, line: str, base: str) -> None:
    package = garden.rpartition(".")[0]
    (Path(sys.path[0]) / package / "tall.py").write_text(
        f"from {package}{'.' if line.startswith('beds') else ' '}{line}\n"
        f"@dataclass\nclass Climber({base}):\n    support: str = 'wall'\n"
    )
    source = read_source(f"{package}.tall:Climber")
    assert source is not None
    assert [setting.name for setting in source.settings] == ["height", "colours", "thorns", "leaves", "support"]
