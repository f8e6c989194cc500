"""Do small nets that two workers find by pruning train as well as the full one, and do messages shrink with them?

The net 64-300-100-10 on scikit-learn's digits, two virtual workers under all-reduce, Adam at 1.2e-3, batches of 30
each. A ticket is what `quorate.shrink.lottery` leaves of the net: pruned by magnitude over all layers, rewound to the
start and trained again. Beside it the same masks are trained from new draws. Figures are accuracies on test images, in
percent, and differences are paired by seed.

Bytes: what one worker sends in one step of a pruned net, less what density times the dense vector, and its header, come
to. Masks: differing numbers between workers after the same pruning under four strategies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

import record
import torch
from torch import Tensor, nn

import quorate
from quorate.core.vectors import nbytes_of
from quorate.shrink.tickets import Training
from quorate.wire import current
from quorate.wire.cut import all_reduce_bytes
from quorate.wire.virtual.world import VirtualWorld
from quorate.workloads.digits import read_images, split

SIZE, BATCH, RATE = 2, 30, 1.2e-3
STRATEGIES: dict[str, dict[str, Any]] = {
    "all-reduce": {},
    "quorum": {"wait_for": 1},
    "diloco": {"sync_every": 2},
    "d-psgd": {},
}


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10))


def data(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, and test images and labels."""
    images = read_images()
    training, test = split(images.labels, seed)
    pixels = images.images.flatten(1)
    return pixels[training], images.labels[training], pixels[test], images.labels[test]


def lottery(seed: int, rounds: int, share: float, epochs: int, wire: Any) -> Sequence[Any]:
    """The tickets of one lottery, seen from one worker."""
    place = current.enter(wire, thread_only=True)
    try:
        world, model = quorate.join(), net(seed)
        optimizer: Any = quorate.distribute(torch.optim.Adam(model.parameters(), lr=RATE), model)
        inputs, labels, test_inputs, test_labels = data(seed)

        def train(training: Training) -> float:
            order = torch.Generator().manual_seed(seed)
            for _ in range(epochs):
                places = torch.randperm(len(inputs), generator=order)[world.rank :: SIZE]
                for batch in places.split(BATCH)[: len(inputs) // SIZE // BATCH]:
                    optimizer.zero_grad()
                    nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
                    optimizer.step()
                    training.step()
            with torch.no_grad():
                return 100 * float((model(test_inputs).argmax(1) == test_labels).float().mean())

        chosen: dict[str, Any] = {"rounds": rounds, "share": share, "rewind": "start", "redraw": "last"}
        chosen["scope"] = "global"
        tickets = quorate.shrink.lottery(train, optimizer, **chosen)
        optimizer.finish()
        place.leave()
        return tickets.all
    finally:
        current.forget(thread_only=True)


def pruned(strategy: str, amount: float, wire: Any) -> tuple[int, int, int, Tensor]:
    """Bytes of one step before and after a pruning, bytes of the vector after it, and the masks."""
    place = current.enter(wire, thread_only=True)
    try:
        world, model = quorate.join(), net(0)
        plain = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer: Any = quorate.distribute(plain, model, strategy, **STRATEGIES[strategy])
        inputs, labels, *_ = data(0)
        worker, sent = optimizer.__dict__["_quorate_worker"], list[int]()
        for step in range(12):
            begin = (BATCH * (SIZE * step + world.rank)) % 1200
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[begin : begin + BATCH]), labels[begin : begin + BATCH]).backward()
            optimizer.step()
            sent.append(sum(worker.timer._meter.bytes_out.values()))
            if step == 5:
                pruning = quorate.shrink.prune(optimizer, amount=amount)
        masks = torch.cat([x.reshape(-1) for x in pruning.masks.values()])
        nbytes = nbytes_of(worker.means.ready.flat) if strategy == "all-reduce" else 0
        optimizer.finish()
        place.leave()
        return sent[4] - sent[3], sent[11] - sent[10], nbytes, masks
    finally:
        current.forget(thread_only=True)


def measure_tickets(report: record.Report, seeds: int, rounds: int, share: float, epochs: int) -> None:
    full, ticket, redraw, kept = list[float](), list[float](), list[float](), list[float]()
    for seed in range(seeds):
        tickets = VirtualWorld(SIZE).run(partial(lottery, seed, rounds, share, epochs))[0]
        first, last = tickets[0], tickets[-1]
        full.append(first.quality)
        ticket.append(last.quality)
        redraw.append(last.redraw)
        kept.append(100 * last.density)
        print(f"seed {seed}: full {full[-1]:.1f}, {kept[-1]:.1f} % kept {ticket[-1]:.1f}, redraw {redraw[-1]:.1f}")
    lost = [a - b for a, b in zip(full, ticket, strict=True)]
    above = [a - b for a, b in zip(ticket, redraw, strict=True)]
    for name, values in (
        *(("accuracy of the full net", full), ("accuracy of the ticket", ticket), ("accuracy of a redraw", redraw)),
        *(("points lost by the ticket", lost), ("points above the redraw", above)),
    ):
        report.rows.append(record.figure(name, values))
    report.bar("percent of the weights in the ticket", max(kept), at_most=10.0)
    report.bar("points that the ticket loses (mean)", sum(lost) / seeds, at_most=1.0)
    report.bar("points above the same masks drawn again (mean)", sum(above) / seeds, at_least=1.0)


def measure_bytes(report: record.Report) -> None:
    differing, beside = 0, 0
    numbers = sum(p.numel() for p in net(0).parameters())
    for strategy in STRATEGIES:
        for amount in (0.5, 0.9):
            ends = VirtualWorld(SIZE).run(partial(pruned, strategy, amount))
            before, after, nbytes, masks = ends[0]
            differing += sum(int((masks != other).sum()) for *_, other in ends)
            print(f"{strategy}, {amount:.0%} pruned: {before:,} bytes a step before, {after:,} after")
            kept = numbers - len(masks) + int(masks.sum())
            if strategy == "all-reduce":
                header = nbytes - 4 * kept
                beside += abs(after - all_reduce_bytes(4 * kept + header, SIZE))
                beside += abs(before - all_reduce_bytes(4 * numbers + header, SIZE))
            elif strategy == "d-psgd":
                neighbours = before // (4 * numbers)
                beside += abs(before - neighbours * 4 * numbers) + abs(after - neighbours * 4 * kept)
    report.bar("bytes beside density times dense and the header", float(beside), at_most=0.0)
    report.bar("numbers of masks that differ between workers", float(differing), at_most=0.0)


def main(options: argparse.Namespace) -> int:
    seeds, rounds, share, epochs = (2, 4, 0.45, 14) if options.quick else (5, 11, 0.2, 14)
    torch.set_num_threads(1)
    settings = {"seeds": seeds, "rounds": rounds, "share": share, "epochs": epochs, "workers": SIZE}
    report = record.Report("shrink", settings)
    measure_bytes(report)
    measure_tickets(report, seeds, rounds, share, epochs)
    return report.show(options)


if __name__ == "__main__":
    raise SystemExit(main(record.arguments(__doc__.splitlines()[0]).parse_args()))
