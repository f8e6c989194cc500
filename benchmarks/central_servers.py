"""Where does the lead of eager-SGD over an asynchronous parameter server come from?

Published is that eager-SGD (solo) makes 2.64 times as many steps as an asynchronous server with 64 workers. Here 64
virtual workers, each on a host with one port, train with steps of 0.4 s, of which 4 of 64, drawn anew in every step,
are late by 0.3 s. The gradient takes as long through a port as one of ResNet-50 (102 MB): it is small, and so is the
bandwidth. The same training runs under `eager-solo`, and under `parameter-server` without waiting, with 1 to 64
servers.

A gradient goes through the port of a server and parameters come back, so S servers that share the parameters serve at
most S B / d gradients a second, for d bytes and B bytes a second; workers that wait for their own messages only make
P / (t + 2 d / B). The least of both is what is predicted, less what servers get from the worker beside them. The
virtual world tells the same time on every machine.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

WORKERS, LATE, STEP, DELAY = 64, 4, 0.4, 0.3
GRADIENT = 102e6
"""Bytes, of ResNet-50."""
TENSORS, NUMBERS = 64, 4096
"""Of the model that is trained in its place."""
SCALE = TENSORS * NUMBERS * 4 / GRADIENT
GIGABITS = (10.0, 100.0)
SERVERS = (1, 2, 4, 8, WORKERS)
PUBLISHED = 2.64


def throughput(size: int, seconds: float, gigabits: float, strategy: str, **settings: Any) -> float:
    """Gradients per second of all workers, in the last two thirds of a training that takes so long."""

    def live(wire: Wire) -> list[float]:
        place = current.enter(wire, thread_only=True)
        try:
            quorate.join()
            torch.manual_seed(0)
            model = nn.ParameterList([nn.Parameter(torch.zeros(NUMBERS)) for _ in range(TENSORS)])
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            quorate.distribute(optimizer, model, strategy, on_nonfinite="ignore", compare_every=0, **settings)
            ends, step = list[float](), 0
            while wire.clock.now() < seconds:
                late = random.Random(step).sample(range(size), max(1, size * LATE // WORKERS))
                wire.clock.sleep(STEP + DELAY * (wire.rank in late))
                torch.stack([p.sum() for p in model]).sum().backward()
                optimizer.step()
                ends.append(wire.clock.now())
                step += 1
            optimizer.finish()
            place.leave()
            return ends
        finally:
            current.forget(thread_only=True)

    network = Network(latency=5e-6, bandwidth=gigabits * 1e9 / 8 * SCALE, hosts=tuple(range(size)))
    found = VirtualWorld(size, seed=0, network=network).run(live)
    return sum(seconds / 3 < at <= seconds for own in found for at in own) / (2 * seconds / 3)


def predicted(size: int, gigabits: float, servers: int) -> float:
    """Gradients per second that workers make, or the servers serve, whichever is less."""
    through_a_port = GRADIENT * (1 - 1 / size) / (gigabits * 1e9 / 8)
    made = size / (STEP + DELAY * max(1, size * LATE // WORKERS) / size + 2 * through_a_port)
    return min(made, servers / through_a_port)


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--gigabits", type=float, nargs="+", default=GIGABITS, help="of a port, per second (10 100)")
    parser.add_argument("--servers", type=int, nargs="+", default=SERVERS, help="how many (1 2 4 8 64)")
    options: argparse.Namespace = parser.parse_args()
    size, seconds = (16, 9.0) if options.quick else (WORKERS, 30.0)
    settings = {"workers": size, "seconds": seconds, "step": STEP, "late": DELAY, "gradient": GRADIENT}
    report = record.Report("central_servers", settings)
    for gigabits in options.gigabits[:1] if options.quick else options.gigabits:
        eager = throughput(size, seconds, gigabits, "eager-solo")
        report.rows.append(record.figure(f"{gigabits:g} Gbit/s: gradients per second, eager-solo", [eager]))
        for servers in [count for count in options.servers if count <= size]:
            asked: dict[str, Any] = {"servers": servers, "mode": "async"}
            served = throughput(size, seconds, gigabits, "parameter-server", **asked)
            expected = predicted(size, gigabits, servers)
            name = f"{gigabits:g} Gbit/s, {servers} server{'s' * (servers > 1)}"
            report.rows.append(record.figure(f"{name}: gradients per second", [served]))
            report.rows.append(record.figure(f"{name}: over what is predicted", [served / expected]))
            report.rows.append(record.figure(f"{name}: eager-solo / parameter-server", [eager / served]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
