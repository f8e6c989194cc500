"""Files are small, named for what is in them, and say what they are."""

from __future__ import annotations

import ast

from tests.architecture.tree import PACKAGE, ROOT, modules

LINES_AT_MOST = 500
LINES_OF_A_STRATEGY_AT_MOST = 120
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "stuff"}


def test_files_stay_small() -> None:
    long = {module.place: lines for module in modules() if (lines := len(module.text.splitlines())) > LINES_AT_MOST}
    assert not long, "look for the noun that wants out of these"


def test_strategies_read_like_their_papers() -> None:
    """Their cards, which are the documentation of the file, do not count."""
    lines = {
        module.place: len(module.text.splitlines()) - len((ast.get_docstring(module.tree) or "").splitlines())
        for module in modules()
        if module.path.parent == PACKAGE / "strategies"
    }
    assert not {place: count for place, count in lines.items() if count > LINES_OF_A_STRATEGY_AT_MOST}


def test_no_name_says_nothing() -> None:
    paths = [module.path for folder in (PACKAGE, ROOT / "tests") for module in modules(folder)]
    parts = {path: {path.stem, *path.relative_to(ROOT).parts[:-1]} for path in paths}
    assert not [path for path, own in parts.items() if own & NAMES_THAT_SAY_NOTHING]


def test_every_module_says_what_it_is() -> None:
    assert not [module.place for module in modules() if not ast.get_docstring(module.tree)]


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").is_file()
