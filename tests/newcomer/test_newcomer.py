"""The newcomer notices a link that leads nowhere, a table that is too wide, and a command that fails."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.newcomer.home import Home, too_wide
from tests.newcomer.pages import broken_links, commands_of, script_of


def test_commands_and_the_script_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```bash\nmake venv  # minutes\nquorate run \\\n  train.py\n```\n\n```python\nx = 1\n```\n")
    assert commands_of(page) == ["make venv", "quorate run    train.py"]
    assert script_of(page) == "x = 1\n"


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"></a><a href="b.html#there"></a><a href="c%20d.css?v=0f"></a>'
    )
    (tmp_path / "b.html").write_text(
        '<p id="here"></p><a href="#here"></a><a href="https://x.org/"></a><img src="no.svg">'
    )
    (tmp_path / "c d.css").touch()
    assert list(broken_links(tmp_path)) == ["a.html: b.html#there", "b.html: no.svg"]


def test_a_table_wider_than_the_terminal() -> None:
    sentence, row = "word " * 20, "name" + " " * 80 + "1"
    assert too_wide(f"{sentence}\n{row}\nname  1") == [row]


def test_commands_in_an_empty_home(tmp_path: Path) -> None:
    home, programs = Home(tmp_path, is_full=True), Path(sys.executable).parent
    shown = home.show("python -c 'import os; print(os.get_terminal_size(1).columns)'; ls -A ~", programs, tmp_path)
    assert (shown.status, shown.output) == (0, "80\n")
    failed = home.show("echo '\033[1mtable\033[0m'; echo why >&2; exit 3", programs, tmp_path)
    assert (failed.status, failed.output) == (3, "table\nwhy\n")
    assert home.run("echo late; sleep 60", programs, tmp_path, seconds=0.5).status is None
