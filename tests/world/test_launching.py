"""`quorate.launch` with processes, and the notebooks: as plain python, and in a real kernel where there is one."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.support import programs

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
CELL = """
import torch, quorate

factor = 3.0

class Net(torch.nn.Linear):
    pass

def train(fails=None):
    world = quorate.join()
    model = Net(2, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for _ in range(5):
        model(torch.ones(2, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.finish()
    if world.is_first:
        print("hello from rank 0")
    if fails == world.rank:
        raise KeyError("no such key")
    return {"rank": world.rank * factor, "weight": model.weight.detach()}
"""
IN_PROCESSES = CELL + textwrap.dedent(
    """
    if __name__ == "__main__":
        found, folder = quorate.launch(train, n=2, name="x")
        assert [one["rank"] for one in found] == [0.0, 3.0] and torch.equal(found[0]["weight"], found[1]["weight"])
        assert sorted(path.name for path in folder.glob("rank-*.jsonl")) == ["rank-0.jsonl", "rank-1.jsonl"]
        try:
            quorate.launch(train, n=1, args=(0,))
        except RuntimeError as error:
            print("failed:", error)
    """
)


FOR_DDP = """
import torch, quorate
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        model(torch.randn(2, 2)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    return model.module.weight.detach()

if __name__ == "__main__":
    first, second = quorate.launch(train, n=2, strategy="local-sgd", name="x", progress=False).results
    assert torch.equal(first, second)
"""


@pytest.mark.slow
def test_a_function_for_ddp_trains_unchanged(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(FOR_DDP)
    done = programs.run(["start.py"], cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "runs" / "x" / "run.json").read_text())["strategy"] == "local-sgd"


@pytest.mark.slow
def test_a_function_of_a_script_in_processes(tmp_path: Path) -> None:
    (tmp_path / "start.py").write_text(IN_PROCESSES)
    done = programs.run(["start.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("hello from rank 0") == 2
    assert "failed: rank 0 raised KeyError: 'no such key'" in done.stdout
    assert 'raise KeyError("no such key")' in done.stdout
    assert "records in " in done.stderr


NUMBER = re.compile(r"[-+]?\d[\d.,]*(?:e[-+]?\d+)?")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_as_plain_python(notebook: Path, tmp_path: Path) -> None:
    """They print their stored outputs, in which other machines may have other digits."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    code = ["".join(cell["source"]) for cell in cells]
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output.get("name") for output in outputs} == {"stdout"}, "only printed text, and no warnings, is stored"
    stored = "".join("".join(output["text"]) for output in outputs)
    (tmp_path / "cells.py").write_text("\n\n".join(code) + "\n")
    done = programs.run(["cells.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert NUMBER.sub("0", done.stdout).split() == NUMBER.sub("0", stored).split()
    assert "Warning" not in done.stderr


HAS_KERNEL = all(importlib.util.find_spec(name) for name in ("nbclient", "ipykernel"))
NOTEBOOK = """
import nbformat, nbclient, sys
book = nbformat.v4.new_notebook()
book.cells = [nbformat.v4.new_code_cell(text) for text in sys.argv[1:]]
nbclient.NotebookClient(book, timeout=100, allow_errors=True).execute()
nbformat.write(book, "out.ipynb")
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_KERNEL, reason="there is no Jupyter kernel (pip install nbclient ipykernel)")
def test_in_a_kernel(tmp_path: Path) -> None:
    cells = (
        CELL,
        "quorate.launch(train, virtual=3).results[2]['rank']",
        "run = quorate.launch(train, n=2); run.results[1]['rank']",
        "quorate.report(run)",
        "quorate.launch(train, n=2, args=(1,))",
    )
    env = {**os.environ, "PYTHONWARNINGS": "default"}
    subprocess.run([sys.executable, "-c", NOTEBOOK, *cells], cwd=tmp_path, check=True, timeout=240.0, env=env)
    _, virtual, real, report, failed = (
        cell["outputs"] for cell in json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    )
    for outputs, result in ((virtual, "6.0"), (real, "3.0")):
        shown = {
            kind: [one for one in outputs if one["output_type"] == kind] for kind in ("display_data", "execute_result")
        }
        assert "every worker has ended" in str(shown["display_data"]) or "ended well" in str(shown["display_data"])
        assert shown["execute_result"][0]["data"]["text/plain"] == [result]
        assert "hello from rank 0" in str(outputs) and "Warning" not in str(
            [o for o in outputs if o["output_type"] == "stream"]
        )
    assert "text/html" in report[0]["data"] and "iframe" in str(report[0]["data"]["text/html"])
    assert failed[-1]["ename"] == "WorkerFailed" and "rank 1 raised KeyError" in failed[-1]["evalue"]
    assert 'raise KeyError("no such key")' in failed[-1]["evalue"]
