"""The sources as the architecture tests read them: parsed, never imported."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "quorate"


@dataclass(frozen=True)
class Module:
    """One Python file: where it is and what it says."""

    path: Path
    text: str

    @property
    def place(self) -> str:
        """The path as a reader names it, from the root of the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        """The folder of the package it lives in: `wire`, `strategies`; the empty string for the API."""
        inside = self.path.relative_to(PACKAGE).parts
        return inside[0] if len(inside) > 1 else ""

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of it, in the order of `ast.walk`."""
        nodes = tuple(ast.walk(self.tree))
        gc.freeze()  # they stay: collections need not go through a million of them
        return nodes

    @cached_property
    def names(self) -> list[tuple[int, str]]:
        """Every dotted name that it imports or reaches, with its line: see `named`."""
        return sorted(set(named(self.nodes)))


@cache
def modules(folder: Path = PACKAGE) -> tuple[Module, ...]:
    """Every Python file under `folder`, in order of path; read once."""
    paths = sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
    assert paths, f"no Python files under {folder}"
    return tuple(Module(path, path.read_text(encoding="utf-8")) for path in paths)


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes on a name; the empty string for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def named(nodes: Sequence[ast.AST]) -> Iterator[tuple[int, str]]:
    """Every dotted name a file imports or reaches by attribute, with its line: `torch.distributed`, `os.environ`.

    `from a import b` counts as `a` and as `a.b`, and `import a as z` followed by `z.b` as `a.b`.
    """
    aliases: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                if alias.asname:
                    aliases[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in nodes:
        if isinstance(node, ast.Attribute) and (chain := dotted(node)):
            head, _, rest = chain.partition(".")
            yield node.lineno, f"{aliases.get(head, head)}.{rest}"


def uses(module: Module, *banned: str) -> list[str]:
    """The places where a file names one of `banned`, or anything inside it, as `path:line names what`."""
    return [
        f"{module.place}:{line} names {name}"
        for line, name in module.names
        if any(name == ban or name.startswith(f"{ban}.") for ban in banned)
    ]
