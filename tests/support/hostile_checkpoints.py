"""Checkpoints whose sums fit and whose contents do not: written by somebody who knows the format."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open

from quorate.checkpoint.encoding import ABOUT
from quorate.checkpoint.folder import MANIFEST
from quorate.checkpoint.tensor_file import write_tensors

_SEAL = "manifest_sha256"
_VALUES: tuple[object, ...] = (
    None, True, False, -1, 0, 1, 624, 625, 2_000_000_000, 2**63, 10**30, -0.5, 1.5, 1e308, float("nan"), float("inf"),
    "", "a", "1", "../..", "/etc/passwd", "..", "manifest.json", "rank-0.safetensors", [], [1], [[]], {}, {"a": 1},
    {"tensor": "generators.torch"}, {"tensor": "no such"}, {"tuple": []}, {"dict": []}, {"dict": [["a", 1]]},
    {"Counter": 5}, {"other": 1},
)  # fmt: skip


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the manifest says, and seal it again."""
    said = json.loads((folder / MANIFEST).read_text())
    said.pop(_SEAL)
    change(said)
    text = json.dumps(said, indent=1)
    seal = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(f'{text[:-2]},\n "{_SEAL}": "{seal}"\n}}\n')


def change_tree(folder: Path, name: str, change: Callable[[Any], Any], tensors: Any = None) -> None:
    """Change what stands beside the tensors of a file (and, with `tensors`, these), and its sums."""
    path = folder / name
    with safe_open(path, framework="pt") as file:
        found = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        about = dict(file.metadata() or {})
    tree = json.loads(about[ABOUT]) if ABOUT in about else None
    changed = change(tree)
    if tree is not None:
        about[ABOUT] = json.dumps(tree if changed is None else changed)
    if tensors is not None:
        tensors(found)
    path.unlink()
    written = write_tensors(path, found, about).as_json
    change_manifest(folder, lambda said: said["files"].__setitem__(name, written))


def inside(tree: Any, *keys: Any) -> Any:
    """What a tree holds under `keys`; lists by place."""
    for key in keys:
        if isinstance(tree, list):
            tree = tree[key]
        elif "tuple" in tree:
            tree = tree["tuple"][key]
        else:
            tree = dict(map(tuple, tree["dict"]))[key]
    return tree


def put(tree: Any, *keys: Any, value: Any) -> None:
    """Put another value there."""
    *before, last = keys
    there = inside(tree, *before)
    if isinstance(there, list):
        there[last] = value
    elif "tuple" in there:
        there["tuple"][last] = value
    else:
        pair = next(pair for pair in there["dict"] if pair[0] == last)
        pair[1] = value


def mutate(draw: random.Random, folder: Path) -> str:
    """One random change in the manifest, or in a tree; returns where."""
    names = [MANIFEST, *(path.name for path in sorted(folder.glob("*.safetensors")) if _has_tree(path))]
    name = draw.choice(names)
    told: list[str] = []

    def change(value: Any) -> None:
        told.append(_alter(draw, value))

    if name == MANIFEST:
        change_manifest(folder, change)
    else:
        change_tree(folder, name, change)
    return f"{name}: {told[0]}"


def _has_tree(path: Path) -> bool:
    with safe_open(path, framework="pt") as file:
        return ABOUT in dict(file.metadata() or {})


def _alter(draw: random.Random, value: Any) -> str:
    """Change one value below `value`, chosen level by level, so that what is long does not get all of it."""
    way: list[str] = []
    while True:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return f"{'.'.join(way)} is empty"
        is_pair = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str | int)
        key = 1 if is_pair and draw.random() < 0.95 else draw.choice(keys)
        way.append(str(value[0]) if is_pair and key == 1 else str(key))
        if isinstance(value[key], dict | list) and value[key] and draw.random() < 0.95:
            value = value[key]
            continue
        kind = draw.random()
        if kind < 0.15:
            del value[key]
            return f"{'.'.join(way)} left out"
        if kind < 0.25 and isinstance(value, list):
            value.insert(key, value[draw.randrange(len(value))])
            return f"{'.'.join(way)} doubled"
        if kind < 0.35 and isinstance(value[key], int | float) and not isinstance(value[key], bool):
            value[key] = draw.choice([-value[key], value[key] * 10**9, value[key] + 1, str(value[key])])
        else:
            value[key] = draw.choice(_VALUES)
        return f"{'.'.join(way)} = {str(value[key])[:80]}"
