"""A training among hosts whose cables are cut: who goes on, from when on, and how the others end."""

from __future__ import annotations

import json
import os
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.hosts import Host
from tests.support.programs import Program
from tests.support.seats import on_hosts

SCRIPT = textwrap.dedent(
    """
    import hashlib, json, os, sys, time, torch, quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=120, records=False)
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(8, int(sys.argv[2])), torch.nn.Linear(int(sys.argv[2]), 1))
    choice = json.loads(sys.argv[1])
    plain = torch.optim.SGD(model.parameters(), lr=0.001 / model[0].out_features)
    optimizer = quorate.distribute(plain, model, **choice)
    told = open(f"steps-{world.rank}", "a", buffering=1)
    worker = optimizer.__dict__["_quorate_worker"]

    def digest():
        return hashlib.sha256(b"".join(x.detach().numpy().tobytes() for x in model.parameters())).hexdigest()[:16]

    while not os.path.exists("stop"):
        optimizer.zero_grad()
        time.sleep(0.01)
        arrive = time.monotonic()
        model(torch.full((4, 8), 1.0 + world.rank)).square().mean().backward()
        optimizer.step()
        told.write(f"{time.monotonic()} {arrive} {worker.version} {digest()}\\n")
    optimizer.finish()
    rounds = worker._rounds
    print("end", digest(), 0.0 if rounds is None else rounds.rounds.ledger.lost, flush=True)
    """
)


@dataclass(frozen=True)
class Ended:
    """One worker, when all is over."""

    status: int
    out: str
    said: str
    """On stderr, what is Quorate's."""


@dataclass(frozen=True)
class Step:
    """One of a worker's."""

    end: float
    arrive: float
    """When its exchange began."""
    updates: int
    """How many means its parameters are made of."""
    digest: str
    """Of the parameters behind it."""


class CutTraining:
    """Workers under way on the host of each rank; ends with the block."""

    def __init__(
        self,
        on: Sequence[Host],
        folder: Path,
        silence: float,
        width: int = 8,
        most: int | None = None,
        **choice: object,
    ) -> None:
        """`width` of the model; `most`: how many workers there may ever be."""
        (folder / "script.py").write_text(SCRIPT)
        self._folder, self._words = folder, ["script.py", json.dumps(choice), str(width)]
        self._more = {"QUORATE_SILENCE": f"{silence}s"}
        if most is not None:
            self._more["QUORATE_MAX_WORKERS"] = str(most)
        self._seats = on_hosts(on)
        self.workers = [self._begun(host, own) for host, own in zip(on, self._seats, strict=True)]

    def _begun(self, host: Host, own: dict[str, str]) -> Program:
        return Program(self._words, cwd=self._folder, env={**os.environ, **own, **self._more}, inside=host.pid)

    def join(self, host: Host) -> None:
        """One more, on `host`."""
        own = {**self._seats[0], "RANK": str(len(self.workers)), "LOCAL_RANK": "0"}
        self.workers.append(self._begun(host, own))

    def __enter__(self) -> CutTraining:
        self.until(lambda: all(self.steps(rank) >= 5 for rank in range(len(self.workers))))
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self.workers:
            worker.kill()
            worker.communicate()

    def until(self, is_so: Callable[[], bool], most: float = 180.0) -> float:
        """Return when it is; the time."""
        until = time.monotonic() + most
        while not is_so():
            if time.monotonic() > until:
                raise TimeoutError("it does not come to pass")
            time.sleep(0.01)
        return time.monotonic()

    def told(self, rank: int) -> list[Step]:
        """Its steps."""
        try:
            lines = (self._folder / f"steps-{rank}").read_text().splitlines()
        except FileNotFoundError:
            return []
        rows = [line.split() for line in lines]
        return [Step(float(row[0]), float(row[1]), int(row[2]), row[3]) for row in rows if len(row) == 4]

    def times(self, rank: int) -> list[float]:
        """When they have ended."""
        return [step.end for step in self.told(rank)]

    def steps(self, rank: int) -> int:
        """How many it has made."""
        return len(self.times(rank))

    def goes_on(self, ranks: Sequence[int], steps: int = 20) -> None:
        """Return when each of them has made so many more."""
        begin = {rank: self.steps(rank) for rank in ranks}
        self.until(lambda: all(self.steps(rank) >= begin[rank] + steps for rank in ranks))

    def stopped(self, rank: int, seconds: float = 60.0) -> Ended:
        """How the worker has ended, by itself."""
        worker = self.workers[rank]
        out, err = worker.communicate(timeout=seconds)
        said = "\n".join(line for line in err.splitlines() if not line.startswith("[W"))
        assert worker.returncode is not None
        return Ended(worker.returncode, out, said)

    def finish(self, ranks: Sequence[int]) -> list[Ended]:
        """Let those that are left end well."""
        (self._folder / "stop").touch()
        return [self.stopped(rank) for rank in ranks]
