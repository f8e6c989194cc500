"""Does low rank from a tenth of the training on save time, does carried momentum help, and how small is a packed file?

1. Two processes train a residual network of 64 to 256 channels on digits, and a transformer on bytes: torch DDP at full
   rank, then Quorate with low rank from a tenth of the steps on. The figure is the time of DDP over that in which
   Quorate reaches the loss that DDP ends with, its steps at full rank included. Evaluations count in neither.
2. The steps after the switch until the loss before it is reached again: momentum carried over, and begun again. The
   residual network is switched after 20 steps, and a perceptron on digits after 20, 60 and 200.
3. The network 64-300-100-10 on digits is pruned, clustered and packed; a twin is trained for as many steps and stays.
4. The time of float32 over that of int8 (`torch.ao`, dynamic) in a forward pass, one thread.
"""

from __future__ import annotations

import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

import torch
from record import Report, arguments, figure, median_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SHARE, BEGINS = 0.25, 0.1
"""The rank, and the share of the steps before the switch."""
KEPT = {0: 0.12, 2: 0.065, 4: 0.35}
"""The numbers of each layer of the packed network that stay."""
CONVOLUTIONS, TRANSFORMER, PERCEPTRON = "residual network", "transformer", "perceptron"


class Task(NamedTuple):
    """A model, its batches and its loss on fixed examples."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[], tuple[Tensor, Tensor]]
    fixed: tuple[Tensor, Tensor]

    def loss(self, pair: tuple[Tensor, Tensor], model: nn.Module | None = None) -> Tensor:
        """Return the mean cross-entropy."""
        scores = (self.model if model is None else model)(pair[0])
        return cross_entropy(scores.flatten(0, -2), pair[1].flatten())

    def measured(self) -> float:
        """Return the loss on the fixed examples."""
        self.model.eval()
        with torch.no_grad():
            loss = float(self.loss(self.fixed))
        self.model.train()
        return loss


def task_of(name: str, seed: int, rank: int = 0) -> Task:
    """Return the task `name` for worker `rank`."""
    from quorate.workloads.digits import read_images
    from quorate.workloads.residual import ResidualNetwork
    from quorate.workloads.stdlib_bytes import StdlibBytes

    torch.manual_seed(seed)
    drawn = torch.Generator().manual_seed(1000 * seed + rank)
    if name in (CONVOLUTIONS, PERCEPTRON):
        images = read_images()
        layers = (nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
        model: nn.Module = ResidualNetwork(1, (64, 128, 256), 2, 10) if name == CONVOLUTIONS else nn.Sequential(*layers)

        def batch() -> tuple[Tensor, Tensor]:
            chosen = torch.randint(len(images.labels), (32,), generator=drawn)
            return images.images[chosen], images.labels[chosen]

        fixed = images.images[:512], images.labels[:512]
        return Task(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), batch, fixed)
    work = StdlibBytes(width=256, layers=3, heads=8, length=64, most_bytes=2_000_000)
    windows = work.dataset(train=True)
    model = work.model(seed)

    def pairs(places: Tensor) -> tuple[Tensor, Tensor]:
        text = torch.stack([windows[int(place)] for place in places]).long()
        return text[:, :-1], text[:, 1:]

    def text() -> tuple[Tensor, Tensor]:
        return pairs(torch.randint(len(windows), (8,), generator=drawn))

    fixed = pairs(torch.arange(0, len(windows), len(windows) // 64)[:64])
    return Task(model, torch.optim.AdamW(model.parameters(), lr=1e-3), text, fixed)


def made_step(task: Task, model: nn.Module | None = None) -> None:
    """Make one step."""
    task.optimizer.zero_grad()
    task.loss(task.batch(), model).backward()
    task.optimizer.step()


# -- 1. time to the loss, in two processes


def worker(name: str, steps: int, seeds: int) -> None:
    """Train as one of the workers; rank 0 prints a line of JSON for each seed."""
    import torch.distributed as dist

    import quorate

    torch.set_num_threads(1)
    world = quorate.join(timeout=600)
    for seed in range(seeds):
        full = task_of(name, seed, world.rank)
        ddp = nn.parallel.DistributedDataParallel(full.model)
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            made_step(full, ddp)
        of_ddp = time.perf_counter() - begin
        target = full.measured()
        low = task_of(name, seed, world.rank)
        optimizer: Any = quorate.distribute(low.optimizer, low.model, "all-reduce", name=f"{seed}")
        quorate.shrink.low_rank(optimizer, share=SHARE, at=round(BEGINS * steps))
        spent, made, loss = 0.0, 0, float("inf")
        while loss > target and made < 3 * steps:
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(max(1, steps // 20)):
                made_step(low)
                made += 1
            spent += time.perf_counter() - begin
            loss = float(world.max(torch.tensor(low.measured() if made >= steps // 2 else float("inf"))))
        optimizer.finish()
        if world.is_first:
            line = {"ddp": of_ddp, "low": spent, "made": made / steps, "reached": loss <= target, "loss": target}
            print(json.dumps(line), flush=True)


# -- 2. carried momentum, in this process


def steps_to_regain(name: str, seed: int, steps: int, *, carries: bool) -> int:
    """Return the steps after the switch until the loss before it is reached; 3 times the steps before if never."""
    from quorate.replica.factors import factor, factored, full_rank, step_on_factors, weights_of

    task = task_of(name, seed)
    for _ in range(steps):
        made_step(task)
    before = task.measured()
    for path, module in list(task.model.named_modules()):
        for key in weights_of(module):
            weight: Any = module._parameters[key]
            if not path.startswith("blocks" if name == CONVOLUTIONS else ("1", "3")):
                continue
            old, a, b = factor(module, key, factored(weight, max(1, int(SHARE * full_rank(weight)))))
            step_on_factors(task.optimizer, old, a, b)
            if not carries:
                task.optimizer.state.pop(a, None)
                task.optimizer.state.pop(b, None)
    for number in range(3 * steps):
        if task.measured() <= before:
            return number
        made_step(task)
    return 3 * steps


# -- 3. a packed network


def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers, in percent."""
    with torch.no_grad():
        return 100 * float((model(images).argmax(1) == labels).float().mean())


def packed(seed: int, steps: int) -> tuple[float, float, float, float]:
    """Return how many times smaller file and tensors are, and the accuracies of the full and the packed network."""
    from safetensors.torch import save

    from quorate.shrink import cluster, pack, unpack
    from quorate.workloads.digits import read_images, split

    images, (train, test) = read_images(), split(read_images().labels, seed)
    x, y = images.images.flatten(1), images.labels
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)]
    full: nn.Sequential = nn.Sequential(*layers)
    small = copy.deepcopy(full)

    def trained(model: nn.Module, count: int, rate: float, masks: dict[int, Tensor] | None = None) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, count)
        draws = torch.Generator().manual_seed(seed)
        for _ in range(count):
            chosen = train[torch.randint(len(train), (60,), generator=draws)]
            optimizer.zero_grad()
            cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
            for place, mask in (masks or {}).items():
                small[place].weight.data.mul_(mask)

    trained(full, 4 * steps, 1.2e-3)
    trained(small, steps, 1.2e-3)
    rounds = 8
    for number in range(1, rounds + 1):
        masks = {}
        for place, kept in KEPT.items():
            weight = small[place].weight.detach().abs()
            count = round(weight.numel() * kept ** (number / rounds))
            masks[place] = (weight >= weight.flatten().topk(count).values[-1]).float()
            small[place].weight.data.mul_(masks[place])
        trained(small, steps // rounds, 1.2e-3, masks)
    trained(small, steps, 1.2e-3, masks)
    cluster(small, 16)
    trained(small, steps, 3e-4)
    file = pack(small.state_dict())
    read, _ = unpack(file.data)
    plain = copy.deepcopy(full)
    plain.load_state_dict(read)
    ratio = len(save(dict(full.state_dict()))) / len(file.data)
    of_tensors = sum(stage.dense for stage in file.stages) / sum(stage.coded for stage in file.stages)
    return ratio, of_tensors, accuracy(full, x[test], y[test]), accuracy(plain, x[test], y[test])


# -- 4. int8


def int8_speed(model: nn.Module, x: Tensor, repeats: int) -> list[float]:
    """Return times of float32 over those of int8."""
    warnings.simplefilter("ignore")
    small = torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)
    ratios = []
    with torch.no_grad():
        for number in range(repeats + 1):
            times = []
            for each in (model, small):
                begin = time.perf_counter()
                each(x)
                times.append(time.perf_counter() - begin)
            ratios += [times[0] / times[1]] if number else []
    return ratios


def lines_of(name: str, steps: int, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield what the workers have measured."""
    import workers

    for line in workers.json_lines(str(Path(__file__).resolve()), 2, "--worker", name, str(steps), str(seeds)):
        print(f"{name}: {line.strip()[1:-1]}", file=sys.stderr)
        yield json.loads(line)


def report_time(report: Report, seeds: int, steps: int, *, quick: bool) -> None:
    """Report the time until the loss of DDP."""
    for name in (CONVOLUTIONS,) if quick else (CONVOLUTIONS, TRANSFORMER):
        lines = list(lines_of(name, steps, seeds))
        ratio = figure(f"time of DDP / of low rank to its loss, {name}", [x["ddp"] / x["low"] for x in lines])
        report.rows += [ratio, figure(f"steps / those of DDP, {name}", [x["made"] for x in lines])]
        has_reached = all(line["reached"] for line in lines)
        if name == CONVOLUTIONS:
            report.bar("median time of DDP / of low rank", ratio.median if has_reached else 0.0, at_least=1.64)


def report_momentum(report: Report, seeds: int) -> None:
    """Report the steps after the switch until the loss before it, with momentum carried over and begun again."""
    for name, begin in ((PERCEPTRON, 20), (PERCEPTRON, 60), (PERCEPTRON, 200), (CONVOLUTIONS, 20)):
        regained = {carries: list[int]() for carries in (True, False)}
        for seed in range(seeds):
            for carries, counts in regained.items():
                counts.append(steps_to_regain(name, seed, begin, carries=carries))
        for carries, counts in regained.items():
            how = "carried" if carries else "reset"
            report.rows.append(figure(f"steps to regain the loss, {name}, after {begin} steps, {how}", counts))
    report.bar("steps to regain, carried / reset", sum(regained[True]) / max(1, sum(regained[False])), at_most=0.7)


def report_files(report: Report, seeds: int, steps: int) -> None:
    """Report the size of a packed network, and its accuracy."""
    files = [packed(seed, steps) for seed in range(seeds)]
    names = ("file: times smaller", "tensors: times smaller", "accuracy, full network", "accuracy, packed")
    columns = dict(zip(names, zip(*files, strict=True), strict=True))
    report.rows += [figure(name, values) for name, values in columns.items()]
    report.bar("median file, times smaller", median_of(columns[names[0]]), at_least=27)
    report.bar("median tensors, times smaller", median_of(columns[names[1]]), at_least=30)
    lost = [full - small for _, _, full, small in files]
    report.bar("accuracy lost, points, mean of pairs", sum(lost) / len(lost), at_most=0.5)


def report_int8(report: Report, repeats: int) -> None:
    """Report the time of float32 over that of int8."""
    from quorate.workloads.imagenet import SqueezeNet

    for width, batch in ((512, 1), (512, 32), (2048, 32)):
        layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        values = int8_speed(layers, torch.randn(batch, width), repeats)
        report.rows.append(figure(f"float32 / int8, two layers of {width}, batch {batch}", values))
    values = int8_speed(SqueezeNet(), torch.randn(1, 3, 224, 224), repeats)
    report.rows.append(figure("float32 / int8, SqueezeNet, one image of 224 x 224", values))


def main() -> int:
    """Measure, and report."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", choices=("time", "momentum", "files", "int8"), help="one of the four parts")
    options = parser.parse_args()
    quick = options.quick
    torch.set_num_threads(1)
    seeds, steps = (1, 30) if quick else (5, 200)
    pack_seeds, pack_steps = (1, 1200) if quick else (5, 2400)
    settings = {
        "seeds": seeds,
        "steps": steps,
        "share": SHARE,
        "begins": BEGINS,
        "workers": 2,
        "pack_steps": pack_steps,
    }
    report = Report("low_rank", settings)
    parts = {
        "time": lambda: report_time(report, seeds, steps, quick=quick),
        "momentum": lambda: report_momentum(report, 2 if quick else 10),
        "files": lambda: report_files(report, pack_seeds, pack_steps),
        "int8": lambda: report_int8(report, 10 if quick else 100),
    }
    for name, measure in parts.items():
        if options.only in (None, name):
            measure()
    return report.show(options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
