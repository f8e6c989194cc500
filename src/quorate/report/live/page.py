"""The live page: the state of the run and the sections of its report, refreshed while the run goes on."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

from quorate.core.errors import ConfigurationError
from quorate.report.charts.markup import Markup, element
from quorate.report.live.run import LiveRun
from quorate.report.live.view import LiveView, view_of
from quorate.report.page import asset, document, heading, sections
from quorate.report.parts import View, chip, missing, sentence
from quorate.report.summary import summarize
from quorate.report.wording import counted

SCRIPT = asset("live.js")
STATE_EVERY, SECTIONS_EVERY = 1.0, 2.0
"""Seconds between two states, and between two makings of the sections at least."""
_TIMES_ITS_COST = 20
"""Making the sections takes at most this part of the time: of a long run they are made less often."""
_LOOKS = 64
"""The most pieces of the records read for one state: of a long run the page fills up answer by answer."""
_EVENTS = 40
"""The most deaths and joins that are listed; the newest."""
_LOST = "The server of this page does not answer. The page shows the last state it received."


class LivePage:
    """The page of the run in `folder`, which may have ended. Safe to use from several threads.

    Cost: a state reads the rows that were appended since the one before; the sections read all records, and are kept
    for `_TIMES_ITS_COST` times the seconds that they took. With `most_bytes` a state reads only the newest rows.
    """

    def __init__(
        self, folder: Path, *, most_bytes: int | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.run = LiveRun(folder, most_bytes=most_bytes, now=now)
        self._now, self._locks = now, (threading.Lock(), threading.Lock())
        self._sections, self._due = element("main", id="sections", data_next=0), -math.inf

    def document(self, *, is_still: bool = False) -> str:
        """Return the whole page, with the sections as they were made last; one that `is_still` requests nothing."""
        connection = element("p", _LOST, id="connection", role="status", hidden=True)
        title = f"{self.run.folder.name} · Quorate"
        return document(
            title, connection, self.state(), self._sections, is_virtual=False, script="" if is_still else SCRIPT
        )

    def state(self, *, lists: bool = False) -> Markup:
        """Return the state of the run; `lists` as in `LiveRun.look`."""
        with self._locks[0]:
            for _ in range(_LOOKS):
                self.run.look(lists=lists)
                if not self.run.has_more:
                    break
            return _state(view_of(self.run))

    def sections(self) -> Markup:
        """Return the sections of the report, made again if they are due, or if the run has ended since."""
        with self._locks[1]:
            has_ended = self.run.has_ended
            if self._now() >= self._due or (has_ended and self._due < math.inf):
                begun = time.thread_time()
                try:
                    summary = summarize(self.run.folder, is_live=True)
                    body = sections(View(summary)) if summary.fairness.seeds else []
                except ConfigurationError:  # nothing has been recorded yet
                    body = []
                wait = max(SECTIONS_EVERY, _TIMES_ITS_COST * (time.thread_time() - begun))
                self._due = math.inf if has_ended else self._now() + wait
                self._sections = element(
                    "main",
                    *(body or [missing("No step has been recorded yet.")]),
                    id="sections",
                    class_="virtual" if self.run.is_virtual else "measured",
                    data_next=None if has_ended else f"{wait:.1f}",
                )
            return self._sections


def _state(view: LiveView) -> Markup:
    parts = [heading("live", view.folder.name, _chips(view)), element("p", " · ".join(view.speed), class_="speed")]
    if view.share is not None:
        parts.append(element("progress", value=f"{view.share:.3f}", aria_label="done"))
    if view.slow is not None:
        parts.append(element("p", sentence(view.slow), class_="slow" if view.has_slow else None))
    notes = [*view.rounds, *([view.sent] if view.sent else [])]
    if notes:
        parts.append(element("p", " · ".join(notes), class_="note"))
    if view.events:
        events = [element("li", sentence(words)) for words in reversed(view.events[-_EVENTS:])]
        parts.append(element("ul", *events, class_="facts"))
    return element("div", *parts, id="state", data_next=None if view.end else STATE_EVERY)


def _chips(view: LiveView) -> list[Markup]:
    chips = [chip(view.end or "running", "bad" if view.has_failed else "good")]
    if view.is_virtual:
        chips.append(chip("virtual time: simulated, not measured", "virtual-chip"))
    words = (view.strategy, counted(view.workers, "worker"), view.epoch)
    return chips + [chip(word) for word in words if word is not None]
