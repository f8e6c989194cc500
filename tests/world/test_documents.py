"""The Python that the documents show runs: each block on two virtual workers, the reader's own names supplied."""

from __future__ import annotations

import ast
import builtins
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate import strategies
from quorate.cli.main import main
from quorate.launch.virtual.run import run_script
from tests.architecture.test_documents import DOCUMENTS, blocks
from tests.architecture.tree import ROOT
from tests.support.programs import quorate

EXCERPTS = {"docs/howto/my-own-script.md"}
"""Documents that show parts of the examples, which run as a whole."""
LIBRARIES = ("accelerate", "jax", "keras", "lightning", "transformers")
FRAGMENTS: dict[str, str] = {
    "docs/howto/data-from-files.md": "they read files that the reader has",
    "docs/howto/ddp-scripts.md": "it shows lines of a script for DDP; the contract of such scripts runs them",
    "docs/howto/launch-ray.md": "it needs Ray; a test under launchers runs it",
    "docs/howto/migrate-deepspeed.md": "it begins with a model of the reader's; test_migration_pages.py runs it",
    **{f"docs/howto/inside-{name}.md": "tests of `make test-interop` run it" for name in LIBRARIES},
}
"""Documents whose blocks are no Python that could run, and why."""
PROCESSES = {
    f"docs/howto/{name}.md"
    for name in (
        "shard",
        "sparse-gradients",
        "tensor-parallel",
        "stages",
        "sequence",
        "branches",
        "experts",
        "convolutions",
        "watch-and-log",
    )
}
"""Documents whose blocks need workers that are processes."""
SUPPLIED = {
    "torch": "import torch",
    "quorate": "import quorate",
    "world": "world = quorate.join()",
    "dataset": "dataset = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 256).view(64, 4), torch.ones(64, 1))",
    "Net": "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 1)",
    "loss_of": "def loss_of(model, batch):\n    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])",
    "model": "model = Net().to(world.device)",
    "optimizer": "optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model)",
    "scheduler": "scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)",
    "scaler": "scaler = torch.amp.GradScaler('cpu')",
    "loader": "loader = quorate.loader(dataset, batch_size=8)",
    "batch": "batch = next(iter(loader))",
    "loss": "loss = loss_of(model, batch)",
    "epochs": "epochs = 2",
    "steps": "steps = 60",
    "step": "def step(model, optimizer):\n"
    "    loss_of(model, batch).backward()\n    optimizer.step()\n    optimizer.zero_grad()",
    "accuracy": "def accuracy(model):\n    return -loss_of(model, batch).item()",
    **{name: f"{name} = torch.randn(1, 4, 4096, 16)" for name in "qkv"},
    "generate": "def generate(model):\n    return model(torch.ones(1, 4))",
}
"""What a block may use without making it, and what is put there."""
AFTERWARDS = {
    ("docs/howto/add-a-strategy.md", 0): """
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = quorate.distribute(
            plain, model, strategy="periodic-averaging", sync_every=7, compare_every=1, with_one_worker="algorithm"
        )
        for _ in range(10):
            for batch in loader:
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
            own = world.gather(model.weight.detach())
            with world.evaluate():
                every = world.gather(model.weight.detach())
                assert all(torch.equal(each, every[0]) for each in every)
                assert torch.allclose(every[0], sum(own) / len(own), atol=1e-6)
        optimizer.finish()
        every = world.gather(model.weight.detach())
        assert all(torch.equal(each, every[0]) for each in every)
    """,
    ("docs/howto/add-a-strategy.md", 1): """
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = quorate.distribute(plain, model, strategy="gossip-memory", gamma=0.5)
        for batch in loader:
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.finish()
        every = world.gather(model.weight.detach())
        assert all(torch.equal(each, every[0]) for each in every)
    """,
    ("docs/howto/checkpoints.md", -1): """
        import torch
        plain = torch.optim.AdamW(torch.nn.Linear(8, 1).parameters())
        plain.load_state_dict(optimizer_state("runs/first/checkpoints/step-00000200/optimizer.safetensors"))
        assert plain.state_dict()["state"][0]["step"] == 200
    """,
}
"""What goes on after a block of a document, to see that it did what the text says."""

RUNS = {"mine": "docs/tutorial/first-training.md", "first": "docs/howto/checkpoints.md"}
"""Runs that blocks read, and whose first block is the script that makes them."""

BLOCKS = [
    pytest.param(document, number, id=f"{document.relative_to(ROOT).as_posix()}-{number}")
    for document in DOCUMENTS
    if document.relative_to(ROOT).as_posix() not in EXCERPTS | set(FRAGMENTS)
    for number in range(len(blocks(document, "python")))
]


def needed(text: str) -> Iterator[str]:
    """What has to stand before `text`, in order: lines for each name that it reads and nowhere makes."""
    supplied: dict[str, str] = {}

    def supply(text: str) -> None:
        for name in sorted(_missing(text) - supplied.keys()):
            assert name in SUPPLIED, (
                f"nobody makes {name}: let the block make it, or supply it in {Path(__file__).name}"
            )
            supply(SUPPLIED[name])
            supplied[name] = SUPPLIED[name]

    supply(text)
    yield from supplied.values()


def _missing(text: str) -> set[str]:
    made, read = set(dir(builtins)) | {"__file__"}, set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return read - made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would stand, with a run of four workers in runs/mine. What a block registers is forgotten.

    The examples, which other tests register, are not there.
    """
    monkeypatch.chdir(tmp_path)
    places = {name: place for name, place in strategies.strategies._places.items() if place.startswith("quorate.")}
    monkeypatch.setattr(strategies.strategies, "_places", places)
    monkeypatch.setattr(strategies.strategies, "_loaded", dict(strategies.strategies._loaded))
    return tmp_path


def runs(text: str, folder: Path, size: int = 2, *, processes: bool = False) -> bool:
    script = folder / "block.py"
    script.write_text(text)
    if processes:
        return quorate(folder, "run", "-n", str(size), "block.py").returncode == 0
    return run_script(script, size=size, run_dir=folder / "logs") == 0


@pytest.mark.parametrize(("document", "number"), BLOCKS)
def test_what_is_shown_runs(document: Path, number: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = blocks(document, "python")
    block = shown[number]
    for place in (number, number - len(shown)):
        block += textwrap.dedent(AFTERWARDS.get((document.relative_to(ROOT).as_posix(), place), ""))
    monkeypatch.setenv("QUORATE_RUN", "")  # put back afterwards
    for name, maker in RUNS.items():
        if f"runs/{name}/" in block:
            (folder / "train.py").write_text(blocks(ROOT / maker, "python")[0])
            with pytest.raises(SystemExit) as ended:
                main(["run", "--virtual", "4", "--name", name, "train.py"])
            assert ended.value.code == 0
    monkeypatch.setenv("QUORATE_RUN", str(folder / "runs" / "here"))
    future = "from __future__ import annotations\n"  # has to stand before what is supplied
    head, body = (future, block.replace(future, "")) if future in block else ("", block)
    processes = document.relative_to(ROOT).as_posix() in PROCESSES
    if processes:
        monkeypatch.delenv("QUORATE_RUN")
    assert runs("\n".join([head, *needed(body), body]), folder, processes=processes)


def test_a_block_that_is_wrong_is_noticed(folder: Path) -> None:
    assert not runs("assert False, 'as a wrong block would'", folder)
    with pytest.raises(AssertionError, match="nobody makes undefined"):
        list(needed("print(undefined)"))
    assert list(needed("def f(x): return [y for y in x]\nimport a.b\na, f")) == []


@pytest.mark.parametrize("document", sorted(EXCERPTS))
def test_excerpts_are_in_the_examples(document: str) -> None:
    examples = [path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "examples").glob("*.py")]
    excerpts = [block.splitlines() for block in blocks(ROOT / document, "python")]
    assert excerpts
    for lines in excerpts:
        places = [(text, start) for text in examples for start in range(len(text))]
        assert any(text[start : start + len(lines)] == lines for text, start in places), lines
