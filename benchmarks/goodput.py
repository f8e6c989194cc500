"""How much of the work that learners could have done is in the model in the end, where they keep failing?

Eight learners, one process each, in steps of 250 ms (slept, so that two cores do), are struck for three minutes by one
schedule: one of them every 2 s in the mean. A quarter of the failures are deaths (SIGKILL; another learner may start
0.5 s later), half are stops (SIGSTOP, 1.5 s in the mean), a quarter slow times (steps four times as long, for 1.5 s in
the mean). So a learner is away or slow for about a tenth of its time, and one of eight mostly is. Goodput is
useful worker-steps, whose work is in the model in the end, over possible ones: workers times seconds, by the seconds of
a step of the same arm that nothing disturbed. Losses are held out, and held against those of that undisturbed run, in
which each learner makes as many steps as were useful.

The arms: torch DDP under torchrun, which starts everyone anew at a death, from a checkpoint every 8 steps; and under
`quorate run --chaos` `all-reduce` that outlives deaths, `eager-majority`, `diloco`, and `decoupled-diloco`.

What is and what is not realistic: on a cluster workers fail every some hours, and starting them takes minutes; here all
is a hundred times faster. `quorate run --chaos` forks replacements from a process that has imported torch, some 0.5 s
each, for all its arms alike. torchrun starts eight processes at each death, and on two cores they import torch for 10 s
and more, longer than the next death takes to come: its figure says that it starts everyone anew, and little more. It
need not wait for the repair, either. So the bar holds decoupled-diloco against the better synchronous one.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from goodput_training import ARMS, CHAOS, DDP, FAILURES, PACE

TRAINING = str(Path(__file__).with_name("goodput_training.py"))
SYNCHRONOUS = (DDP, "all-reduce")
BEST = "decoupled-diloco"
LEARNERS, SECONDS = 8, 180.0
FAILING = "mtbf=16s,repair=0.5s,stop=0.5:1.5s,slow=0.25:x4:1.5s"
QUICK = (BEST, "all-reduce")
KNOWN = "detect=0.1s,silent=1h,reshard=0s,join=0s"
"""Of processes on one host: the launcher sees a death at once, who is silent is waited for where all wait for all, and
nothing has to be laid out anew."""
LEAST_STEPS = 8
"""Of an undisturbed run, that its steps can be timed."""
TIMEOUT = 240.0
"""Seconds that a run may take longer than its training."""


@dataclass(frozen=True)
class Trained:
    """What came of one run."""

    useful: float
    """Worker-steps."""
    loss: float
    seconds: float
    """From the first step's beginning to the last one's end."""
    restart: float | None = None
    """Seconds from the start of a replacement until it trained, the median; None where there was none."""


@dataclass(frozen=True)
class Setting:
    """Of all runs."""

    learners: int
    seconds: float
    failures: str
    seed: int


def environment(**more: str) -> dict[str, str]:
    ours = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **ours, **more}


def by_quorate(arm: str, setting: Setting, place: Path, until: str, *, is_struck: bool) -> Trained:
    """One run of ours; its useful steps are those that its records tell of."""
    from quorate.report.figures.goodput import goodput_of
    from quorate.report.reading.run import read_run

    words = [sys.executable, "-m", "quorate.cli.main", "run", "-n", str(setting.learners), "--name", "run"]
    words += ["--min-step-time", f"{PACE * 1000:g}ms"]
    if is_struck:
        words += ["--chaos", str(setting.seed), "--failures", setting.failures]
    said = subprocess.run(
        [*words, TRAINING, arm, until, str(place)],
        cwd=place, env=environment(), capture_output=True, text=True, timeout=setting.seconds + TIMEOUT, check=False,
    )  # fmt: skip
    if said.returncode:
        raise SystemExit(f"{arm} ended with status {said.returncode}: {said.stderr[-2000:]}")
    found = goodput_of(read_run(place / "runs" / "run"), PACE)
    assert found is not None
    seconds = found.possible / setting.learners * PACE
    loss = json.loads((place / "result.json").read_text())["loss"]
    return Trained(found.useful, loss, seconds, restart_in(place / "runs" / "run"))


def restart_in(folder: Path) -> float | None:
    """What a replacement has taken until it trained, by the records of a run under chaos."""
    from quorate.records.records import ranks_in, records_of, rows

    if not (folder / "chaos.jsonl").exists():
        return None
    joined = {row["rank"]: row["time"] for rank in ranks_in(folder) for row in rows(records_of(folder, rank))
              if row["kind"] == "joined"}  # fmt: skip
    events = list(rows(folder / "chaos.jsonl"))
    zero = next(row["now"] for row in events if row["kind"] == "begin")
    began = {row["worker"]: zero + row["time"] for row in events if row.get("done") == "restarted"}
    took = [joined[worker] - at for worker, at in began.items() if worker in joined]
    return statistics.median(took) if took else None


def foretold(arm: str, setting: Setting, restart: float, step: float) -> float:
    """The goodput that `quorate simulate --failures` tells of the same schedule: see `simulation.failing`."""
    from quorate.inject.failures import failures_from
    from quorate.simulation.failing.playing import play
    from quorate.simulation.failing.recovery import recovery_from

    strategy, settings = ARMS[arm]
    failures = failures_from(f"{setting.failures},restart={max(restart, 0.001):.3f}s")
    found = play(
        failures, setting.learners, learners=setting.learners if arm != "all-reduce" else 1, strategy=strategy,
        settings=settings, seconds=setting.seconds, seed=setting.seed, step=step, recovery=recovery_from(KNOWN),
    )  # fmt: skip
    return found.goodput


def by_torchrun(setting: Setting, place: Path, until: str, *, is_struck: bool) -> Trained:
    """One run of torch DDP; a step of it is one of every worker."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(setting.learners)]
    words += ["--max-restarts", "1000", "--monitor-interval", "0.1", TRAINING, DDP, until, str(place)]
    more = {FAILURES: setting.failures, CHAOS: str(setting.seed)} if is_struck else {}
    log = place / "log"
    with log.open("w") as out:
        run = subprocess.Popen(words, cwd=place, env=environment(**more), stdout=out, stderr=out)
    end = time.monotonic() + setting.seconds + TIMEOUT
    try:
        strikes = Strikes(setting, place) if is_struck else None
        while run.poll() is None:
            if time.monotonic() > end:
                raise SystemExit(
                    f"torchrun had not ended after {setting.seconds + TIMEOUT:g} s: {log.read_text()[-2000:]}"
                )
            if strikes is not None:
                strikes.look()
            time.sleep(0.02)
    finally:
        run.kill()
        run.wait()
    if run.returncode:
        raise SystemExit(f"torchrun ended with status {run.returncode}: {log.read_text()[-2000:]}")
    result = json.loads((place / "result.json").read_text())
    return Trained(result["steps"] * setting.learners, result["loss"], result["seconds"])


class Strikes:
    """What `quorate.launch.local.chaos` does, to torchrun's workers; it tells them in `started` when it begins."""

    def __init__(self, setting: Setting, place: Path) -> None:
        from quorate.inject.failures import failures_from

        self._setting, self._place = setting, place
        self._schedule = failures_from(setting.failures).schedule(setting.learners, setting.seed)
        self._next = next(self._schedule)
        self._began: float | None = None
        self._stopped: dict[int, float] = {}

    def look(self) -> None:
        now = time.monotonic()
        if self._began is None:
            if any(self._pid(rank) is None for rank in range(self._setting.learners)):
                return
            self._began = now
            new = self._place / "started.new"
            new.write_text(repr(now))
            new.replace(self._place / "started")
        for pid, until in list(self._stopped.items()):
            if until <= now:
                del self._stopped[pid]
                send(pid, signal.SIGCONT)
        while self._began + self._next.time <= now < self._began + self._setting.seconds:
            one, self._next = self._next, next(self._schedule)
            for rank in one.ranks:
                pid = self._pid(rank)
                if pid is not None and one.kind == "death":
                    send(pid, signal.SIGKILL)
                elif pid is not None and one.kind == "stop":
                    self._stopped[pid] = self._began + one.time + one.seconds
                    send(pid, signal.SIGSTOP)

    def _pid(self, rank: int) -> int | None:
        """That of a worker that trains."""
        path = self._place / f"pid-{rank}"
        text = path.read_text() if path.exists() else ""
        return int(text) if text and send(int(text), 0) else None


def send(pid: int, signum: int) -> bool:
    """Whether there was such a process."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return False
    return True


def trained(arm: str, setting: Setting, until: str, *, is_struck: bool) -> Trained:
    with tempfile.TemporaryDirectory() as place:
        if arm == DDP:
            return by_torchrun(setting, Path(place), until, is_struck=is_struck)
        return by_quorate(arm, setting, Path(place), until, is_struck=is_struck)


def main() -> int:
    """Measure, print, and hold the bars."""
    import record

    parser = record.arguments(__doc__ or "")
    parser.add_argument("--arm", choices=(DDP, *ARMS), action="append", help="only this; may be given several times")
    parser.add_argument("--seconds", type=float, help=f"of each run that is struck ({SECONDS:g})")
    parser.add_argument("--learners", type=int, help=f"processes ({LEARNERS})")
    parser.add_argument("--failures", default=FAILING, help=f"as of quorate run ({FAILING})")
    parser.add_argument("--seed", type=int, default=0, help="of their schedule (0)")
    given = parser.parse_args()
    arms = given.arm or (QUICK if given.quick else (DDP, *ARMS))
    learners, seconds = (4, 10.0) if given.quick else (LEARNERS, SECONDS)
    setting = Setting(given.learners or learners, given.seconds or seconds, given.failures, given.seed)
    there = importlib.util.find_spec("torchft") is not None
    about: dict[str, Any] = {**vars(setting), "pace": PACE, "arms": {arm: ARMS.get(arm) for arm in arms}}
    about["torchft"] = "installed, and there is no arm for it here" if there else "not installed, not measured"
    print(f"torchft: {about['torchft']}")

    report = record.Report("goodput", about)
    goodput: dict[str, float] = {}
    losses: dict[str, float] = {}
    told: dict[str, float] = {}
    for arm in arms:
        struck = trained(arm, setting, f"{setting.seconds:g}s", is_struck=True)
        steps = max(LEAST_STEPS, round(struck.useful / setting.learners))
        calm = trained(arm, setting, str(steps), is_struck=False)
        possible = setting.learners * setting.seconds * steps / calm.seconds
        goodput[arm], losses[arm] = struck.useful / possible, struck.loss / calm.loss
        report.rows.append(record.figure(f"{arm}: goodput", [goodput[arm]]))
        report.rows.append(record.figure(f"{arm}: undisturbed, seconds of a step", [calm.seconds / steps]))
        report.rows.append(record.figure(f"{arm}: loss, struck / undisturbed", [losses[arm]]))
        if struck.restart is not None:
            told[arm] = foretold(arm, setting, struck.restart, calm.seconds / steps)
            report.rows.append(record.figure(f"{arm}: seconds until a replacement trained", [struck.restart]))
            report.rows.append(record.figure(f"{arm}: goodput, simulated", [told[arm]]))
        sys.stderr.write(
            f"{arm}: goodput {goodput[arm]:.3f} ({struck.useful:.0f} useful steps), loss {struck.loss:.4f}; "
            f"undisturbed, {steps} steps of each in {calm.seconds:.1f} s: {calm.loss:.4f}\n"
        )
    best = max((goodput[arm] for arm in SYNCHRONOUS if arm in goodput), default=0.0)
    mine = goodput.get(BEST)
    report.bar(f"{BEST}: goodput", mine, at_least=0.88)
    ratio = mine / best if mine is not None and best else None
    report.bar(f"goodput, {BEST} / the best synchronous one", ratio, at_least=1.5)
    report.bar(f"{BEST}: loss, struck / undisturbed", losses.get(BEST), at_most=1.02)
    for arm, simulated in told.items():
        report.bar(f"{arm}: goodput, simulated / measured", simulated / goodput[arm], at_least=0.95, at_most=1.05)
    return report.show(given)


if __name__ == "__main__":
    sys.exit(main())
