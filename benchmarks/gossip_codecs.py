"""What do few bytes cost gossip? D-PSGD, and the strategies that tell compressed differences, side by side.

Eight virtual workers on a ring train the workload `digits` for 16 epochs, as `quorate compare digits --virtual 8
--epochs 16` does, with three seeds: D-PSGD, CHOCO-SGD without a codec and with three, DCD-PSGD and ECD-PSGD. With
`dense_below=100` all convolutions but the first are coded. Told are the bytes that a worker sends in a step, the
training loss of the last ten steps of all workers, loss and accuracy of the mean of all replicas on held-out images,
the accuracy of single replicas (each on its part of these images), and how far replicas are from their mean (root mean
square, as a share of its norm).

Nothing here is timed; the same seeds give the same figures, whatever else the machine does. The bars are those of the
page about gossip: a sign for each number costs the accuracy of the mean a point at most, and a replica is nearer to the
mean of all under D-PSGD than under `top-k` of 1 %.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import record
from trainings import Runs, Setting, Side

from quorate.compare.grid import SCRIPT
from quorate.launch.warm.request import VirtualRun
from quorate.report.reading.run import RunRecords
from quorate.report.topics.quality import final_quality
from quorate.report.topics.replicas import distances_of

WORKERS, EPOCHS, LAST = 8, 16, 10
FEW = {"dense_below": 100}
SIDES = (
    Side(name="d-psgd", strategy="d-psgd", settings={"topology": "ring"}),
    Side(name="choco-sgd, no codec", strategy="choco-sgd"),
    Side(name="choco-sgd, sign", strategy="choco-sgd", settings={"compress": "sign", **FEW}),
    Side(name="choco-sgd, top-k of 1 %", strategy="choco-sgd", settings={"compress": "top-k", "density": 0.01, **FEW}),
    Side(name="choco-sgd, qsgd of 4 bits", strategy="choco-sgd", settings={"compress": "qsgd", "levels": 7, **FEW}),
    Side(name="dcd-psgd, qsgd of 8 bits", strategy="dcd-psgd", settings={"compress": "qsgd", **FEW}),
    Side(name="ecd-psgd, qsgd of 8 bits", strategy="ecd-psgd", settings={"compress": "qsgd", **FEW}),
)
QUICK = (SIDES[0], SIDES[2])
PLAIN, SIGN, TOP_K = SIDES[0].name, SIDES[2].name, SIDES[3].name
BYTES, LOSS, MEAN_LOSS, MEAN, REPLICA, DISTANCE = (
    "bytes a worker and step",
    f"training loss, last {LAST} steps",
    "held-out loss of the mean",
    "accuracy of the mean",
    "accuracy of a replica",
    "distance from the mean",
)


def figures_of(run: RunRecords) -> dict[str, float]:
    """Of one run, by name."""
    steps = [step for one in run.ranks for step in one.steps]
    last = max(step.step for step in steps)
    told = {name: final_quality(run, name) or 0.0 for name in ("cross_entropy", "top1", "replica_top1")}
    return {
        BYTES: statistics.fmean(step.bytes_out for step in steps),
        LOSS: statistics.fmean(step.loss for step in steps if step.step > last - LAST and step.loss is not None),
        MEAN_LOSS: told["cross_entropy"],
        MEAN: told["top1"],
        REPLICA: told["replica_top1"],
        DISTANCE: distances_of(run)[-1][2],
    }


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3, help="of every side (3)")
    options = parser.parse_args()
    sides, seeds = (QUICK, 1) if options.quick else (SIDES, options.seeds)
    epochs = 2 if options.quick else EPOCHS
    report = record.Report("gossip_codecs", {"workers": WORKERS, "epochs": epochs, "seeds": seeds, "task": "digits"})
    means: dict[str, dict[str, float]] = {}
    with Runs(seeds * len(sides)) as runs:
        for side in sides:
            found = []
            for seed in range(seeds):
                setting = Setting(workers=WORKERS, steps=0, name="digits", is_virtual=True)
                given = ["digits", "--epochs", str(epochs)]
                run = runs.script(str(SCRIPT), given, side, setting, seed, virtual=VirtualRun(seed=seed))
                found.append(figures_of(run))
            means[side.name] = {name: statistics.fmean(one[name] for one in found) for name in found[0]}
            for name in found[0]:
                report.rows.append(record.figure(f"{side.name}: {name}", [one[name] for one in found]))
            print(side.name, {name: f"{value:.5g}" for name, value in means[side.name].items()}, file=sys.stderr)
    is_whole = not options.quick
    lost = means[PLAIN][MEAN] - means[SIGN][MEAN]
    report.bar("accuracy of the mean, d-psgd less sign", lost if is_whole else None, at_most=0.01)
    apart = means[TOP_K][DISTANCE] / means[PLAIN][DISTANCE] if is_whole else None
    report.bar("distance, top-k / d-psgd", apart, at_least=1.0)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
