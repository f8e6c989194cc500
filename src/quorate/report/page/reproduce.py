"""The means to reproduce the results: the command, the code, the settings and the machine."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from quorate.report.charts.markup import Markup, element, joined
from quorate.report.page.parts import View, link, missing, pairs, section
from quorate.report.plot_data import tables

LEAD = (
    "The command, the commit it ran on, every setting, and the machine. The data of every chart lies beside this page."
)


def reproduce(view: View) -> Markup:
    """Return section 10 of the page."""
    summary = view.summary.reproduce
    return section(
        "reproduce",
        "Reproduce",
        LEAD,
        element("h3", "Command"),
        _command(summary.command),
        element("p", f"Started {summary.started}.", class_="note") if summary.started else "",
        element("h3", "Code"),
        _commit(view),
        element("h3", "Data"),
        _data(view),
        _block("Settings", summary.settings),
        _block("Packages", summary.packages),
        _block("Machine", summary.machine),
    )


def _command(command: Sequence[str]) -> Markup:
    if not command:
        return missing("The command is not known.")
    words = element("code", shlex.join(command), id="command")
    button = element("button", "Copy", type="button", data_copy="command", hidden=True)
    return element("div", element("pre", words), button, class_="command")


def _commit(view: View) -> Markup:
    git = view.summary.reproduce.git
    if git is None:
        return missing("No commit is known: the code did not lie in a git repository, or git was not there.")
    state = {True: "with changes that are in no commit", False: "clean: nothing but this commit"}
    dirty = git.get("dirty")
    words = state[dirty] if isinstance(dirty, bool) else "whether files were changed is not known"
    return element("p", "Commit ", element("code", str(git.get("commit"))), f", {words}.")


def _data(view: View) -> Markup:
    paths = ["summary.json", *(f"data/{name}.csv" for name in tables(view.summary))]
    items = (element("li", link(path, path)) for path in paths)
    return element("ul", *items, class_="files")


def _block(title: str, values: dict[str, object] | dict[str, str | None]) -> Markup:
    if not values:
        return joined([element("h3", title), missing("Nothing was recorded.")])
    return element("details", element("summary", title), pairs(values), open=True)
