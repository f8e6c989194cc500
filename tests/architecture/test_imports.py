"""Who may know what: layers, torch.distributed, pickle, the environment, threads and clocks."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys

from tests.architecture.tree import ROOT, modules, uses

KNOW_TORCH_DISTRIBUTED = {"wire", "sharding", "launch"}
READ_THE_ENVIRONMENT = {"launch", "cli", "notebook", "wire"}
READ_ONE_VARIABLE = {"src/quorate/core/resources.py": "XDG_CACHE_HOME: where this user's caches lie"}
MAY_PICKLE = {
    "src/quorate/checkpoint/exports.py": "files for others: torch.save, and torch.load with weights_only",
    "src/quorate/sharding/torch_states.py": "folders for others: torch reads their metadata by pickle",
    "src/quorate/notebook/function.py": "a function of a cell, to processes that this one starts, in a private folder",
}
"""Why."""
_OBJECTS = r"(all_gather|gather|broadcast|scatter|send|recv)_object(_list)?"
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def test_layers_and_families() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_torch_distributed_is_known_to_few() -> None:
    rest = [module for module in modules() if module.room not in KNOW_TORCH_DISTRIBUTED]
    assert not [use for module in rest for use in uses(module, "torch.distributed")]


def test_nothing_is_pickled() -> None:
    ways = (
        *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml"),
        *("torch.load", "torch.save", "torch.hub", "torch.jit.load", "torch.distributed.checkpoint"),
        *(f"multiprocessing.{name}" for name in ("connection", "managers", "Pipe", "Queue", "Process", "Pool")),
    )
    used = [use for module in modules() if module.place not in MAY_PICKLE for use in uses(module, *ways)]
    used += [
        f"{module.place}:{node.lineno} uses {node.attr}, which pickles"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.Attribute) and re.fullmatch(_OBJECTS, node.attr)
    ]
    allowed = [
        f"{module.place}:{node.value.lineno} gives allow_pickle"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle"
    ]
    assert not used + allowed, "control messages are JSON, tensors are raw bytes, files are safetensors"


def test_the_environment_is_read_at_the_edge() -> None:
    ways = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv")
    rest = [module for module in modules() if module.room not in READ_THE_ENVIRONMENT]
    assert {module.place for module in rest if uses(module, *ways)} == set(READ_ONE_VARIABLE)


def test_strategies_know_no_thread_and_no_wall_clock() -> None:
    world = ("threading", "multiprocessing", "concurrent", "asyncio", "subprocess", "socket", "time", "datetime")
    own = [module for module in modules() if module.room == "strategies"]
    assert not [use for module in own for use in uses(module, *world)], "else they cannot run in the virtual world"


def test_names_that_benchmarks_and_examples_import_exist() -> None:
    """Their functions import when they are called, and types are checked in `src` alone."""
    missing = []
    for path in sorted(path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "quorate":
                try:
                    module = importlib.import_module(node.module)
                except ModuleNotFoundError as error:
                    if str(error.name).startswith("quorate"):
                        missing.append(f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}")
                    continue  # of an extra
                names = [
                    name.name
                    for name in node.names
                    if not hasattr(module, name.name) and importlib.util.find_spec(f"{node.module}.{name.name}") is None
                ]
                missing += [f"{path.relative_to(ROOT)}:{node.lineno} imports {node.module}.{name}" for name in names]
    assert not missing
