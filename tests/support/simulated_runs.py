"""Runs whose records are made from a simulation: everything about them is known, and nothing had to run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quorate.core.durations import Durations
from quorate.records.records import Recorder, records_of
from quorate.records.rows import Step
from quorate.simulation.busy import Modelled
from quorate.simulation.links import Links
from quorate.simulation.models import RoundTimes, times_of
from quorate.simulation.played import Case
from quorate.simulation.rounds import QuorumRun
from tests.support.raw_rows import RawRow


class _Told(QuorumRun):
    """Keeps whose contributions each round took in."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.taken: list[dict[int, list[int]]] = []

    def _forms(self, now: float) -> None:
        self.taken.append({rank: list(ages) for rank, ages in self._given.items()})
        super()._forms(now)


def make_simulated_run(
    folder: Path,
    strategy: str,
    compute: Durations,
    *,
    latency: float,
    workers: int = 4,
    steps: int = 80,
    **settings: Any,
) -> None:
    """The records of a run under `strategy` in which a message took `latency` seconds; parameters: 1000."""
    links = Links(text="made", latency=latency, bandwidth=1e30, is_mesh=True)
    case = Case(workers=workers, steps=steps, parameters=1000, busy=Modelled(compute=compute), links=links)
    times = times_of(strategy, settings)
    taken: list[dict[int, list[int]]] = []
    if isinstance(times, RoundTimes):
        run = _Told(case, times.agreed(workers, 0))
        played, taken = run.run(), run.taken
    else:
        played = times.play(case)
    folder.mkdir(parents=True)
    about = {"strategy": strategy, "workers": workers, "world": "real", "settings": settings, "seed": 0}
    (folder / "run.json").write_text(json.dumps(about))
    sent = case.nbytes if taken else played.bytes_out / len(played.rank)
    for rank in range(workers):
        recorder = Recorder(records_of(folder, rank))
        recorder.write(
            RawRow("start", rank=rank, size=workers, host="here", now=0.0, wall=None, clock="monotonic", seed=0)
        )
        told = {"optimizer": "1", "strategy": strategy, "settings": settings, "parameters": case.parameters}
        recorder.write(RawRow("distribute", algorithm="SGD", learning_rates=[0.1], **told))
        applied = 0
        places = [at for at, one in enumerate(played.rank) if one == rank]
        for number, place in enumerate(places, 1):
            begin, arrive, done, end = (
                column[place] for column in (played.begin, played.arrive, played.done, played.end)
            )
            away = latency if rank else 0.0
            there = sum(one.time + away <= done + 1e-9 for one in played.rounds)
            while rank == 0 and taken and applied < there:
                given = {
                    str(who): [[age, ages.count(age)] for age in sorted(set(ages))]
                    for who, ages in taken[applied].items()
                }
                applied += 1
                recorder.write(
                    RawRow(
                        "round", number=applied, time=done, weight=float(len(given)), live=workers, contributors=given
                    )
                )
            recorder.step(
                Step(
                    step=number,
                    optimizer="1",
                    round=there if played.rounds else number,
                    begin=begin,
                    arrive=arrive,
                    end=end,
                    compute=arrive - begin,
                    wait=done - arrive,
                    update=end - done,
                    examples=8,
                    bytes_out=round(sent),
                    contributors=workers,
                )
            )
        recorder.close()
