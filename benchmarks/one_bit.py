"""One-bit optimizers: bytes beside their formula, the loss beside Adam's, and time to equal loss over a slow network.

Published (Tang et al., ICML 2021): 1-bit Adam with a warm-up of 15 % sends a fifth of the bytes of Adam and reaches its
loss; over 40 GbE, where exchanges took 94 % of a step, steps were 3.3 times as fast. Here four virtual workers train a
transformer of 0.13 million parameters on the bytes of the standard library, each arm with the same seeds:

- `all-reduce` with Adam, and with LAMB; `one-bit-adam` with both scales, `zero-one-adam`, `one-bit-lamb`, all with a
  freeze after 15 % of the steps and a rate that rises in the first 10 %; and codes of gradients under the live variance
  of Adam (`all-reduce` with `compress="sign"`), which is what these methods avoid;
- figures: loss on held-out text in the end, over that of Adam (of LAMB); bytes that a worker sends over those of Adam,
  and over their formula.

With `--hosts` four hosts (network namespaces, for root on Linux) of one worker, joined by links of 100 Mbit/s, train
the transformer of `slow_network.py` (10.8 million parameters). `all-reduce` with Adam makes `--hosts-steps` steps; each
other arm trains until its loss is as low, checked every five steps, for eight times as many at most. A figure is the
share of a step of `all-reduce` that is not computing.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]

import record  # noqa: E402
import torch  # noqa: E402

import quorate  # noqa: E402
from quorate.workloads.stdlib_bytes import StdlibBytes  # noqa: E402
from tests.support.hosts import are_possible, hosts  # noqa: E402
from tests.support.joined import joined  # noqa: E402

WORKERS, STEPS, BATCH, RATE, SHARE = 4, 400, 8, 3e-3, 0.15
TEXT = StdlibBytes(length=64, width=64, layers=2, heads=4, most_bytes=2_000_000, test_windows=256)
COUNT, LINK, HOST_RATE, SMOOTHED, EVERY, MOST = 4, "100mbit", 5e-4, 10, 5, 8


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One of the trainings that are compared."""

    strategy: str = "all-reduce"
    settings: Mapping[str, Any] = field(default_factory=dict)
    lamb: bool = False

    @property
    def base(self) -> str:
        """The arm whose loss it is held against."""
        return "lamb" if self.lamb else "adam"

    def optimizer(self, model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
        """Adam, or LAMB with a rate that suits it."""
        if self.lamb:
            return quorate.optim.LAMB(model.parameters(), lr=4 * rate)
        return torch.optim.Adam(model.parameters(), lr=rate)

    def settings_for(self, steps: int) -> dict[str, Any]:
        """The settings of `distribute`, with a freeze after a share of the steps."""
        freezes = "one" in self.strategy
        return {**self.settings, **({"freeze": SHARE, "total_steps": steps} if freezes else {})}


ARMS: dict[str, Arm] = {
    "adam": Arm(),
    "one-bit-adam": Arm(strategy="one-bit-adam"),
    "one-bit-adam, scale l1": Arm(strategy="one-bit-adam", settings={"scale": "l1"}),
    "zero-one-adam": Arm(strategy="zero-one-adam", settings={"double_every": 100, "longest": 4}),
    "zero-one-adam, no local steps": Arm(strategy="zero-one-adam", settings={"longest": 1}),
    "one-bit gradients": Arm(settings={"compress": "sign", "scale": "l2", "reduce": "two-phase"}),
    "lamb": Arm(lamb=True),
    "one-bit-lamb": Arm(strategy="one-bit-lamb", lamb=True),
}
QUICK = ("adam", "one-bit-adam", "zero-one-adam")
BARRED = ("one-bit-adam", "zero-one-adam", "one-bit-lamb")
"""The arms whose loss is held against a limit."""


@dataclass(frozen=True)
class End:
    """The end of a training: the loss on held-out text, and the bytes that a worker has sent in the mean."""

    loss: float
    nbytes: float
    formula: float
    """The bytes of `one-bit-adam` by its card; 0 for others."""


@cache
def windows(train: bool) -> torch.Tensor:
    """All windows of the text."""
    dataset = TEXT.dataset(train=train)
    return torch.stack([dataset[place] for place in range(len(dataset))]).long()


def trained(arm: Arm, seed: int, steps: int) -> End:
    """Train with four virtual workers."""
    text, held_out = windows(train=True), windows(train=False)

    def live(world: quorate.World) -> tuple[float, float, float]:
        model = TEXT.model(seed)
        optimizer: Any = arm.optimizer(model, RATE)
        optimizer = quorate.distribute(optimizer, model, arm.strategy, **arm.settings_for(steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 10 * (step + 1) / steps))
        draw = torch.Generator().manual_seed(1000 * seed + world.rank)
        bytes_out = optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out
        before = sum(bytes_out.values())
        for _ in range(steps):
            optimizer.zero_grad()
            x = text[torch.randint(0, len(text), (BATCH,), generator=draw)]
            loss_of(model, x).backward()
            optimizer.step()
            schedule.step()
        sent = sum(bytes_out.values()) - before
        formula = bytes_of(optimizer.__dict__["_quorate_worker"], steps) if arm.strategy == "one-bit-adam" else 0.0
        optimizer.finish()
        with torch.no_grad():
            return float(loss_of(model, held_out)), float(sent), formula

    from quorate.wire.virtual.world import VirtualWorld

    with contextlib.redirect_stderr(io.StringIO()):
        ends = VirtualWorld(WORKERS, seed=seed, generators=True).run(joined(live))
    return End(ends[0][0], sum(sent for _, sent, _ in ends) / WORKERS, ends[0][2])


def loss_of(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of the next byte."""
    return torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def bytes_of(worker: Any, steps: int) -> float:
    """The bytes of `one-bit-adam` as its card says, for a worker in the mean; the units are one more dense sum. Numbers
    that had no gradient before the freeze, of bytes that the text does not have, are in no code."""
    parts, share = worker.means.layout.parts, 2 * (WORKERS - 1) / WORKERS
    state, trained = (
        worker.replica.optimizer.state,
        dict(zip(worker.replica.names, worker.replica.trained, strict=True)),
    )
    touched = [0] * len(parts)
    for segment in worker.means.layout.segments:
        touched[segment.part] += int(state[trained[segment.name]]["exp_avg_sq"].count_nonzero())
    dense = sum(4 * part.numel for part in parts)
    coded = sum(
        numbers / 8 + 4 * WORKERS if part.coded else 4 * part.numel
        for part, numbers in zip(parts, touched, strict=True)
    )
    warm_up = round(SHARE * steps)
    return share * ((warm_up + 1) * dense + (steps - warm_up) * coded)


def measure_losses(report: record.Report, names: Sequence[str], seeds: int, steps: int, *, is_whole: bool) -> None:
    """Train all arms, and report losses and bytes."""
    ends: dict[str, list[End]] = {name: [] for name in names}
    for seed in range(seeds):
        for name in names:
            end = trained(ARMS[name], seed, steps)
            ends[name].append(end)
            print(f"seed {seed}, {name}: loss {end.loss:.4f}, {end.nbytes / 1e6:.2f} MB", file=sys.stderr, flush=True)
    for name, of_arm in ends.items():
        base = ends[ARMS[name].base]
        losses = [end.loss / other.loss for end, other in zip(of_arm, base, strict=True)]
        fewer = [other.nbytes / end.nbytes for end, other in zip(of_arm, base, strict=True)]
        report.rows.append(record.figure(f"{name}: loss", [end.loss for end in of_arm]))
        report.rows.append(record.figure(f"{name}: loss / {ARMS[name].base}", losses))
        report.rows.append(record.figure(f"{name}: times fewer bytes", fewer))
        if name in BARRED:
            median = record.median_of(losses)
            report.bar(f"{name}: loss / {ARMS[name].base}", median if is_whole else None, at_most=1.01)
    ours = ends["one-bit-adam"]
    report.rows.append(record.figure("one-bit-adam: bytes / formula", [end.nbytes / end.formula for end in ours]))
    away = max(abs(end.nbytes / end.formula - 1) for end in ours)
    report.bar("one-bit-adam: bytes differ from the formula by", away, at_most=0.01)
    fewer = [other.nbytes / end.nbytes for end, other in zip(ours, ends["adam"], strict=True)]
    report.bar("one-bit-adam: times fewer bytes than Adam", record.median_of(fewer), at_least=5.0)


# -- over a slow network


@dataclass(frozen=True)
class HostArm:
    """A training on hosts: `steps` at most, and no more once the loss is at most `target`."""

    name: str
    steps: int
    target: float
    warm_up: int
    folder: str = ""

    @property
    def call(self) -> dict[str, Any]:
        """The strategy and its settings."""
        calls: dict[str, dict[str, Any]] = {
            "all-reduce": {"strategy": "all-reduce"},
            "one-bit-adam": {"strategy": "one-bit-adam", "freeze": self.warm_up},
            "zero-one-adam": {"strategy": "zero-one-adam", "freeze": self.warm_up, "doubles_after": self.warm_up},
            "power-sgd": {"strategy": "all-reduce", "compress": "power-sgd", "rank": 4, "start": 2},
            "streaming-diloco": {"strategy": "streaming-diloco", "sync_every": 20},
        }
        return calls[self.name]


HOST_ARMS = ("all-reduce", "one-bit-adam", "zero-one-adam", "power-sgd", "streaming-diloco")


def train_on_host(arm: HostArm, world: Any) -> dict[str, float]:
    """Train one worker, whose links are slow from the third step on."""
    from hosts import through_the_cable, until_slow
    from slow_network import batches, network

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = network()
    optimizer: Any = torch.optim.Adam(model.parameters(), lr=HOST_RATE)
    optimizer = quorate.distribute(optimizer, model, **arm.call)
    draws, losses = batches(world.rank), deque[float](maxlen=SMOOTHED)

    def compute() -> None:
        loss = loss_of(model, next(draws))
        loss.backward()
        losses.append(float(loss))

    def step() -> None:
        compute()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    begin = time.monotonic()
    with optimizer.accumulate():
        compute()
    alone = time.monotonic() - begin
    optimizer.zero_grad()
    until_slow(arm.folder, world)
    carried, begin, count, mean = through_the_cable(), time.monotonic(), 2, float("inf")
    while count < arm.steps and mean > arm.target:
        step()
        count += 1
        if count % EVERY == 0:
            mean = world.mean(sum(losses) / len(losses))
    took = time.monotonic() - begin
    moved = max(now - then for now, then in zip(through_the_cable(), carried, strict=True))
    share = 1 - alone / (took / (count - 2))
    return {"seconds": took, "steps": count, "bytes": moved, "loss": mean, "communication": share}


def measure_hosts(report: record.Report, turns: int, steps: int, names: Sequence[str]) -> None:
    """Measure the time that each arm needs to the loss of `all-reduce`."""
    from hosts import run_slowed

    ends: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with hosts(COUNT) as on:
        for turn in range(turns):
            for name in names:
                is_first = name == "all-reduce"
                target = float("-inf") if is_first else ends["all-reduce"][-1]["loss"]
                arm = HostArm(name, steps * (1 if is_first else MOST), target, max(1, round(SHARE * steps)))
                end = slowest(run_slowed(on, LINK, lambda folder, arm=arm: partial(train_on_host, at(arm, folder))))
                ends[name].append(end)
                words = ", ".join(f"{key} {value:.4g}" for key, value in end.items())
                print(f"turn {turn + 1}, {name}: {words}", file=sys.stderr, flush=True)
    for name, of_arm in ends.items():
        for key in ("seconds", "steps", "bytes"):
            report.rows.append(record.figure(f"hosts, {name}: {key}", [end[key] for end in of_arm]))
        pairs = list(zip(ends["all-reduce"], of_arm, strict=True))
        if name != "all-reduce" and all(ours["loss"] <= theirs["loss"] for theirs, ours in pairs):
            ratios = [theirs["seconds"] / ours["seconds"] for theirs, ours in pairs]
            report.rows.append(record.figure(f"hosts: time of all-reduce / {name}, to equal loss", ratios))
    shares = [end["communication"] for end in ends["all-reduce"]]
    report.bar("hosts: share of communication in all-reduce", record.median_of(shares), at_least=0.9)
    reached = [row for row in report.rows if row.name == "hosts: time of all-reduce / one-bit-adam, to equal loss"]
    is_measured = "one-bit-adam" in names
    ratio = (reached[0].median if reached else 0.0) if is_measured else None
    report.bar("hosts: time of all-reduce / one-bit-adam, to equal loss", ratio, at_least=3.3)


def at(arm: HostArm, folder: str) -> HostArm:
    """Return the arm with the folder in which links are announced to be slow."""
    return replace(arm, folder=folder)


def slowest(ends: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the largest figure of all workers, and the least share of communication."""
    most = {name: max(end[name] for end in ends) for name in ends[0]}
    return {**most, "communication": min(end["communication"] for end in ends)}


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--seeds", type=int, default=3, help="of every training (3)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of every worker ({STEPS})")
    parser.add_argument("--hosts", action="store_true", help="measure over a slow network, in place of losses")
    parser.add_argument("--hosts-steps", type=int, default=60, help="of all-reduce there (60)")
    parser.add_argument("--turns", type=int, default=3, help="of all arms there (3)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.hosts and not are_possible():
        print("--hosts needs root on Linux, to make network namespaces", file=sys.stderr)
        return 2
    about: dict[str, Any] = {"workers": WORKERS, "steps": options.steps, "share": SHARE, "rate": RATE, "batch": BATCH}
    report = record.Report("one_bit", about)
    if options.hosts:
        turns, steps, names = (
            (1, 8, HOST_ARMS[:1]) if options.quick else (options.turns, options.hosts_steps, HOST_ARMS)
        )
        measure_hosts(report, turns, steps, names)
    else:
        seeds, steps, names = (1, 60, QUICK) if options.quick else (options.seeds, options.steps, tuple(ARMS))
        measure_losses(report, names, seeds, steps, is_whole=not options.quick)
    return report.show(options)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
