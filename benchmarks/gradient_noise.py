"""What does measuring the noise of gradients cost, and is the critical batch that it tells the true one?

    python benchmarks/gradient_noise.py [--quick]

Two workers train `digits` and an MLP of 4.7 million parameters; the time spent in measuring is added up and held
against that of all steps: at most 1 %. And at parameters that stay as they are (learning rate 0) the noise scale that
is told is held against that of all examples' gradients, computed one by one: within a quarter.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

CASES = ("digits", "mlp-5m")
EXAMPLES, FEATURES, BATCH = 8192, 20, 8


def spent_in(kind: Any, names: tuple[str, ...]) -> list[float]:
    """From here on, the seconds of every call of these methods."""
    seconds: list[float] = []

    def timed(plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                return plain(*args, **named)
            finally:
                seconds.append(time.perf_counter() - begin)

        return call

    for name in names:
        setattr(kind, name, timed(getattr(kind, name)))
    return seconds


def cost(case: str, steps: int) -> None:
    """Train on this worker; rank 0 tells the share of its steps that went into measuring."""
    import torch

    import quorate
    from quorate.observe.gradient_noise import NoiseWatch
    from quorate.workloads import workloads

    torch.set_num_threads(1)
    seconds = spent_in(NoiseWatch, ("look", "take", "saw"))
    world = quorate.join(records=True)
    if case == "digits":
        workload = workloads.get("digits")()
        model, batch = workload.model(), workload.batch_size
        data, collate, loss = workload.dataset(train=True), workload.collate, workload.loss
    else:
        model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024))
        model.append(torch.nn.Linear(1024, 512))
        batch, collate = 64, None
        data = torch.utils.data.TensorDataset(torch.randn(4096, 1024, generator=torch.Generator().manual_seed(0)))

        def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            return model(batch[0]).square().mean()

    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    loader, done = quorate.loader(data, batch, collate_fn=collate), 0
    begin = time.perf_counter()
    while done < steps:
        for one in loader:
            optimizer.zero_grad()
            loss(model, one).backward()
            optimizer.step()
            done += 1
            if done == 16:
                seconds.clear()
                begin = time.perf_counter()
            if done == steps:
                break
    share = sum(seconds) / (time.perf_counter() - begin)
    if world.is_first:
        print(json.dumps({"share": share}), flush=True)
    optimizer.finish()


def still(steps: int, seed: int) -> None:
    """Gradients of linear regression at parameters that stay: rank 0 tells the critical batch, measured and true."""
    import statistics

    import torch

    import quorate
    from quorate.core.gradient_noise import scale_of
    from quorate.observe.step_times import Timing
    from quorate.records.rows import Noise
    from quorate.wire import current

    torch.set_num_threads(1)
    world = quorate.join(records=True)
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(EXAMPLES, FEATURES, generator=draws)
    y = x.sum(1, keepdim=True) + 3.0 * torch.randn(EXAMPLES, 1, generator=draws)
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.0), model)
    rows: list[Noise] = []
    recorder = current.here().context(Timing).recorder
    assert recorder is not None
    write = recorder.write

    def seen(row: Any) -> None:
        if isinstance(row, Noise):
            rows.append(row)
        write(row)

    recorder.write = seen  # type: ignore[method-assign]
    data, done = torch.utils.data.TensorDataset(x, y), 0
    loader = quorate.loader(data, BATCH, seed=seed)
    while done < steps:
        for inputs, targets in loader:
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
            done += 1
    optimizer.finish()
    if world.is_first:
        single = 2 * (x @ model.weight.detach().T - y) * x
        mean = single.mean(0)
        true = (single - mean).square().sum() / EXAMPLES / mean.square().sum()
        signal = statistics.fmean((n * row.mean - row.own) / (n - 1) for row in rows for n in [row.gradients])
        noise = statistics.fmean((row.own - row.mean) * n / (n - 1) for row in rows for n in [row.gradients])
        found = scale_of(signal, noise)
        print(json.dumps({"told": None if found is None else found * BATCH, "true": float(true)}), flush=True)


def main() -> int:
    from record import Report, arguments, figure
    from workers import json_lines

    parser = arguments("What measuring the noise of gradients costs, and whether it is right.")
    parser.add_argument("--cost", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--still", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cost:
        cost(options.cost, options.steps)
        return 0
    if options.still:
        still(options.steps, options.seed)
        return 0
    runs, steps = (2, 3200) if options.quick else (5, 6400)
    report = Report("gradient_noise", {"runs": runs, "workers": 2, "batch": BATCH, "steps": steps})
    script = str(Path(__file__).resolve())
    shares: dict[str, list[float]] = {case: [] for case in CASES}
    ratios = []
    for run in range(runs):
        for case in CASES:
            (line,) = json_lines(script, 2, "--cost", case, "--steps", "144" if case == "digits" else "80")
            shares[case].append(json.loads(line)["share"])
        if run == 0 or not options.quick:
            (line,) = json_lines(script, 2, "--still", "--steps", str(steps), "--seed", str(run))
            found = json.loads(line)
            ratios.append(found["told"] / found["true"])
        print(f"run {run + 1} of {runs}", flush=True)
    for case in CASES:
        report.rows.append(figure(f"share of a step, {case}", shares[case]))
        report.bar(f"share of a step, {case}", report.rows[-1].median, at_most=0.01)
    report.rows.append(figure("critical batch, told over true", ratios))
    report.bar("critical batch, told over true", report.rows[-1].median, at_least=0.75)
    report.bar("critical batch, told over true, from above", report.rows[-1].median, at_most=1.25)
    return report.show(options)


if __name__ == "__main__":
    sys.exit(main())
