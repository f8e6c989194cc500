"""Elements of HTML and SVG as text. What is not marked as markup is escaped, so names can hold anything."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

EMPTY = {"br", "input", "meta"}
"""Elements of HTML that have no content and no end."""
SHAPES = {"circle", "line", "path", "rect", "use"}
"""Elements of SVG that end where they begin if they have no content."""
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Value = str | float | bool | None


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: Value) -> Markup:
    """`<name a="…">content</name>`: well-formed as XML as well, but for the elements in `EMPTY`.

    In the names of attributes `_` stands for `-`, and one at the end is left out (`class_`). Numbers are coordinates,
    in tenths. None and False leave the attribute out, True gives it no value.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in EMPTY:
        return Markup(f"<{name}{written}>")
    if name in SHAPES and not any(content):
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(content: Iterable[str]) -> Markup:
    """Join the content, escaped unless it is markup."""
    return Markup("".join(part if isinstance(part, Markup) else escaped(part) for part in content))


def escaped(text: str) -> Markup:
    """Escape text for HTML and attributes; characters that XML cannot hold become `�`."""
    return Markup(html.escape(_NOT_IN_XML.sub("\ufffd", text)))


def number(value: float) -> str:
    """Write a coordinate in tenths: `12`, `3.5`."""
    short = f"{value:.1f}".rstrip("0").rstrip(".")
    return "0" if short == "-0" else short


def _value(value: str | float) -> str:
    if value is True:
        return ""
    return escaped(value) if isinstance(value, str) else number(value)
