"""A small terminal: what a person sees after some bytes, as far as the display of a run needs it."""

from __future__ import annotations

import codecs
import re

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b([78D])|([\r\n\b\t])|([^\x1b\r\n\b\t])", re.DOTALL)


class Terminal:
    """Rows of text, of which the last `height` can be reached; lines that are too long go on in the next row."""

    def __init__(self, width: int = 80, height: int = 24) -> None:
        self.width, self.height = width, height
        self._rows: list[list[str]] = [[]]
        self._top = self._row = self._column = 0
        self._saved = 0, 0
        self._decoder, self._rest = codecs.getincrementaldecoder("utf-8")("replace"), ""

    def feed(self, written: bytes) -> None:
        """Take in what is written; a sequence or letter that is cut off waits for its end."""
        text = self._rest + self._decoder.decode(written)
        begun = text.rfind("\x1b")
        is_whole = begun < 0 or _TOKEN.match(text, begun) is not None
        text, self._rest = (text, "") if is_whole else (text[:begun], text[begun:])
        for found in _TOKEN.finditer(text):
            numbers, final, memory, control, letter = found.groups()
            if final:
                self._sequence(final, int(numbers) if numbers.isdecimal() else None)
            elif memory == "7":
                self._saved = self._row - self._top, self._column
            elif memory == "8":
                self._row, self._column = self._top + self._saved[0], self._saved[1]
            elif memory == "D":
                self._row += 1
                self._reach()
            elif control:
                self._control(control)
            else:
                self._letter(letter)

    def _sequence(self, final: str, number: int | None) -> None:
        if final == "A":
            self._row = max(self._top, self._row - (number or 1))
        elif final == "B":
            self._row = min(self._top + self.height - 1, self._row + (number or 1))
            self._reach()
        elif final == "G":
            self._column = (number or 1) - 1
        elif final in "JK":
            assert not number or (final, number) == ("K", 2), "from the cursor on, or a whole row"
            del self._rows[self._row][0 if number else self._column :]
            if final == "J":
                self._rows[self._row + 1 :] = []

    def _control(self, control: str) -> None:
        if control == "\n":
            self._row, self._column = self._row + 1, 0
            self._reach()
        elif control == "\r":
            self._column = 0
        elif control == "\b":
            self._column = max(0, self._column - 1)
        else:
            self._column += 8 - self._column % 8

    def _letter(self, letter: str) -> None:
        if self._column >= self.width:
            self._control("\n")
        row = self._rows[self._row]
        row += [" "] * (self._column + 1 - len(row))
        row[self._column] = letter
        self._column += 1

    def _reach(self) -> None:
        self._rows += [[] for _ in range(self._row + 1 - len(self._rows))]
        self._top = max(self._top, self._row + 1 - self.height)

    @property
    def lines(self) -> list[str]:
        """Everything that was not erased, without empty rows at the end."""
        return "\n".join("".join(row).rstrip() for row in self._rows).rstrip("\n").split("\n")

    @property
    def cursor(self) -> tuple[str, int]:
        """The text of its row, and its column."""
        return "".join(self._rows[self._row]), self._column
