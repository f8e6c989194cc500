"""Names are listed without importing, looked up with help, and belong to one definition."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from quorate.core.errors import ConfigurationError
from quorate.core.registry import Registry


class Anything:
    """Whatever it is.

    And more.
    """


@pytest.fixture
def garden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[type]:
    """A registry over a package on disk, every file of which says so when it is imported."""
    package = tmp_path / "garden_of_names"
    (package / "beds").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('the package was imported')\n")
    (package / "beds" / "__init__.py").write_text("raise RuntimeError('the folder was imported')\n")
    (package / "beds" / "rose.py").write_text(
        "raise RuntimeError('the module was imported')\nclass Rose:\n    '''It has thorns.\n\n    Many.\n    '''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return Registry("flower", {"rose": "garden_of_names.beds.rose:Rose"})


def test_registered_things_come_back_as_they_were() -> None:
    registry: Registry[type] = Registry("thing")
    assert registry.register("any-thing")(Anything) is Anything
    assert registry.get("any-thing") is Anything
    assert registry.summary("any-thing") == "Whatever it is."


def test_names_are_sorted_and_iterated() -> None:
    registry: Registry[type] = Registry("thing", {"b": "x:B", "c": "x:C"})
    registry.register("a")(Anything)
    assert registry.names() == ("a", "b", "c")
    assert list(registry) == ["a", "b", "c"]
    assert len(registry) == 3
    assert "b" in registry
    assert "d" not in registry


def test_unknown_names_are_refused_with_the_nearest_and_all() -> None:
    registry: Registry[type] = Registry("strategy", {"quorum": "x:Q", "gossip": "x:G"})
    with pytest.raises(ConfigurationError, match='unknown strategy "quorom"; did you mean "quorum"'):
        registry.get("quorom")
    with pytest.raises(ConfigurationError, match="Known: gossip, quorum"):
        registry.summary("allreduce")


def test_a_name_belongs_to_one_definition() -> None:
    registry: Registry[type] = Registry("thing", {"lazy": "somewhere.else:Thing"})
    registry.register("taken")(Anything)
    with pytest.raises(ConfigurationError, match=r'thing name "taken" already belongs to .*:Anything'):
        registry.register("taken")(Registry)
    with pytest.raises(ConfigurationError, match=r"already belongs to somewhere\.else:Thing"):
        registry.register("lazy")(Anything)
    assert registry.get("taken") is Anything


def test_the_same_definition_may_come_again_and_replaces() -> None:
    registry: Registry[type] = Registry("thing")

    def script() -> type:
        @registry.register("mine")
        class Mine:
            pass

        return Mine

    first, second = script(), script()
    assert first is not second
    assert registry.get("mine") is second


def test_a_lazy_place_may_register_itself() -> None:
    registry: Registry[type] = Registry("thing", {"any": f"{__name__}:Anything"})
    registry.register("any")(Anything)
    assert registry.get("any") is Anything


def test_listing_and_summaries_import_nothing(garden: Registry[type]) -> None:
    assert garden.names() == ("rose",)
    assert garden.summary("rose") == "It has thorns."
    assert not any(name.startswith("garden_of_names") for name in sys.modules)


def test_get_imports(garden: Registry[type]) -> None:
    with pytest.raises(RuntimeError, match="the package was imported"):
        garden.get("rose")


def test_get_of_a_lazy_name_gives_the_attribute() -> None:
    registry: Registry[type] = Registry("thing", {"path": "pathlib:PurePath"})
    assert registry.get("path") is __import__("pathlib").PurePath
    assert registry.summary("path").startswith("Base class for")


def test_a_place_without_source_is_loaded_for_its_summary() -> None:
    registry: Registry[type] = Registry("thing", {"count": "itertools:count"})
    assert registry.summary("count").startswith("Return a count object")


def test_the_registry_needs_no_torch() -> None:
    code = "import quorate.core.registry, quorate.core.workload, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(filter(None, sys.path))})
