"""The workers of one run on this machine, watched from the first to the last; none is left behind."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Container, Sequence

from quorate.core.contracts import Board
from quorate.core.errors import ranks_in_words
from quorate.launch.local.chaos import Chaos
from quorate.launch.local.children import Child, Distant, host_of, signal_group, tell, tell_group
from quorate.launch.local.live_goodput import LiveGoodput
from quorate.launch.local.newcomers import Newcomers
from quorate.launch.local.orphans import Guard
from quorate.launch.local.verdict import Ending
from quorate.launch.run.requests import (
    LEFT_WHEN_ASKED,
    Report,
    ask_to_stop,
    asked_to_stop,
    left,
    newest_report,
    status_after,
)
from quorate.observe.stopping import INTERRUPTED
from quorate.wire.failure import (
    ended,
    is_in_training,
    is_server,
    is_survived,
    read_failure,
    report_death,
    report_failure,
)
from quorate.wire.members import read_deaths
from quorate.wire.naming import named_at

LOOK_EVERY = 0.02
"""Seconds between two checks for ended workers."""
GRACE = 10.0
"""Seconds in which the others may leave by themselves after a failure, or finish what they do after an interrupt."""
OWN_LIMIT = 1.0
"""Seconds that workers have to leave by their own limit, with a sentence, before they are killed."""
WRONG_INPUT = 2
"""The exit status of a worker with wrong input, which a restarted one would get, too."""
LAST_CALL = 3.0
"""Seconds between SIGTERM and SIGKILL."""


class Crew:
    """`children`, by rank, and the board on which they read who has failed; more may `join` before `watch` is called.

    A worker that ends with a signal or a status above 0 is on the board within `LOOK_EVERY` of its death. The others
    have `grace` seconds to leave; then they get SIGTERM, and `LAST_CALL` later SIGKILL. What a worker has
    started ends with it: its process group gets SIGTERM at its end, and SIGKILL `LAST_CALL` later. Leaving the `with`
    block kills whatever is still there. `shows(rank, text)` receives the reports of a worker about all of them, and
    `asked()` is called before the first signal is passed on.
    """

    def __init__(
        self,
        children: Sequence[Child],
        board: Board,
        *,
        grace: float = GRACE,
        leave_within: float | None = None,
        newcomers: Newcomers | None = None,
        shows: Callable[[int, str], None] = lambda rank, text: None,
        guard: Guard | None = None,
        asked: Callable[[], None] = lambda: None,
    ) -> None:
        self.endings: dict[int, Ending] = {}
        self.first_failure: Ending | None = None
        self.outlived: list[Ending] = []
        """The workers that died, and the others went on, by an error of their own or otherwise."""
        self.chaos: Chaos | None = None
        """The failures that strike the workers; set it before `watch` is called."""
        self.goodput: LiveGoodput | None = None
        """The report after deaths and failures; set it before `watch` is called."""
        self._alive = dict(enumerate(children))
        self._board = board
        self._grace, self._leave_within = grace, leave_within
        self._newcomers = newcomers
        self._shows = shows
        self._guard = guard
        self._is_asked = asked
        self._shown: Report | None = None
        self._asked: list[signal.Signals] = []
        self._handled = 0
        self._plan: list[tuple[float, signal.Signals]] = []
        self._sent: dict[int, signal.Signals] = {}
        self._left_behind: dict[int, float] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def join(self, child: Child) -> None:
        """Take in the next rank."""
        self._guards(child)
        self._alive[len(self._alive) + len(self.endings)] = child

    def _guards(self, child: Child) -> None:
        if self._guard is not None and child.pid is not None:
            self._guard.begun(child.pid)

    @property
    def alive(self) -> list[int]:
        """The ranks whose processes have not ended; the board has what this means for the others."""
        return sorted(self._alive)

    @property
    def interrupted_by(self) -> signal.Signals | None:
        """The first signal that was passed on to the workers."""
        return self._asked[0] if self._asked else None

    def pass_on(self, signum: int) -> None:
        """Send `signum` to every worker, and let them leave; asked a second time, kill them at once.

        They have `leave_within` seconds; if it is None, `grace` seconds after an interrupt by a person, and no limit
        after others. Only noted here, done by `watch`: a signal handler may call this.
        """
        self._asked.append(signal.Signals(signum))

    def watch(self, limit: float | None = None) -> bool:
        """Return True when all have ended, with all they started; False if that takes more than `limit` seconds."""
        deadline = None if limit is None else time.monotonic() + limit
        while self._alive or self._left_behind:
            self._pass_on_what_was_asked()
            self._look()
            self._let_more_come()
            self._strike()
            self._show()
            self._tell_goodput()
            self._press()
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._alive or self._left_behind:
                time.sleep(LOOK_EVERY)
        return True

    def kill(self) -> None:
        """SIGKILL for every worker that is left and for all they started; returns when they have ended."""
        for group in self._left_behind:
            signal_group(group, signal.SIGKILL)
        self._left_behind.clear()
        self._send(signal.SIGKILL)
        deadline = time.monotonic() + LAST_CALL
        while self._alive and time.monotonic() < deadline:
            self._look()
            time.sleep(LOOK_EVERY / 10)
        for group in self._left_behind:
            signal_group(group, signal.SIGKILL)
        self._left_behind.clear()

    def _look(self) -> None:
        polled = list[tuple[int | None, int]]()
        for rank, child in self._alive.items():
            polled.append((child.poll(), rank))
            self._guards(child)  # it may have begun in this poll
        now_ended = [(status, rank) for status, rank in polled if status is not None]
        # Of two deaths between two looks, the one by a signal is the cause: the other saw its connection break.
        for status, rank in sorted(now_ended, key=lambda ended: ended[0] >= 0):
            self._has_ended(rank, status)
        now = time.monotonic()
        for group, until in list(self._left_behind.items()):
            if now > until:
                signal_group(group, signal.SIGKILL)
                self._is_over(group)
            elif not signal_group(group, 0):
                self._is_over(group)

    def _show(self) -> None:
        """Show a worker's report about all workers."""
        said = newest_report(self._board)
        if said is not None and said != self._shown:
            self._shown = said
            self._shows(said.rank, said.text)

    def _has_ended(self, rank: int, status: int) -> None:
        child = self._alive.pop(rank)
        why, host = child.why if isinstance(child, Distant) else None, host_of(child)
        ending = self.endings[rank] = Ending(rank, status, self._sent.get(rank), why)
        self._board.set(left(rank), b"1")  # nobody waits for it any more
        now = time.monotonic()
        is_well = status == 0 or (status in LEFT_WHEN_ASKED and asked_to_stop(self._board) is not None)
        if is_well and not self._is_missed(rank, status):
            self._board.set(ended(rank), b"%d" % status)
        elif self._newcomers is not None and not self._newcomers.has_come(rank):
            by_chance = status not in (0, *LEFT_WHEN_ASKED, WRONG_INPUT) and not self._asked
            self._newcomers.failed_to_join(rank, ending.in_words, by_chance=by_chance)
            self._say(f"rank {rank} {ending.in_words} before it had joined; the others go on")
        elif self._is_outlived(rank, ending, host):
            self.outlived.append(ending)
        else:
            report_failure(self._board, rank, ending.in_words, host)
            if self.first_failure is None:
                self.first_failure = ending
            if not self._plan and self._alive:
                self._plan = [
                    (now + self._grace, signal.SIGTERM),
                    (now + self._grace + LAST_CALL, signal.SIGKILL),
                ]
        if child.pid is not None:
            self._left_behind[child.pid] = now + LAST_CALL
            if not signal_group(child.pid, signal.SIGTERM):
                self._is_over(child.pid)

    def _is_over(self, group: int) -> None:
        del self._left_behind[group]
        if self._guard is not None:
            self._guard.over(group)

    def _is_missed(self, rank: int, status: int) -> bool:
        """Whether it ended with status 0 where others train on and count on it: a death, which they can outlive."""
        is_here = status == 0 and bool(self._alive) and is_in_training(self._board, rank)
        return is_here and is_survived(self._board, rank)

    def _is_outlived(self, rank: int, ending: Ending, host: str | None) -> bool:
        """Return whether the others continue without it, which is printed."""
        is_ours = ending.stopped_with is not None or bool(self._asked)
        if not self._alive or self._plan or is_ours or read_failure(self._board) is not None:
            return False
        if ending.status > 0 and not is_in_training(self._board, rank):
            return False  # an error behind its training, in which it has let nobody down
        reason = ending.in_words if ending.status else f"{ending.in_words} before its training had ended"
        if not report_death(self._board, rank, reason, host):
            return False
        known = next(death for death in read_deaths(self._board) if death.rank == rank)
        others = [other for other in self.alive if not is_server(self._board, other)]
        who = named_at(self._board, known.rank, known.host)
        self._say(f"{who} {known.reason}; {ranks_in_words(others)} {'goes' if len(others) == 1 else 'go'} on")
        if self._newcomers is not None:
            self._newcomers.died(rank)
        return True

    @property
    def _is_ending(self) -> bool:
        """Whether workers are asked to leave, or will be stopped."""
        return bool(self._plan or self._asked)

    def _let_more_come(self) -> None:
        """Start workers in place of dead ones, and on request."""
        if self._newcomers is not None and self._alive and not self._is_ending:
            for rank, dead in self._newcomers.look():
                why = ", as was asked for" if dead is None else f" in place of rank {dead}"
                self._say(f"rank {rank} is started{why}")

    def _strike(self) -> None:
        if self.chaos is not None and self._is_ending:
            self.chaos.end()
        elif self.chaos is not None:
            self.chaos.look()

    def _tell_goodput(self) -> None:
        if self.goodput is None or self._is_ending:
            return
        struck = 0 if self.chaos is None else self.chaos.strikes
        sentence = self.goodput.look(len(self.outlived) + struck, self.alive)
        if sentence is not None:
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        self._shows(-1, f"quorate: {sentence}\n")

    def _pass_on_what_was_asked(self) -> None:
        while self._handled < len(self._asked):
            signum = self._asked[self._handled]
            self._handled += 1
            if self._handled == 1:
                self._is_asked()
                status = status_after(signum)
                ask_to_stop(self._board, status)
                self.tell_alive(signum)
                usual = self._grace if status == INTERRUPTED else None
                limit = usual if self._leave_within is None else self._leave_within + OWN_LIMIT
                if limit is not None:
                    self._plan = [(time.monotonic() + limit, signal.SIGKILL)]
            else:
                self._send(signal.SIGKILL)

    def _press(self) -> None:
        while self._plan and self._plan[0][0] <= time.monotonic():
            self._send(self._plan.pop(0)[1])

    def _send(self, signum: signal.Signals) -> None:
        """Send a signal that is the crew's own decision."""
        self._sent.update(dict.fromkeys(self._alive, signum))
        self.signal_alive(signum)

    def tell_alive(self, signum: signal.Signals, ranks: Container[int] | None = None) -> None:
        """Send it to the workers themselves (None: to all), not to what they have started."""
        for rank, child in self._alive.items():
            if ranks is None or rank in ranks:
                tell(child, signum)

    def signal_alive(self, signum: signal.Signals) -> None:
        """Send it to the workers and to what they have started."""
        for rank in self._alive:
            self.signal(rank, signum)

    def signal(self, rank: int, signum: signal.Signals) -> None:
        """Send a signal to one living worker and to its children."""
        tell_group(self._alive[rank], signum)
