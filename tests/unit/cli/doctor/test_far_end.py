"""What is sent to other hosts is understood by old Pythons: 3.8 answers, and what is older says which is needed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from quorate.cli.doctor import far_end, hosts
from quorate.cli.doctor.hosts import Far, judge_reach

TREE = ast.parse(Path(far_end.__file__).read_text(), feature_version=(3, 8))
SINCE = {
    "3.9": ("zoneinfo", "graphlib", "removeprefix", "removesuffix", "cache", "lcm", "nextafter", "randbytes",
            "is_relative_to", "with_stem", "to_thread", "waitstatus_to_exitcode", "pidfd_open"),
    "3.10": ("pairwise", "bit_count", "aclosing", "aiter", "anext", "orig_argv", "stdlib_module_names",
             "packages_distributions", "get_annotations", "ParamSpec", "TypeAlias", "TypeGuard"),
    "3.11": ("tomllib", "UTC", "StrEnum", "ExceptionGroup", "TaskGroup", "timeout_at", "chdir", "add_note",
             "file_digest", "cbrt", "exp2", "Self", "Never", "assert_never"),
    "3.12": ("batched", "sumprod", "override", "walk"),
}  # fmt: skip
"""Names that the standard library has had since then, of what a program like this one could call."""


class _AtRunTime(ast.NodeTransformer):
    """Leaves out what is not executed: annotations, and what type checkers alone see."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return None if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant("")
        return self.generic_visit(node)


def _used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module, names):
                yield from (str(module), *(one.name for one in names))
            case ast.Attribute(attr=name) | ast.Name(id=name):
                yield name
            case ast.Call(func=ast.Name("zip"), keywords=[_, *_]):
                yield "zip(strict=...)"
            case ast.Subscript(value=ast.Name("dict" | "list" | "tuple" | "set" | "type" as name)):
                yield f"{name}[...]"
            case ast.BinOp(left=ast.Dict(), op=ast.BitOr()) | ast.BinOp(op=ast.BitOr(), right=ast.Dict()):
                yield "{} | {}"


def test_it_uses_what_python_38_has() -> None:
    first = next(node for node in TREE.body if isinstance(node, ast.ImportFrom))
    assert first.module == "__future__" and first.names[0].name == "annotations", "else annotations are executed"
    used = set(_used(_AtRunTime().visit(TREE)))
    newer = {name: version for version, names in SINCE.items() for name in names if name in used}
    assert newer == {}
    assert not {name for name in used if "..." in name or "|" in name}
    assert "TimeoutError" not in used, "sockets raise it since 3.10; before, socket.timeout is no such error"
    assert {"socket", "metadata", "create_connection"} <= used


def _answers(monkeypatch: pytest.MonkeyPatch, python: str) -> dict[str, object]:
    """Of a host that has this Python alone."""
    monkeypatch.setattr(hosts, "words_on", lambda host, command: ["sh", "-c", command.replace(sys.executable, python)])
    host = Far("b")
    try:
        return host.ask("about", packages=[])
    finally:
        host.close()


@pytest.mark.skipif(not Path("/bin/sh").exists(), reason="needs a shell")
def test_a_host_with_an_older_python_says_which_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Python of today that says it is an old one."""
    old = tmp_path / "python"
    begin = "import sys; sys.version_info = (3, 6, 8, 'final', 0)"
    old.write_text(f"#!/bin/sh\nshift 2\nexec {sys.executable} -c \"{begin}; exec('''$1''')\"\n")
    old.chmod(0o755)
    with pytest.raises(OSError, match=r"its Python is 3\.6\.8, and Quorate needs 3\.11 or later") as told:
        _answers(monkeypatch, str(old))
    found = judge_reach("b", str(told.value))
    assert found.found == str(told.value) and found.fix.startswith("install Python 3.11 or later there")


def _older() -> list[str]:
    """Those Pythons from 3.8 to 3.10 that are on this machine, and start."""
    found = [path for minor in (8, 9, 10) if (path := shutil.which(f"python3.{minor}"))]
    return [path for path in found if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode]


def test_older_pythons_that_are_here_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    older = _older()
    if not older:
        pytest.skip("there is no Python 3.8, 3.9 or 3.10 here")
    for path in older:
        assert str(_answers(monkeypatch, path)["python"]).startswith(Path(path).name.removeprefix("python"))
