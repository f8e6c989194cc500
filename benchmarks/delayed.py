"""One step of delay: what it costs five optimizers, and what worker momentum and the correction of the delay give back.

Two virtual workers train a small language model. `prompt` is all-reduce. `delayed` is `quorum` of all workers with
`overlap`, so that each gradient is applied one step after it was computed, and the shared optimizer keeps the momentum.
`worker momentum` is the same with `momentum="worker"`, and `corrected` with `correct="delay"`. The share of the gap is
(delayed - arm) / (delayed - prompt), in held-out loss: each arm at its own best learning rate, and all at one rate that
is half the best one of `prompt`.

The second part has real delays: four workers pause up to 30 ms in each step of 5 ms. Muon and AdamW, two optimizers on
one model, train under eager-solo, which does not wait, and under all-reduce.

Losses are means over three seeds, of virtual workers, so they do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import delayed_trainings as delayed
import record
import torch
from delayed_trainings import CORRECTED, DELAYED, PROMPT, RATES, WORKER, Training

SEEDS = (0, 1, 2)
SOLO_ARMS = (PROMPT, delayed.SOLO, delayed.SOLO_OVERLAP, delayed.SOLO_CORRECTED)
REMEDIES = (WORKER, CORRECTED)
ByRate = Mapping[float, Sequence[float]]
"""The losses of all seeds at each rate."""


def trainings(*, quick: bool, only: str | None, steps: int) -> Iterator[Training]:
    seeds = SEEDS[:1] if quick else SEEDS
    for optimizer in ("AdamW", "Muon") if quick else RATES:
        if only in (None, optimizer):
            for arm in (PROMPT, DELAYED, WORKER, CORRECTED):
                rates = RATES[optimizer]
                yield Training(optimizer, arm, seeds, rates, steps=steps)
    for arm in SOLO_ARMS if not quick and only in (None, "solo") else ():
        for seed in seeds:
            yield Training("Muon", arm, (seed,), RATES["Muon"], workers=4, steps=steps, has_pauses=True)


def run(training: Training) -> list[list[float]]:
    torch.set_num_threads(1)
    return delayed.losses(training)


def trained(every: Sequence[Training], jobs: int) -> dict[tuple[bool, str, str], dict[float, list[float]]]:
    """The losses of all trainings: with pauses or without, by optimizer and arm."""
    by_training: dict[tuple[bool, str, str], dict[float, list[float]]] = {}
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for number, (training, of_seeds) in enumerate(zip(every, pool.map(run, every), strict=True), 1):
            by_rate = by_training.setdefault((training.has_pauses, training.optimizer, training.arm), {})
            for losses in of_seeds:
                for rate, loss in zip(training.rates, losses, strict=True):
                    by_rate.setdefault(rate, []).append(loss)
            means = " ".join(f"{rate:g}: {_mean(losses):.4f}" for rate, losses in by_rate.items())
            sys.stderr.write(f"{number}/{len(every)}  {training.optimizer}, {training.arm}: {means}\n")
    return by_training


def _mean(losses: Sequence[float]) -> float:
    return sum(losses) / len(losses)


def best(by_rate: ByRate) -> tuple[float, float]:
    """The best rate, and the mean loss there."""
    rate = min(by_rate, key=lambda rate: _mean(by_rate[rate]))
    return rate, _mean(by_rate[rate])


def share(prompt: float, late: float, loss: float) -> float:
    return (late - loss) / (late - prompt)


def tell(report: record.Report, optimizer: str, of_arms: Mapping[str, ByRate]) -> None:
    """The figures of one optimizer with one step of delay."""
    bests = {arm: best(by_rate) for arm, by_rate in of_arms.items()}
    for arm, (rate, loss) in bests.items():
        report.rows.append(record.figure(f"{optimizer}: loss, {arm}, at its best rate", of_arms[arm][rate]))
        report.rows.append(record.figure(f"{optimizer}: best rate, {arm}", [rate]))
        if arm != PROMPT:
            report.rows.append(record.figure(f"{optimizer}: loss / prompt, {arm}", [loss / bests[PROMPT][1]]))
    half = max((rate for rate in of_arms[PROMPT] if rate <= bests[PROMPT][0] / 2), default=bests[PROMPT][0])
    for arm in REMEDIES:
        losses = [bests[each][1] for each in (PROMPT, DELAYED, arm)]
        equal = [_mean(of_arms[each][half]) for each in (PROMPT, DELAYED, arm)]
        report.rows.append(record.figure(f"{optimizer}: share of the gap, {arm}, best rates", [share(*losses)]))
        report.rows.append(record.figure(f"{optimizer}: share of the gap, {arm}, at rate {half:g}", [share(*equal)]))


def main() -> int:
    parser = record.arguments(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=1, help="processes that train in virtual workers (1)")
    parser.add_argument("--only", choices=(*RATES, "solo"), help="one optimizer, or the part with real delays")
    parser.add_argument("--steps", type=int, help="steps of each worker (120; with --quick 40)")
    options: argparse.Namespace = parser.parse_args()
    steps = options.steps or (40 if options.quick else delayed.STEPS)
    every = list(trainings(quick=options.quick, only=options.only, steps=steps))
    report = record.Report("delayed", {"seeds": len(every[0].seeds), "steps": steps, "batch": delayed.BATCH})
    by_training = trained(every, options.jobs)
    ratio: float | None = None
    for optimizer in RATES:
        of_arms = {arm: by_rate for (pauses, of, arm), by_rate in by_training.items() if of == optimizer and not pauses}
        if of_arms:
            tell(report, optimizer, of_arms)
        if optimizer == "AdamW" and of_arms:
            ratio = min(best(of_arms[arm])[1] for arm in REMEDIES) / best(of_arms[PROMPT])[1]
        corrected = None
        if of_arms:
            corrected = share(*(best(of_arms[arm])[1] for arm in (PROMPT, DELAYED, CORRECTED)))
        report.bar(f"{optimizer}: share of the gap that the correction closes", corrected, at_least=0.5)
    report.bar("AdamW: the better remedy / prompt", ratio, at_most=1.005)
    solo = {arm: by_rate for (pauses, _, arm), by_rate in by_training.items() if pauses}
    for arm, by_rate in solo.items():
        rate, _ = best(by_rate)
        report.rows.append(record.figure(f"random pauses, Muon: loss, {arm}, at its best rate", by_rate[rate]))
        report.rows.append(record.figure(f"random pauses, Muon: best rate, {arm}", [rate]))
    measured = min(best(solo[arm])[1] for arm in SOLO_ARMS[1:]) / best(solo[PROMPT])[1] if solo else None
    report.bar("random pauses, Muon: eager-solo / all-reduce", measured, at_most=1.01)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
