"""Real processes under `--chaos`: killed, stopped and slowed down as the schedule says; and the run ends well."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from typing import Any

from quorate.inject.failures import failures_from
from quorate.records.records import ranks_in, rows
from tests.support.launching import is_running
from tests.support.programs import QUORATE, Program

SCRIPT = textwrap.dedent(
    """
    import json, time, torch, quorate
    from pathlib import Path
    from torch.utils.data import TensorDataset

    def is_over():
        rows = [json.loads(line) for line in Path("runs/here/chaos.jsonl").read_text().splitlines()]
        return {"restarted", "continued"} <= {row.get("done") for row in rows} and "slow" in {r["kind"] for r in rows}

    world = quorate.join()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = quorate.distribute(plain, model, "decoupled-diloco", sync_every=4, outer_rate=1.0)
    was_over = False
    loader = quorate.loader(TensorDataset(torch.ones(60, 4), torch.arange(60)), 2)
    for epoch in range(loader.epoch, 100000):
        for inputs, _ in loader:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
        with world.evaluate():
            ranks, over = world.gather(world.rank), world.gather(was_over)
        was_over = is_over()  # the slow one is to make a further epoch
        if len(ranks) == WORKERS and all(over):
            break
    optimizer.finish()
    """
)
FAILURES, SEED = "mtbf=9s,repair=0.2s,stop=0.34:0.6s,slow=0.33:x3:0.6s", 16841
"""Rank 0 is killed after 1.8 s, rank 1 stopped after 2.0 s, rank 2 slow after 3.1 s; then nothing for 9 s."""


def launched(folder: Path, workers: int, failures: str, seed: int) -> Program:
    (folder / "train.py").write_text(SCRIPT.replace("WORKERS", str(workers)))
    chaos = ["--chaos", str(seed), "--failures", failures]
    words = ["run", "-n", str(workers), "--min-step-time", "20ms", "--name", "here", *chaos, "train.py"]
    return Program([*QUORATE, *words], cwd=folder)


def struck(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs" / "here" / "chaos.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_the_schedule_strikes_and_the_others_go_on(tmp_path: Path) -> None:
    status, _, err = launched(tmp_path, 3, FAILURES, SEED).ended()
    assert status == 0, err
    found = struck(tmp_path)
    assert (found[0]["kind"], found[0]["failures"], found[0]["seed"]) == ("begin", FAILURES, SEED)
    told = [row for row in found if "due" in row]
    schedule = failures_from(FAILURES).schedule(3, SEED)
    expected = [
        (one.kind, rank, one.time, one.seconds) for one, _ in zip(schedule, told, strict=False) for rank in one.ranks
    ]
    assert [(row["kind"], row["rank"], row["due"], row["seconds"]) for row in told] == expected[: len(told)]
    assert [row["done"] for row in told[:3]] == ["struck"] * 3
    assert all(row["time"] >= row["due"] for row in told)
    assert " s: rank 0 is killed\n" in err and "rank 3 is started in place of rank 0" in err
    assert "goodput" in err.splitlines()[-1]
    folder = tmp_path / "runs" / "here"
    assert set(ranks_in(folder)) >= {0, 1, 2, 3}
    begin = found[0]["now"] + told[2]["due"]
    delays = [row["delay"] for row in rows(folder / "rank-2.jsonl") if row["kind"] == "step" and row["arrive"] > begin]
    assert max(delays[:5]) > 0.05, "three times the pace"


def test_ctrl_c_leaves_nobody_not_even_who_is_stopped(tmp_path: Path) -> None:
    process = launched(tmp_path, 2, "mtbf=2s,stop=1:600s", 1)
    try:
        process.until(lambda: any(row.get("done") == "struck" for row in struck(tmp_path)))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert [row["done"] for row in struck(tmp_path)[1:]][-1] == "continued"
    folder = tmp_path / "runs" / "here"
    started = [
        row for rank in ranks_in(folder) for row in rows(folder / f"rank-{rank}.jsonl") if row["kind"] == "start"
    ]
    assert len(started) == 2 and not any(is_running(row["pid"]) for row in started)
