"""A page taken apart: its elements with their attributes and text, and whether it is well-formed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

_HAVE_NO_END = {"br", "input", "meta", "link", "img", "hr"}


@dataclass
class Element:
    """One element, its attributes, and what is in it in order: elements and pieces of text."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    content: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it, with single spaces."""
        return " ".join("".join(self._pieces()).split())

    @property
    def classes(self) -> set[str]:
        return set(self.attributes.get("class", "").split())

    def _pieces(self) -> Iterator[str]:
        for part in self.content:
            if isinstance(part, str):
                yield part
            elif part.tag not in ("style", "script"):
                yield " "
                yield from part._pieces()
                yield " "

    @property
    def shown(self) -> list[str]:
        """The words that a reader at a desk sees before unfolding anything."""
        words: list[str] = []
        for part in self.content:
            if isinstance(part, str):
                words += part.split()
            elif part.tag == "details" and "open" not in part.attributes:
                words += part.content[0].shown if isinstance(part.content[0], Element) else []
            elif part.tag not in ("head", "style", "title", "defs") and "slim" not in part.classes:
                words += [] if "panel" in part.classes and "first" not in part.classes else part.shown
        return words

    def all(self, tag: str | None = None, class_: str | None = None, **attributes: str) -> list[Element]:
        """Every element in it, however deep, that is all this; `_` in names of attributes stands for `-`."""
        wanted = {key.replace("_", "-"): value for key, value in attributes.items()}
        found = []
        for part in self.content:
            if isinstance(part, str):
                continue
            if (
                tag in (None, part.tag)
                and (class_ is None or class_ in part.classes)
                and all(part.attributes.get(key) == value for key, value in wanted.items())
            ):
                found.append(part)
            found += part.all(tag, class_, **attributes)
        return found

    def one(self, tag: str | None = None, class_: str | None = None, **attributes: str) -> Element:
        """The only element that is all this."""
        found = self.all(tag, class_, **attributes)
        assert len(found) == 1, f"{len(found)} elements {tag} .{class_} {attributes}"
        return found[0]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("")
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].content.append(element)
        if tag not in _HAVE_NO_END:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> ends <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].content.append(data)


def parsed(html: str) -> Element:
    """The whole page. Fails where an end does not belong to the last beginning, and where one is missing."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert [element.tag for element in parser.open] == [""], "an element has no end"
    return parser.root
