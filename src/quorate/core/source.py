"""Documentation and settings of a named object, read from its source text without an import."""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from inspect import cleandoc


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One field of a dataclass; type and default as they are written in the source."""

    name: str
    type: str
    default: str | None
    """None where there is no default."""
    meaning: str
    """The text under the field, in one line; "" where there is none."""

    @property
    def is_duration(self) -> bool:
        """Whether the value is a number of seconds, which a command line takes with a unit."""
        return "float" in self.type and self.meaning.startswith("Seconds ")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The documentation of a class, a function or a value of a module, from the source text."""

    module: str
    """The module's documentation."""
    documentation: str
    """The docstring, or the text under a value; "" where there is none."""
    settings: tuple[Setting, ...] = ()
    """The public fields of a dataclass, in order; fields inherited from a class of another module come first."""
    facts: tuple[tuple[str, str], ...] = ()
    """Class variables with a value: name and value as written."""
    base_module: str = ""
    """The documentation of the module of the class that it derives from; "" if that is not imported by name."""


def read_source(place: str) -> Source | None:
    """Return the source of `place` (`module.path:attribute`); None where there is no source, or no such name in it."""
    module, colon, attribute = place.partition(":")
    assert colon, f"{place!r} is not module.path:attribute"
    spec = _spec_without_importing(module)
    if spec is None or not isinstance(spec.loader, InspectLoader):
        return None
    text = spec.loader.get_source(module)
    if text is None:
        return None
    tree = _parsed(text)
    about = ast.get_docstring(tree) or ""
    for node, below in _with_text_below(tree.body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == attribute:
            own = ast.get_docstring(node) or ""
            if isinstance(node, ast.FunctionDef):
                return Source(module=about, documentation=own)
            bases = _bases_of(node, tree)
            return Source(
                module=about,
                documentation=own,
                settings=_with_inherited(tuple(_settings(node)), bases),
                facts=tuple(_facts(node)),
                base_module=bases[0].module if bases else "",
            )
        if attribute in _assigned(node):
            return Source(module=about, documentation=below)
    return None


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _bases_of(node: ast.ClassDef, tree: ast.Module) -> list[Source]:
    """The sources of the classes that a class derives from, if they, or their modules, are imported by name."""
    imported = {
        alias.name: statement.module
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }
    sources = []
    for base in map(ast.unparse, node.bases):
        name, _, attribute = base.partition(".")
        if name in imported:
            package = imported[name]
            sources.append(read_source(f"{package}.{name}:{attribute}" if attribute else f"{package}:{name}"))
    return [source for source in sources if source is not None]


def _with_inherited(own: Sequence[Setting], bases: Sequence[Source]) -> tuple[Setting, ...]:
    """The settings of the `bases` of a class, with its own in their places."""
    inherited: dict[str, Setting] = {}
    for base in reversed(bases):  # the first one has the last word, as in dataclasses
        inherited |= {setting.name: setting for setting in base.settings}
    for setting in own:
        old = inherited.get(setting.name)
        if old is not None and not setting.meaning:
            setting = replace(setting, meaning=old.meaning)
        inherited[setting.name] = setting
    return tuple(inherited.values())


def _with_text_below(body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield every statement with the string right below it, the documentation of an attribute."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        yield node, cleandoc(text) if isinstance(text, str) else ""


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _settings(node: ast.ClassDef) -> Iterator[Setting]:
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return
    for name, field, below in _fields(node):
        call = field.value if isinstance(field.value, ast.Call) and ast.unparse(field.value.func) == "field" else None
        options = {option.arg: ast.unparse(option.value) for option in call.keywords} if call else {}
        if name.startswith("_") or _is_of_the_class(field) or options.get("init") == "False":
            continue
        default = None if field.value is None or call else ast.unparse(field.value)
        if call:
            made = options.get("default_factory")
            default = f"{made}()" if made else options.get("default")
        yield Setting(name=name, type=ast.unparse(field.annotation), default=default, meaning=" ".join(below.split()))


def _facts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for name, field, _ in _fields(node):
        if _is_of_the_class(field) and field.value is not None and not name.startswith("_"):
            yield name, ast.unparse(field.value)
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            yield from ((name, ast.unparse(statement.value)) for name in _assigned(statement) if name[0] != "_")


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.AnnAssign, str]]:
    for statement, below in _with_text_below(node.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement, below


def _is_of_the_class(field: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(field.annotation)


def _spec_without_importing(module: str) -> ModuleSpec | None:
    """Return the spec of a module without importing its packages, as `find_spec` would."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    name = top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return None
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    return spec
