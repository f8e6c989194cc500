"""The commands and scripts that pages show, and the links of a built site."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands_of(page: Path) -> list[str]:
    """Return the command lines of a page's shell blocks, without comments."""
    text = "".join(block for language, block in _blocks(page) if language == "bash").replace("\\\n", " ")
    lines = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def script_of(page: Path) -> str:
    """Return the first script that a page shows."""
    return next(block for language, block in _blocks(page) if language == "python")


def _blocks(page: Path) -> list[tuple[str, str]]:
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value is not None and name in {"id", "name"}:
                self.ids.add(value)
            if value is not None and name in {"href", "src"}:
                self.links.append(value)


@cache
def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links within a site that lead to no file, or to no anchor of a page."""
    for path in sorted(site.rglob("*.html")):
        for link in _read(path).links:
            target, anchor = urldefrag(re.sub(r"\?v=\w+", "", link))
            if re.match(r"[a-z]+:", target):
                continue
            aim = (path.parent / unquote(target)).resolve() if target else path
            aim = aim / "index.html" if aim.is_dir() else aim
            is_there = aim.is_file() and (
                not anchor or aim.suffix != ".html" or unquote(anchor) in _read(aim).ids | {"top"}
            )
            if not is_there:
                yield f"{path.relative_to(site)}: {link}"
