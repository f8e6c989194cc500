"""The means to reproduce the results: the command, the code, the settings and the machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from quorate.report.charts.markup import Markup, element, joined
from quorate.report.parts import View, link, missing, pairs
from quorate.report.reading.planned import Planned
from quorate.report.schema import Part, Reproduce, Summary
from quorate.report.topic import Arms, Topic

LEAD = "The command, its commit, all settings, and the machine. The data of every chart are files beside this page."


def reproduce_of(plan: Planned) -> Reproduce:
    """Return the means to reproduce the runs of a plan."""
    about = plan.about
    git = about.get("git") or {}
    return Reproduce(
        command=tuple(str(word) for word in about.get("command") or ()),
        started=str(about.get("started") or ""),
        git=git if git.get("commit") else None,
        packages=dict(about.get("versions") or {}),
        machine=plan.machine,
        settings=plan.settings,
    )


def _body(view: View, arms: Arms[Part]) -> Iterator[str]:
    summary = view.summary.reproduce
    yield element("h3", "Command")
    yield _command(summary.command)
    yield element("p", f"Started {summary.started}.", class_="note") if summary.started else ""
    yield element("h3", "Code")
    yield _commit(view)
    yield element("h3", "Data")
    yield element("ul", *(element("li", link(path, path)) for path in view.files), class_="files")
    yield _block("Settings", summary.settings)
    yield _block("Packages", summary.packages)
    yield _block("Machine", summary.machine)


def _command(command: Sequence[str]) -> Markup:
    if not command:
        return missing("The command is unknown.")
    return element("pre", element("code", shlex.join(command), id="command"), class_="command")


def _commit(view: View) -> Markup:
    git = view.summary.reproduce.git
    if git is None:
        return missing("The commit is unknown: the code was not in a git repository, or git is not installed.")
    state = {True: "with uncommitted changes", False: "clean"}
    dirty = git.get("dirty")
    words = state[dirty] if isinstance(dirty, bool) else "whether it had uncommitted changes is unknown"
    return element("p", "Commit ", element("code", str(git.get("commit"))), f", {words}.")


def _block(title: str, values: dict[str, object] | dict[str, str | None]) -> Markup:
    if not values:
        return joined([element("h3", title), missing("Nothing was recorded.")])
    return element("details", element("summary", title), pairs(values), open=True)


def _in_words(summary: Summary) -> Iterator[str]:
    again = summary.reproduce
    if again.command:
        yield f"```bash\n{shlex.join(again.command)}\n```\n"
    if again.started:
        yield f"- Started: {again.started}"
    git = again.git or {}
    if git.get("commit"):
        dirty = git.get("dirty")
        state = "" if dirty is None else ", with uncommitted changes" if dirty else ", without changes"
        yield f"- Commit: {git['commit']}{state}"
    packages = ", ".join(f"{name} {version}" for name, version in again.packages.items() if version is not None)
    if packages:
        yield f"- Packages: {packages}"
    if again.machine:
        yield "- Machine: " + ", ".join(f"{key} {value}" for key, value in again.machine.items())


TOPIC = Topic[None, Part](
    name="reproduce",
    title="Reproduce",
    lead=LEAD,
    body=_body,
    markdown=lambda view, arms: ["## Reproduce", "\n".join(_in_words(view.summary))],
)
