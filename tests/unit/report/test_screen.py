"""Lines of ours at the bottom of a terminal, which leave alone what a script writes."""

from __future__ import annotations

import io
import random

import pytest

from quorate.report.live.display import Screen, on_terminal
from tests.support.terminals import Terminal

PIECES = (
    "loss 0.31\n",
    "a half line",
    " goes on\n",
    "\r 10%|#    |",
    "\r 20%|##   |",
    "\n",
    "\x1b[1mbold\x1b[0m words\n",
    "ö ü € end\n",
    "tab\there",
    "back\b\b",
    "x" * 200,
    "name? ",
    "\x1b[31m",
)


class Shown(io.BytesIO):
    """A terminal as a stream: every write is one that a person sees."""

    def __init__(self, width: int = 60, height: int = 12) -> None:
        super().__init__()
        self.seen = Terminal(width, height)

    def write(self, piece: bytes) -> int:  # type: ignore[override]
        self.seen.feed(bytes(piece))
        return len(piece)


@pytest.mark.parametrize("seed", range(60))
def test_a_script_is_shown_as_it_would_be_without_us(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choice(PIECES) for _ in range(draw.randrange(1, 40)))
    written, alone, shown = text.encode(), Terminal(60, 12), Shown()
    screen = Screen(shown, width=60)
    alone.feed(written)
    while written:
        cut = draw.randrange(1, 30)
        piece, written = written[:cut], written[cut:]
        screen.written(piece)
        if draw.random() < 0.5:
            screen.show("\n".join(f"line {n} of {seed}" for n in range(draw.randrange(4))))
    screen.close()
    assert shown.seen.lines == alone.lines
    assert shown.seen.cursor == alone.cursor


def test_our_lines_are_below_whole_lines_of_the_script() -> None:
    shown = Shown()
    screen = Screen(shown, width=60)
    screen.show("step 1\nrank 2 is late")
    screen.written(b"evaluated\n")
    assert shown.seen.lines == ["evaluated", "step 1", "rank 2 is late"]
    screen.written(b"name? ")
    assert shown.seen.lines == ["evaluated", "name?"] and shown.seen.cursor == ("name? ", 6)
    screen.show("step 2\nnobody")
    assert shown.seen.lines == ["evaluated", "name?"], "the line is not over"
    screen.written(b"\n")
    assert shown.seen.lines == ["evaluated", "name?", "step 2", "nobody"]


def test_what_is_typed_stays() -> None:
    shown = Shown()
    screen = Screen(shown, width=60)
    screen.written(b"name? ")
    screen.show("step 1")
    shown.seen.feed(b"ada\n")
    screen.written(b"hello\n")
    screen.close()
    assert shown.seen.lines == ["name? ada", "hello"]


@pytest.mark.parametrize("moving", [b"\x1b[2A", b"\x1b[?1049h", b"\x1b[10;3H", b"\x1b7"])
def test_a_script_that_moves_the_cursor_has_the_terminal_for_itself(moving: bytes) -> None:
    shown = Shown()
    screen = Screen(shown, width=60)
    screen.written(b"\n\n\n")
    screen.show("ours")
    screen.written(moving)
    screen.show("ours")
    assert "ours" not in shown.seen.lines


def test_a_sequence_that_is_cut_stays_whole() -> None:
    shown, written = Shown(), []
    screen = Screen(shown, width=60)
    screen.show("ours")
    shown.write = lambda piece: written.append(bytes(piece)) or len(piece)  # type: ignore[method-assign, func-returns-value]
    screen.written(b"\x1b[3")
    screen.show("ours again")
    screen.written(b"1mred\xe2\x82")
    screen.show("and again")
    screen.written(b"\xac\n")
    assert b"\x1b[31mred\xe2\x82\xac\n" in b"".join(written)


def test_where_there_is_no_terminal_nothing_changes(capfd: pytest.CaptureFixture[str]) -> None:
    import sys

    before = sys.stdout, sys.stderr
    with on_terminal() as screen:
        assert screen is None and (sys.stdout, sys.stderr) == before
