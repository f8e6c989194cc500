"""Real processes: a worker that was killed is replaced, and one more joins a run under way."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from quorate.records.records import ranks_in
from tests.support.programs import QUORATE, Program, quorate

SCRIPT = textwrap.dedent(
    """
    import hashlib, json, os, signal, time, torch, quorate
    from torch.utils.data import TensorDataset

    world = quorate.join()
    torch.manual_seed(world.rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model, "quorum")
    loader = quorate.loader(TensorDataset(torch.arange(60.0)[:, None].expand(60, 4) / 60, torch.arange(60)), 2)
    steps = 0
    for epoch in range(loader.epoch, 1000):
        numbers = []
        for inputs, of in loader:
            if world.rank == 1 and steps == 9:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            steps += 1
            numbers += of.tolist()
        with world.evaluate():
            ranks, given = world.gather(world.rank), sum(world.gather(numbers), [])
        if world.rank == 0:
            print(json.dumps([epoch, ranks, len(given), len(set(given))]), flush=True)
        if len(ranks) == WANTED and epoch:  # what the dead had computed of the first is told by nobody
            break
    optimizer.finish()
    bits = b"".join(x.detach().numpy().tobytes() for x in (*model.parameters(), *model.buffers()))
    print("end", hashlib.sha256(bits).hexdigest(), flush=True)
    """
)


def launched(folder: Path, wanted: int, *options: str, text: str = SCRIPT) -> Program:
    script = folder / "script.py"
    script.write_text(text.replace("WANTED", str(wanted)))
    return Program([*QUORATE, "run", "--name", "here", *options, str(script)], cwd=folder)


def ended(process: Program) -> tuple[list[str], str]:
    status, out, err = process.ended()
    assert status == 0, err
    return out.splitlines(), err


def joined(folder: Path, process: Program) -> subprocess.CompletedProcess[str]:
    """What `quorate join` does, as soon as the run can be joined."""
    process.until((folder / "runs" / "here" / "board.address").exists)
    return quorate(folder, "join", "here")


SERVED = 'parameter-server", servers=1, mode="async", on_death="continue'


@pytest.mark.parametrize("strategy", ["quorum", "hogwild", SERVED], ids=["quorum", "hogwild", "parameter-server"])
def test_one_comes_in_place_of_the_dead_and_one_more_when_asked_for(strategy: str, tmp_path: Path) -> None:
    text = SCRIPT.replace('"quorum"', f'"{strategy}"')
    process = launched(tmp_path, 3, "-n", "2", "--restart", "1", "--max-joins", "1", text=text)
    asked = joined(tmp_path, process)
    out, err = ended(process)
    assert asked.returncode == 0, asked.stderr
    assert "has joined" in asked.stdout
    assert "rank 1 (host" in err and "is started in place of rank 1" in err and "as was asked for" in err
    folder = tmp_path / "runs" / "here"
    assert ranks_in(folder) == [0, 1, 2, 3]
    assert json.loads(out[-2])[1:] == [[0, 2, 3], 60, 60], out
    ends = [(folder / f"rank-{rank}.log").read_text().splitlines()[-1] for rank in (0, 2, 3)]
    assert ends[0].startswith("end ") and len(set(ends)) == 1
    assert json.loads((folder / "outcome.json").read_text())["status"] == 0
    assert not (tmp_path / "runs" / "here" / "board.address").exists()


TWO = """
    every = list(model.parameters())
    matrices, rest = [p for p in every if p.ndim > 1], [p for p in every if p.ndim < 2]
    optimizer = quorate.distribute(torch.optim.SGD(matrices, 0.01, 0.9), model, "eager-majority")
    rest = quorate.distribute(torch.optim.AdamW(rest), model, "eager-majority")
    """


def test_one_joins_a_training_with_two_optimizers(tmp_path: Path) -> None:
    line = next(line for line in SCRIPT.splitlines() if line.startswith("optimizer = "))
    text = SCRIPT.replace(line, textwrap.dedent(TWO))
    for call in ("zero_grad()", "step()", "finish()"):
        text = text.replace(f"optimizer.{call}", f"optimizer.{call}; rest.{call}")
    process = launched(
        tmp_path, 3, "-n", "2", "--max-joins", "1", text=text.replace("world.rank == 1 and", "False and")
    )
    asked = joined(tmp_path, process)
    out, _ = ended(process)
    assert asked.returncode == 0, asked.stderr
    assert json.loads(out[-2])[1:] == [[0, 1, 2], 60, 60], out
    folder = tmp_path / "runs" / "here"
    ends = [(folder / f"rank-{rank}.log").read_text().splitlines()[-1] for rank in range(3)]
    assert ends[0].startswith("end ") and len(set(ends)) == 1


@pytest.mark.parametrize("run", ["here", "nowhere"])
def test_a_run_that_is_not_there_or_over_is_not_joined(tmp_path: Path, run: str) -> None:
    (tmp_path / "runs" / "here").mkdir(parents=True)
    (tmp_path / "runs" / "here" / "run.json").write_text("{}")
    asked = quorate(tmp_path, "join", run)
    assert asked.returncode == 2
    assert asked.stderr.startswith("quorate: ") and asked.stderr.count("\n") == 1 and run in asked.stderr


def test_one_that_is_refused_ends_alone(tmp_path: Path) -> None:
    """Its script builds another model."""
    text = SCRIPT.replace("BatchNorm1d(4)", "BatchNorm1d(4, affine=world.rank < 2)").replace("world.rank == 1", "False")
    ends = "any(world.gather(os.path.exists('refused')))"
    process = launched(tmp_path, 2, "-n", "2", "--max-joins", "1", text=text.replace("len(ranks) == WANTED", ends))
    asked = joined(tmp_path, process)
    Path(tmp_path, "refused").touch()
    out, err = ended(process)
    assert asked.returncode == 1 and "its log is" in asked.stderr
    assert "rank 2 exited with status 2 before it had joined; the others go on" in err
    assert "a different model than the workers it joins" in Path(tmp_path, "runs", "here", "rank-2.log").read_text()
    assert len({line for line in out if line.startswith("end")}) == 1
