"""What share of the bytes is left where codes travel between hosts: under rounds, and among learners.

Three virtual hosts with one worker each train one matrix of 300 by 300 numbers (and 300 more, which are not coded):
`quorum` that waits for all, 10 steps, and the learners of `decoupled-diloco` and `async-local-sgd`, 36 steps with a
period of 6. Told are the bytes that all workers have sent before the end (where learners give ways whole), over those
of the same training without a codec; and, under rounds, up to how many hosts 4 bits save anything.

Nothing here is timed; the same seeds give the same figures. The bars are the shares in `EXPECTED`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
import torch

import quorate
from quorate.core.contracts import Wire
from quorate.wire import current
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld

WIDTH, HOSTS, OFF = 300, 3, 0.005
LEARNERS = {"sync_every": 6, "outer_momentum": 0.5}
UNDER: Mapping[str, tuple[int, dict[str, Any]]] = {
    "rounds": (10, {"strategy": "quorum", "wait_for": "all", "momentum": "common"}),
    "learners": (36, {"strategy": "decoupled-diloco", **LEARNERS}),
    "learners, as they come": (36, {"strategy": "async-local-sgd", **LEARNERS}),
}
CODES: Mapping[str, dict[str, Any]] = {
    "sign": {"compress": "sign"},
    "blocks of 4 bits": {"compress": "blocks", "bits": 4},
    "qsgd of 4 bits": {"compress": "qsgd", "levels": 7},
    "natural": {"compress": "natural"},
    "half": {"compress": "half"},
    "top-k of 1 %": {"compress": "top-k", "density": 0.01},
    "chunked-top-k": {"compress": "chunked-top-k"},
    "random-k of 10 %": {"compress": "random-k", "density": 0.1},
}
EXPECTED: Mapping[str, Mapping[str, float]] = {
    "rounds": {
        "sign": 0.10,
        "blocks of 4 bits": 0.24,
        "qsgd of 4 bits": 0.23,
        "natural": 0.45,
        "half": 0.76,
        "top-k of 1 %": 0.08,
    },
    "learners": {
        "chunked-top-k": 0.09,
        "top-k of 1 %": 0.11,
        "sign": 0.13,
        "random-k of 10 %": 0.22,
        "blocks of 4 bits": 0.26,
        "half": 0.77,
    },
}
"""The share of the bytes that is left, by codec."""


def lived(wire: Wire, steps: int, settings: Mapping[str, Any]) -> int:
    """One worker's part: the bytes that it has sent before the end."""
    place = current.enter(wire, thread_only=True)
    try:
        quorate.join(records=False)
        torch.manual_seed(0)
        model = torch.nn.Linear(WIDTH, WIDTH)
        optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model, **settings)
        draw = torch.Generator().manual_seed(wire.rank)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, WIDTH, generator=draw)).square().mean().backward()
            optimizer.step()
            if settings["strategy"] != "quorum":
                wire.clock.sleep(0.01)
        sent = sum(optimizer.__dict__["_quorate_worker"].timer._meter.bytes_out.values())
        optimizer.finish()
        place.leave()
        return int(sent)
    finally:
        current.forget(thread_only=True)


def sent(under: str, codec: Mapping[str, Any], hosts: int = HOSTS) -> int:
    """By all workers."""
    steps, settings = UNDER[under]
    world = VirtualWorld(hosts, network=Network(hosts=range(hosts)))
    return sum(world.run(partial(lived, steps=steps, settings={**settings, **codec})))


def main() -> int:
    options = record.arguments(__doc__ or "").parse_args()
    report = record.Report("codes_between_hosts", {"hosts": HOSTS, "numbers": WIDTH * WIDTH})
    for under in list(UNDER)[:1] if options.quick else UNDER:
        whole = sent(under, {})
        for name, codec in CODES.items():
            share = sent(under, codec) / whole
            report.rows.append(record.figure(f"{under}, {name}: share of the bytes", [share]))
            if name in EXPECTED.get(under, {}):
                told = EXPECTED[under][name]
                report.bar(f"{under}, {name}: off from {told:g} by", abs(share - told), at_most=OFF)
    for hosts in (8, 14, 15, 16) if not options.quick else ():
        share = sent("rounds", CODES["blocks of 4 bits"], hosts) / sent("rounds", {}, hosts)
        report.rows.append(record.figure(f"rounds of {hosts} hosts, blocks of 4 bits: share of the bytes", [share]))
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
