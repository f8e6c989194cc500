"""What does a step cost among several hosts, and what does a host that is late cost the others?

Two and four hosts (network namespaces, so for root on Linux) of two workers each, joined by links of 1 Gbit/s and
100 Mbit/s, train models of 5 and 26 million parameters under torch DDP, `all-reduce`, `quorum` of all, of half, and
`eager-solo`, one after the other (A B C D E, B C D E A, ...), each also with the last host late by 200 ms in a step. At
1 Gbit/s `all-reduce` with the codec `half` (float16) and DDP with torch's hook for float16 take turns with them.

- seconds a step: the number of workers over the steps that all of them make in a second;
- a round: of `quorum` of all, seconds over rounds formed, held against a step of `all-reduce`;
- to finish: seconds from the last step until all replicas are equal, where results are still on their way to a host;
- bytes: what goes into, or out of, the host where it is most, a step, over the bytes of the gradient; the least that
  any all-reduce among n hosts can do is 2 (n - 1) / n;
- the ideal where nobody waits: every worker makes its steps as fast as it does with nobody late, and the delay longer
  where it is late.

All share the cores of one machine, which do what the network cards and the kernels of several hosts would do.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402

from tests.support.hosts import Host, are_possible, hosts  # noqa: E402
from tests.support.processes import run_real_world  # noqa: E402

ON_EACH = 2
HOSTS = (2, 4)
RATES = {"1gbit": 125e6, "100mbit": 12.5e6}
"""Bytes a second."""
LAYERS = {"5 M": 5, "26 M": 26}
WIDTH, BATCH = 1000, 8
DELAY = 0.2
DDP, ALL_REDUCE, OF_ALL, OF_HALF, SOLO = "ddp", "all-reduce", "quorum of all", "quorum of half", "eager-solo"
DDP_FLOAT16, FLOAT16 = "ddp with the float16 hook", "all-reduce, half"
ARMS = (DDP, ALL_REDUCE, OF_ALL, OF_HALF, SOLO, DDP_FLOAT16, FLOAT16)
HALVES = (DDP_FLOAT16, FLOAT16)
"""At 1 Gbit/s, and with nobody late."""
IN_STEP = (DDP, ALL_REDUCE, OF_ALL, DDP_FLOAT16, FLOAT16)
"""Under which all make equally many steps."""
LIMIT = 900.0


@dataclass(frozen=True)
class Arm:
    """One of what is measured, on one network."""

    name: str
    hosts: int
    layers: int
    seconds: float
    """For which those train that need not make as many steps as others."""
    steps: int
    """Of those that need."""
    is_late: bool
    folder: str
    alternates: bool = False
    """Whether neighbouring ranks are on different hosts, as under `mpirun --map-by node`."""

    def host_of(self, rank: int) -> int:
        """By number."""
        return rank % self.hosts if self.alternates else rank // ON_EACH


def train(arm: Arm, world: Any) -> dict[str, float]:
    """One worker's part."""
    import torch
    from torch import nn
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    import quorate

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(arm.layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    has_rounds = arm.name in (OF_ALL, OF_HALF, SOLO)
    if arm.name in (DDP, DDP_FLOAT16):
        parallel = DistributedDataParallel(model)
        if arm.name == DDP_FLOAT16:
            parallel.register_comm_hook(None, fp16_compress_hook)
        model = parallel
    elif arm.name == FLOAT16:
        optimizer = quorate.distribute(optimizer, model, ALL_REDUCE, compress="half", dtype="float16")
    else:
        waits: dict[str, Any] = {OF_ALL: {"wait_for": "all"}, OF_HALF: {"wait_for": world.size // 2}}.get(arm.name, {})
        optimizer = quorate.distribute(optimizer, model, "quorum" if waits else arm.name, **waits)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(world.rank))
    delay = DELAY if arm.is_late and arm.host_of(world.rank) == arm.hosts - 1 else 0.0

    def step() -> None:
        time.sleep(delay)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def rounds() -> float:
        return float(optimizer.__dict__["_quorate_worker"].rounds.version) if has_rounds else 0.0

    for _ in range(2):
        step()
    until_slow(arm.folder, world)
    step()  # from here on links are as slow as they are to be, and connections learn it
    formed, carried, begin, count = rounds(), through_the_cable(), time.monotonic(), 0
    while count < arm.steps if arm.name in IN_STEP else time.monotonic() < begin + arm.seconds:
        step()
        count += 1
    took = time.monotonic() - begin
    found = {"steps": count / took, "rounds": (rounds() - formed) / took}
    found["bytes"] = max(now - then for now, then in zip(through_the_cable(), carried, strict=True)) / count
    if has_rounds:
        optimizer.finish()  # type: ignore[attr-defined]
    found["finish"] = time.monotonic() - begin - took
    return found


def until_slow(folder: str, world: Any) -> None:
    """Say that all are ready, and wait until links are as slow as they are to be: see `run_slowed`."""
    world.barrier()
    if world.is_first:
        Path(folder, "ready").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.005)
    world.barrier()


def through_the_cable() -> tuple[int, int]:
    """Bytes that this host has been sent, and has sent."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if "cable" in line]
    numbers = line.split(":")[1].split()
    return int(numbers[0]), int(numbers[8])


def measured(on: Sequence[Host], rate: str, arm: Arm) -> list[dict[str, float]]:
    """What every worker says; links are slow only once replicas are alike."""
    places = [on[arm.host_of(rank)] for rank in range(ON_EACH * len(on))]
    return run_slowed(places, rate, lambda folder: partial(train, replace(arm, folder=folder)))


def run_slowed(
    places: Sequence[Host], rate: str, task_in: Callable[[str], Callable[[Any], dict[str, float]]]
) -> list[dict[str, float]]:
    """What every worker's task says, each on the host of its rank in `places`; `task_in(folder)` calls
    `until_slow(folder)` where links are to be made as slow as `rate`."""
    on = list(dict.fromkeys(places))
    with tempfile.TemporaryDirectory() as folder:

        def slow_down() -> None:
            begin = time.monotonic()
            while not Path(folder, "ready").exists():
                if time.monotonic() > begin + LIMIT:
                    return
                time.sleep(0.01)
            for host in on:
                host.limit(rate)
            Path(folder, "go").touch()

        for host in on:
            host.limit(None)
        slower = threading.Thread(target=slow_down, daemon=True)
        slower.start()
        environment = {"OMP_NUM_THREADS": "1", "QUORATE_SILENCE": "60s"}
        return run_real_world(len(places), task_in(folder), LIMIT, on=places, environment=environment)


class Network:
    """All that was measured on one."""

    def __init__(self, count: int, rate: str, size: str, *, alternates: bool = False) -> None:
        self.count, self.rate, self.size, self.alternates = count, rate, size, alternates
        self.name = f"{count} hosts, {rate}, {size}" + (", ranks alternate" if alternates else "")
        self.nbytes = 4 * LAYERS[size] * (WIDTH * WIDTH + WIDTH)
        self.found: dict[tuple[str, bool], list[list[dict[str, float]]]] = {}

    def measure(self, turns: int, steps: int, arms: Sequence[tuple[str, bool]]) -> None:
        """Every arm, each with whether a host is late, turn by turn."""
        exchange = 2 * (self.count - 1) / self.count * self.nbytes / RATES[self.rate]
        seconds = steps * (exchange + 0.03 * LAYERS[self.size] * self.count / 2)
        with hosts(self.count) as on:
            for turn in range(turns):
                first = turn % len(arms)
                for name, is_late in (*arms[first:], *arms[:first]):
                    arm = Arm(name, self.count, LAYERS[self.size], seconds, steps, is_late, "", self.alternates)
                    said = measured(on, self.rate, arm)
                    self.found.setdefault((name, is_late), []).append(said)
                    late = ", a host late" if is_late else ""
                    print(f"{self.name}, turn {turn + 1}, {name}{late}: {a_step(said):.3f} s a step", flush=True)

    def report(self, report: record.Report) -> None:
        """All figures and bars."""
        for (name, is_late), turns in self.found.items():
            late = ", a host late" if is_late else ""
            report.rows.append(record.figure(f"{self.name}: s a step, {name}{late}", [a_step(t) for t in turns]))
        ddp, ours = self.found[DDP, False], self.found[ALL_REDUCE, False]
        ratio = record.figure(f"{self.name}: all-reduce / DDP", [a_step(d) / a_step(o) for d, o in _pairs(ddp, ours)])
        carried = {name: [self.bytes(t) for t in turns] for (name, is_late), turns in self.found.items() if not is_late}
        shares = [record.figure(f"{self.name}: bytes, {name}", some) for name, some in carried.items()]
        report.rows += [ratio, *shares]
        report.bar(f"{self.name}: the interval of all-reduce / DDP reaches", ratio.high, at_least=1.0)
        least = 2 * (self.count - 1) / self.count
        (share,) = [share for share, name in zip(shares, carried, strict=True) if name == ALL_REDUCE]
        report.bar(f"{self.name}: bytes, all-reduce / the least", share.median / least, at_most=1.01)
        if (OF_ALL, False) in self.found:
            ratios = [a_round(t) / a_step(o) for t, o in _pairs(self.found[OF_ALL, False], ours)]
            report.rows.append(record.figure(f"{self.name}: a round / all-reduce", ratios))
            report.bar(f"{self.name}: a round / all-reduce", report.rows[-1].median, at_most=1.2)
        if (FLOAT16, False) in self.found and (DDP_FLOAT16, False) in self.found:
            hook, halves = self.found[DDP_FLOAT16, False], self.found[FLOAT16, False]
            ratios = [a_step(h) / a_step(o) for h, o in _pairs(hook, halves)]
            report.rows.append(record.figure(f"{self.name}: half / DDP with its own hook", ratios))
            report.bar(f"{self.name}: half / DDP with its own hook", report.rows[-1].median, at_least=1.0)
        for name in [one for one in (OF_HALF, SOLO) if (one, True) in self.found]:
            plain, late = self.found[name, False], self.found[name, True]
            ends = [max(one["finish"] for one in said) for said in plain]
            report.rows.append(record.figure(f"{self.name}: s to finish, {name}", ends))
            parts = [sum(one["steps"] for one in late) / self.ideal(plain) for plain, late in _pairs(plain, late)]
            report.rows.append(record.figure(f"{self.name}: {name}, a host late, of the ideal", parts))
            report.bar(f"{self.name}: {name}, a host late, of the ideal", report.rows[-1].median, at_least=0.95)

    def ideal(self, plain: list[dict[str, float]]) -> float:
        """Steps a second of all workers where the last host is late and nobody waits; `plain` without that."""
        arm = Arm("", self.count, 0, 0.0, 0, True, "", self.alternates)
        late = [DELAY if arm.host_of(rank) == self.count - 1 else 0.0 for rank in range(len(plain))]
        return sum(1 / (1 / one["steps"] + delay) for one, delay in zip(plain, late, strict=True))

    def bytes(self, said: list[dict[str, float]]) -> float:
        """Of a step, over those of the gradient, at the host where it is most."""
        return max(one["bytes"] for one in said) / self.nbytes


def _pairs(one: list[Any], other: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(one, other, strict=True))


def a_step(said: list[dict[str, float]]) -> float:
    """Seconds."""
    return len(said) / sum(one["steps"] for one in said)


def a_round(said: list[dict[str, float]]) -> float:
    """Seconds."""
    return len(said) / sum(one["rounds"] for one in said)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--turns", type=int, default=5, help="of all ways, on each network (5)")
    parser.add_argument("--steps", type=int, default=6, help="of DDP and all-reduce, each turn (6)")
    parser.add_argument("--hosts", type=int, nargs="*", default=HOSTS, help="how many (2 4)")
    parser.add_argument("--rates", nargs="*", default=list(RATES), choices=RATES, help="of the links")
    parser.add_argument("--sizes", nargs="*", default=list(LAYERS), choices=LAYERS, help="parameters")
    parser.add_argument(
        "--arms", nargs="*", default=list(ARMS), choices=ARMS, help="ddp and all-reduce among them (all)"
    )
    parser.add_argument("--alternate", action="store_true", help="put neighbouring ranks on different hosts")
    told = parser.parse_args()
    if not {DDP, ALL_REDUCE} <= set(told.arms):
        parser.error("--arms: ddp and all-reduce are what the others are compared with")
    if not are_possible():
        print("benchmarks/hosts.py needs root on Linux, to make network namespaces", file=sys.stderr)
        return 2
    turns, steps = (1, 4) if told.quick else (told.turns, told.steps)
    arms = [
        (name, is_late)
        for name, is_late in itertools.product(told.arms, (False, True))
        if not (is_late and (name in HALVES or (told.quick and name in IN_STEP)))
    ]
    counts, rates, sizes = ((2,), ["1gbit"], ["5 M"]) if told.quick else (told.hosts, told.rates, told.sizes)
    settings = {"workers a host": ON_EACH, "delay": DELAY, "batch": BATCH, "turns": turns, "steps": steps}
    report = record.Report("hosts", settings)
    for count, rate, size in itertools.product(counts, rates, sizes):
        network = Network(count, rate, size, alternates=told.alternate)
        network.measure(turns, steps, [arm for arm in arms if rate == "1gbit" or arm[0] not in HALVES])
        network.report(report)
    return report.show(told)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
