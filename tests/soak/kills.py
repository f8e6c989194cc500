"""Real trainings that are killed, interrupted and broken at random times, and what must be true of each end.

Whatever happens: the run ends in time, with the right exit status and a sentence that names who it began with; no
process of it lives on, and no folder or socket stays, or the next start takes it away.
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from quorate.launch.local.process_group import GRACE
from quorate.launch.local.processes import Conclusion
from quorate.launch.warm.request import RunRequest
from quorate.launch.warm.run_server import Run, RunServer
from quorate.wire.socket_folder import clear_abandoned

TRAINING = str(Path(__file__).with_name("training.py"))
GOSSIP = ("d-psgd", "sgp", "ad-psgd")
LOCAL = ("local-sgd", "diloco", "group-averaging")
STRATEGIES = ("all-reduce", "all-reduce+", "quorum", "eager-solo", "bounded-staleness", *LOCAL, *GOSSIP)
"""With a "+" the others go on when a worker dies; under the others they do anyway."""
SECONDS_AT_MOST = 30.0
BEGIN_SECONDS = 60.0
STOPPED_SECONDS = 2.0
"""How long one that is asked to leave, and cannot since it is stopped, is waited for."""

FAULTS: dict[str, float] = {
    "kill worker": 4, "kill worker at first": 2, "kill worker early": 1, "kill stopped worker": 1, "kill zygote": 2,
    "kill zygote early": 1,
    "SIGINT": 2, "SIGTERM": 2, "SIGUSR1": 2, "SIGHUP": 1, "SIGINT early": 1, "SIGTERM early": 1, "SIGINT twice": 1,
    "SIGTERM twice": 1, "SIGUSR1 to a worker": 1, "SIGTERM to all workers": 1, "stop a worker, SIGINT": 1,
    "raises": 2, "leaves": 1, "parts": 1, "kill two workers": 2, "kill all but one": 1,
}  # fmt: skip
"""What is done to a run, and how often."""
LONE_KILLS = ("kill worker", "kill worker at first", "kill stopped worker")
STATUS_AFTER = {"SIGINT": 130, "SIGHUP": 130, "SIGTERM": 75, "SIGUSR1": 75}


@dataclass(frozen=True)
class Trial:
    """One training and what is done to it."""

    fault: str
    strategy: str
    size: int
    rank: int
    """Whom it is done to."""
    delay: float
    """Seconds after the workers are going (after all have begun, for "at first"; after the start, for "early" ones)."""

    @property
    def victims(self) -> list[int]:
        """Whom it kills, if anyone."""
        count = {"kill two workers": min(2, self.size - 1), "kill all but one": self.size - 1}.get(self.fault, 1)
        return [(self.rank + further) % self.size for further in range(count)]

    @property
    def is_survived(self) -> bool:
        """Whether the others go on."""
        goes_on = (*LONE_KILLS, "kill two workers", "kill all but one")
        return self.strategy != "all-reduce" and self.fault in goes_on

    @staticmethod
    def drawn(seed: int, fault: str | None = None) -> Trial:
        """The trial of this seed."""
        draw = random.Random(seed)
        chosen = draw.choices(list(FAULTS), list(FAULTS.values()))[0]
        size = draw.choice((2, 3, 3, 4))
        is_early, is_first = "early" in (fault or chosen), "at first" in (fault or chosen)
        return Trial(
            fault=fault or chosen,
            strategy="all-reduce" if (fault or chosen) == "parts" else draw.choice(STRATEGIES),
            size=size,
            rank=draw.randrange(size),
            delay=draw.uniform(0.0, 1.0 if is_early else 0.03 if is_first else 0.3),
        )


@dataclass
class Tally:
    """What a series of trials has come to."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    slowest: float = 0.0
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """All in one line."""
        kinds = ", ".join(f"{count} {fault}" for fault, count in self.ends.most_common())
        return (
            f"soak: {sum(self.ends.values())} runs in {self.seconds:.0f} s, {len(self.wrong)} wrong, "
            f"the slowest end took {self.slowest:.1f} s ({kinds})"
        )


@contextmanager
def own_place(place: Path) -> Iterator[None]:
    """Temporary files below `place`, for this process and what it starts."""
    multiprocessing.util.get_temp_dir()  # of this process, which removes it only when it ends: not below `place`
    before, tempfile.tempdir = os.environ.get("TMPDIR"), None
    os.environ["TMPDIR"] = str(place)
    try:
        yield
    finally:
        tempfile.tempdir = None
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before


class Soak:
    """Carries out trials one after the other; `place` is a folder of its own with a short path."""

    def __init__(self, server: RunServer, place: Path) -> None:
        self._server, self._place = server, place
        self.tally = Tally()

    def carry_out(self, trial: Trial, name: str) -> list[str]:
        """What was wrong with the end of one trial; nothing is left of it."""
        folder = self._place / name
        folder.mkdir()
        begun = time.monotonic()
        more = [trial.fault, str(trial.rank), "15"] if trial.fault in ("raises", "leaves", "parts") else []
        request = RunRequest(
            script=TRAINING,
            arguments=[trial.strategy, *more],
            size=trial.size,
            folder=folder,
            grace=STOPPED_SECONDS if trial.fault == "stop a worker, SIGINT" else GRACE,
        )
        run = self._server.start(request)
        at = time.monotonic()
        try:
            at = self._inflict(trial, run, folder)
            ended = run.wait(SECONDS_AT_MOST)
        finally:
            if run.ended is None:
                run.send(signal.SIGKILL)
                run.wait(SECONDS_AT_MOST)
        took = time.monotonic() - at
        wrong = _wrong_end(trial, ended, folder) + self._left(trial, folder)
        self.tally.ends[trial.fault] += 1
        self.tally.slowest = max(self.tally.slowest, took)
        self.tally.seconds += time.monotonic() - begun
        self.tally.wrong += [f"{name}: {trial}: {one}" for one in wrong]
        return wrong

    def _inflict(self, trial: Trial, run: Run, folder: Path) -> float:
        """Do it; when."""
        if "early" not in trial.fault:
            is_begun = all_of(folder, "begun" if "at first" in trial.fault else "going", trial.size)
            _until(lambda: is_begun() or run.wait(0.0) is not None, BEGIN_SECONDS)
        time.sleep(trial.delay)
        at = time.monotonic()
        kind = trial.fault.partition(" early")[0]
        if kind.startswith("kill"):
            _until(all_of(folder, "pid", trial.size), BEGIN_SECONDS)
            workers = processes(folder)
            if kind == "kill stopped worker":
                os.kill(workers[trial.rank][0], signal.SIGSTOP)
            for rank in trial.victims:
                os.kill(workers[rank][1] if "zygote" in kind else workers[rank][0], signal.SIGKILL)
        elif kind == "SIGUSR1 to a worker":
            os.kill(processes(folder)[trial.rank][0], signal.SIGUSR1)
        elif kind == "SIGTERM to all workers":
            for pid, _ in processes(folder).values():
                os.kill(pid, signal.SIGTERM)
        elif kind == "stop a worker, SIGINT":
            os.kill(processes(folder)[trial.rank][0], signal.SIGSTOP)
            run.send(signal.SIGINT)
        elif kind.startswith("SIG"):
            signum = signal.Signals[kind.split()[0]]
            run.send(signum)
            if kind.endswith("twice"):
                run.send(signum)
        return at

    def _left(self, trial: Trial, folder: Path) -> list[str]:
        """What lives on, and what lies about."""
        workers = [pid for pid, _ in processes(folder).values()]
        try:
            _until(lambda: not alive_of(workers), 5.0)
        except TimeoutError:
            return [f"processes {alive_of(workers)} live on"]
        lying = [path.name for path in self._place.iterdir() if path.name.startswith("quorate-")]
        clear_abandoned(self._place)
        return [f"{lying} are left"] if lying else []


def processes(folder: Path) -> dict[int, tuple[int, int]]:
    """Each rank's process and its parent."""
    found = {}
    for path in folder.glob("pid-*"):
        words = path.read_text().split()
        if len(words) == 2:
            found[int(path.name.partition("-")[2])] = (int(words[0]), int(words[1]))
    return found


def alive_of(pids: list[int]) -> list[int]:
    """Those of these processes, and of those in their sessions, that have not ended."""
    alive = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        pid = int(path.parent.name)
        if state != "Z" and (pid in pids or int(session) in pids):
            alive.append(pid)
    return alive


def all_of(folder: Path, word: str, size: int) -> Callable[[], bool]:
    """Whether every rank has left that word."""
    paths = [folder / f"{word}-{rank}" for rank in range(size)]
    return lambda: all(path.exists() and path.stat().st_size > 0 for path in paths)


def _until(is_so: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s")
        time.sleep(0.005)


def _wrong_end(trial: Trial, ended: Conclusion | None, folder: Path) -> list[str]:
    if ended is None:
        return [f"it had not ended after {SECONDS_AT_MOST:g} s: {_tails(folder, trial.size)}"]
    expected, sentence = _expected(trial)
    is_told = re.match(sentence, ended.why or "") is not None
    wrong = []
    if ended.status not in expected or not is_told:
        wrong.append(f"{ended}, not {expected} and {sentence!r}; {_tails(folder, trial.size)}")
    if trial.fault in STATUS_AFTER:
        wrong += _not_in_order(trial, folder)
    if ended.status == 0:
        wrong += _not_outlived(trial, folder)
    return wrong


def _not_outlived(trial: Trial, folder: Path) -> list[str]:
    """The others have gone on to the end, know who has died, and have equal replicas."""
    left = set(range(trial.size)) - set(trial.victims)
    said = {rank: (folder / f"end-{rank}") for rank in left}
    ends = {rank: path.read_text() if path.exists() else "" for rank, path in said.items()}
    wrong = [] if len(set(ends.values())) == 1 and all(ends.values()) else [f"they ended unequal: {ends}"]
    first = (folder / f"rank-{min(left)}.jsonl").read_text().splitlines()
    told = {json.loads(line)["rank"] for line in first if '"kind":"gone"' in line}
    lost = {rank for rank in trial.victims if rank > min(left)}
    return wrong if lost <= told else [*wrong, f"the records know of {told}, not of {lost}"]


def _expected(trial: Trial) -> tuple[tuple[int, ...], str]:
    """The exit statuses that are right, and how the sentence begins."""
    who, where = rf"rank {trial.rank} \(host \S+\)", f" in round [0-9]+ of {trial.strategy}"
    kind = trial.fault
    if trial.is_survived:
        return (0,), ""
    if kind in ("kill two workers", "kill all but one"):
        return (1,), r"rank [0-9] \(host \S+\) was killed by signal 9 \(SIGKILL\)"
    if kind in LONE_KILLS:
        return (1,), rf"{who} was killed by signal 9 \(SIGKILL\)" + ("" if "first" in kind else where)
    if kind == "kill worker early":
        return (0, 1) if trial.strategy != "all-reduce" else (1,), rf"({who} was killed by signal 9 \(SIGKILL\))?"
    if "zygote" in kind:
        return (1,), r"the process that starts the workers was killed by signal 9 \(SIGKILL\)"
    if kind == "raises":
        return (1,), rf"{who} raised ValueError: by hand{where}"
    if kind == "leaves":
        return (1,), rf"{who} exited with status 7{where}"
    if kind == "parts":
        alone = rf"the replica of rank {trial.rank}\b.* parted from the others: the parameters differ, first in 0.bias"
        both = "the replicas of ranks 0 and 1 differ from each other: the parameters differ, first in 0.bias"
        return (1,), alone if trial.size > 2 else both
    if kind in ("SIGUSR1 to a worker", "SIGTERM to all workers"):
        return (75,), "the workers were asked to leave; every worker has ended"
    signum = re.search(r"SIG\w+", kind)
    assert signum is not None
    return (STATUS_AFTER[signum[0]],), f"ended by {signum[0]}; every worker has ended"


def _not_in_order(trial: Trial, folder: Path) -> list[str]:
    """Asked once, workers leave after the same step, with their records whole and without a word."""
    wrong, steps = [], []
    for rank in range(trial.size):
        rows = [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
        said = re.sub(r"quorate: each worker keeps .*\n", "", (folder / f"rank-{rank}.log").read_text())
        if rows[-1]["kind"] != "end" or said:
            wrong.append(f"rank {rank} did not leave in order: {rows[-1]}, {said!r}")
        steps.append(rows[-1].get("steps"))
    if trial.strategy == "all-reduce" and len(set(steps)) > 1:
        wrong.append(f"they left after different steps: {steps}")
    return wrong


def _tails(folder: Path, size: int) -> dict[int, str]:
    logs = {rank: folder / f"rank-{rank}.log" for rank in range(size)}
    return {rank: path.read_text(errors="replace")[-800:] if path.exists() else "" for rank, path in logs.items()}
