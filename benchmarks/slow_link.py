"""What do local steps spare where workers are joined by slow links?

Four network namespaces (for root on Linux), one worker in each, joined by a bridge over cables of 100 Mbit/s both ways
(token bucket filters), and a transformer of 1.4 million parameters on `stdlib-bytes`. Side by side, from the same
start and over the same data: torch DDP, `local-sgd` and `diloco`. Told are the seconds of a step, and the time until
the training loss of all workers is what DDP's is at the end of its run (of local steps: each on its own replica).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

WORKERS = 4
LINK = "100mbit"
LENGTH, BATCH = 64, 2
LAST = 20
"""Steps over which a loss is averaged, of all workers."""
PORT = 29377
MORE = 3
"""So many steps for each of DDP's are made under strategies of local steps, lest they end before they are as far."""
OUTER = {"outer_rate": 1.0, "outer_momentum": 0.5}
"""The published outer step is for hundreds of local steps, and thousands of outer ones."""
SIDES: dict[str, tuple[str, dict[str, object]]] = {
    "ddp": ("ddp", {}),
    "local-sgd": ("local-sgd", {"sync_every": 16}),
    "diloco": ("diloco", {"sync_every": 50, **OUTER}),
    "diloco, overlap": ("diloco", {"sync_every": 48, "fragments": 4, "overlap": 6, **OUTER}),
}
"""Strategy and settings, by name."""


def work(strategy: str, settings: dict[str, Any], steps: int) -> None:
    """Train on this worker; rank 0 prints, for each step, when it ended and the mean loss of all workers."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import quorate
    from quorate.core.settings import settings_for
    from quorate.workloads import workloads

    torch.set_num_threads(1)
    world = quorate.join(timeout=120, records=False)
    kind: Any = workloads.get("stdlib-bytes")
    workload = kind(**settings_for(kind, {"length": LENGTH}))
    model = workload.model(seed=0)
    optimizer: Any = workload.optimizer(model)
    if strategy == "ddp":
        called = DistributedDataParallel(model)
    else:
        optimizer, called = quorate.distribute(optimizer, model, strategy, **settings), model
    data = workload.dataset(train=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1)).tolist()
    world.barrier()
    begin, told = time.monotonic(), []
    for step in range(steps):
        first = (step * WORKERS + world.rank) * BATCH
        batch = workload.collate([data[i] for i in order[first : first + BATCH]])
        loss = workload.loss(called, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        told.append((time.monotonic() - begin, loss.item()))
    if strategy != "ddp":
        optimizer.finish()
    everyone = world.gather(told)
    if world.is_first:
        print(
            json.dumps(
                [[max(t for t, _ in row), sum(x for _, x in row) / WORKERS] for row in zip(*everyone, strict=True)]
            )
        )


@contextmanager
def hosts(count: int, rate: str) -> Iterator[list[list[str]]]:
    """What to put before a command so that it runs on each of `count` hosts, joined by cables of `rate` both ways."""
    names = ["hub", *(f"host{number}" for number in range(count))]
    holders = [
        subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && echo up && exec cat"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for name in names
    ]  # fmt: skip
    try:
        for holder in holders:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"up\n":
                raise SystemExit("network namespaces cannot be made here: this benchmark needs root on Linux")
        hub, *entries = (["nsenter", "--net", "--uts", "--target", str(holder.pid), "--"] for holder in holders)
        _run(*hub, "ip", "link", "add", "bridge", "type", "bridge")
        _run(*hub, "ip", "link", "set", "bridge", "up")
        bucket = ["tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]
        for number, enter in enumerate(entries):
            port, holder = f"port{number}", holders[number + 1]
            _run(*hub, "ip", "link", "add", port, "type", "veth", "peer", "name", "cable", "netns", str(holder.pid))
            _run(*hub, "ip", "link", "set", port, "master", "bridge", "up")
            _run(*hub, "tc", "qdisc", "add", "dev", port, "root", *bucket)
            _run(*enter, "ip", "address", "add", f"{address(number)}/24", "dev", "cable")
            for device in ("cable", "lo"):
                _run(*enter, "ip", "link", "set", device, "up")
            _run(*enter, "tc", "qdisc", "add", "dev", "cable", "root", *bucket)
        yield entries
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()


def address(number: int) -> str:
    return f"10.231.78.{number + 1}"


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=20)


def train(entries: Sequence[Sequence[str]], name: str, steps: int, port: int) -> list[tuple[float, float]]:
    """One training on all hosts: seconds and mean loss, step by step. Raises `SystemExit` where it fails."""
    strategy, settings = SIDES[name]
    words = [sys.executable, str(Path(__file__).resolve()), "--work", strategy, json.dumps(settings), str(steps)]
    said = {"WORLD_SIZE": WORKERS, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": address(0)}
    said |= {"MASTER_PORT": port, "QUORATE_TOKEN": "only of this benchmark", "GLOO_SOCKET_IFNAME": "cable"}
    said |= {"OMP_NUM_THREADS": 1}
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank, enter in enumerate(entries):
            environment = {**os.environ, **{key: str(value) for key, value in {**said, "RANK": rank}.items()}}
            pipe = subprocess.PIPE
            children.append(
                subprocess.Popen([*enter, *words], cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True)
            )
        try:
            ended = [child.communicate(timeout=900) for child in children]
        finally:
            for child in children:
                child.kill()
    if any(child.returncode for child in children):
        raise SystemExit(f"{name} failed:\n" + "\n".join(err[-2000:] for _, err in ended))
    (line,) = (line for line in ended[0][0].splitlines() if line.startswith("[["))
    return [(seconds, loss) for seconds, loss in json.loads(line)]


def seconds_to(level: float, told: Sequence[tuple[float, float]]) -> float | None:
    """Until the mean loss of `LAST` steps was `level`; None where it never was."""
    losses = [loss for _, loss in told]
    for end in range(LAST, len(told) + 1):
        if sum(losses[end - LAST : end]) / LAST <= level:
            return told[end - 1][0]
    return None


def main() -> int:
    from record import Report, arguments, figure

    parser = arguments(__doc__.partition("\n")[0])
    parser.add_argument("--work", nargs=3, metavar=("STRATEGY", "SETTINGS", "STEPS"), help=argparse.SUPPRESS)
    parser.add_argument(
        "--steps", type=int, default=160, help=f"of every worker (160); {MORE} times as many of the others"
    )
    options = parser.parse_args()
    if options.work is not None:
        work(options.work[0], json.loads(options.work[1]), int(options.work[2]))
        return 0
    steps = 6 if options.quick else options.steps
    names = ("ddp", "diloco") if options.quick else tuple(SIDES)
    report = Report("slow_link", {"workers": WORKERS, "link": LINK, "steps": steps, "batch": BATCH, "length": LENGTH})
    found = {}
    with hosts(WORKERS, LINK) as entries:
        for number, name in enumerate(names):
            sys.stderr.write(f"{number + 1}/{len(names)}  {name}\n")
            found[name] = train(entries, name, steps if name == "ddp" else steps * MORE, PORT + number)
    for name, told in found.items():
        report.rows.append(figure(f"seconds of a step, {name}", [told[-1][0] / len(told)]))
    if steps >= LAST:
        level = sum(loss for _, loss in found["ddp"][-LAST:]) / LAST
        report.rows.append(figure("training loss, ddp at its end", [level]))
        for name, told in found.items():
            reached = seconds_to(level, told)
            if reached is not None:
                report.rows.append(figure(f"seconds to that loss, {name}", [reached]))
    ratio = report.rows[0].median / report.rows[names.index("diloco")].median
    report.bar("seconds of a step, ddp / diloco", ratio, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
