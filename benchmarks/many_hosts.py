"""From where on is which strategy the right one, on 8 to 4,096 hosts of 8 workers?

On paper: times alone, nothing is measured. Each worker takes the published step times of a Transformer on sentences
(`wmt16-transformer`) or of a ResNet-50 in a cloud (`cloud-resnet50`), drawn anew for each worker and step; every host
has one port of 10 or 100 Gbit/s. Sums of all take recursive halving and doubling among the hosts, and begin during
the backward pass; sums of rounds are formed in pieces among the hosts, behind it. The leader of rounds works for 0.2 ms
with each worker in each of them: with 256 workers it was 0.24 ms on two cores that did other work beside.

What is told is how much of what the workers could do they do: steps a second over those of workers that never wait.
How much a step is worth is another question: gradients of `eager-solo` and `eager-majority` are late at times, and
`diloco` agrees every 32 steps only.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record

from quorate.core.durations import parse_trace
from quorate.simulation.busy import Modelled
from quorate.simulation.figures import Figures, figures_of
from quorate.simulation.links import links_from
from quorate.simulation.models import times_of
from quorate.simulation.played import Case

PER_HOST = 8
HOSTS = (8, 64, 512, 4096)
LEADER = "200us"
NETWORKS = {"10 Gbit/s": "20us:10Gbit", "100 Gbit/s": "5us:100Gbit"}
WORK = (("wmt16-transformer", 25_000_000), ("wmt16-transformer", 350_000_000), ("cloud-resnet50", 25_000_000))
STRATEGIES = {
    "all-reduce": ("all-reduce", {}),
    "eager-majority": ("eager-majority", {}),
    "eager-solo": ("eager-solo", {}),
    "diloco, every 32": ("diloco", {"sync_every": 32}),
}


def told(strategy: str, hosts: int, network: str, trace: str, parameters: int, steps: int) -> Figures:
    """One row."""
    name, settings = STRATEGIES[strategy]
    workers = hosts * PER_HOST
    compute = parse_trace(f"trace:{trace}", seed=1)
    assert compute is not None
    case = Case(
        workers=workers,
        steps=steps,
        parameters=parameters,
        busy=Modelled(compute=compute),
        links=links_from(f"{NETWORKS[network]}:halving:per-host={PER_HOST}:leader={LEADER}"),
        seed=1,
    )
    return figures_of(times_of(name, settings).play(case), workers, steps)


def main() -> int:
    parser = record.arguments(str(__doc__))
    parser.add_argument("--steps", type=int, default=64, help="of the fastest worker")
    asked = parser.parse_args()
    hosts = HOSTS[:2] if asked.quick else HOSTS
    settings = {"hosts": hosts, "per_host": PER_HOST, "steps": asked.steps, "leader": LEADER}
    report = record.Report("many_hosts", settings)
    for trace, parameters in WORK:
        for network in NETWORKS:
            for strategy in STRATEGIES:
                shares = []
                for count in hosts:
                    found = told(strategy, count, network, trace, parameters, asked.steps)
                    shares.append(found.no_wait_share)
                    name = f"{trace}, {parameters / 1e6:g} M, {network}, {strategy}, {count} hosts"
                    report.rows.append(record.figure(f"{name}: of no-wait", [found.no_wait_share]))
                    if found.staleness_p95 is not None:
                        report.rows.append(record.figure(f"{name}: staleness, p95", [found.staleness_p95]))
                words = "".join(f"{share:8.0%}" for share in shares)
                print(f"{trace:18} {parameters / 1e6:4g} M {network:11} {strategy:17}{words}", flush=True)
    return report.show(asked)


if __name__ == "__main__":
    sys.exit(main())
