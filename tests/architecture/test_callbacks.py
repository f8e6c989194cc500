"""A callback is an argument of a constructor, or an entry of a list of observers: none is set on an object later."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import zip_longest

from tests.architecture.tree import PACKAGE, Module, dotted, modules

MAY_BE_SET: dict[str, str] = {
    "src/quorate/horovod/reductions.py ctx.gather": "torch's functions keep what their backward needs on ctx",
    "src/quorate/launch/warm/script.py threading.excepthook": "a hook of Python's own",
}
"""`path attribute`: why this callable is set on another object."""
MAY_BE_TAKEN: dict[str, str] = {
    "src/quorate/horovod/reductions.py _Allreduce.forward": "torch's functions keep what their backward needs on ctx",
    "src/quorate/launch/warm/costing.py Layers.begin": "each measurement has its own meter, and None ends it",
    "src/quorate/means/reducer.py Reducer.measure": "reducers are made from settings, before the timer",
    "src/quorate/sharding/undivided.py Undivided.divided": "the division that comes after it makes the context",
    "src/quorate/wire/real/endpoint.py Endpoint.checking": "a context sets it, and puts the earlier one back",
}
"""`path class.method`: why a method keeps a callable that it is passed."""


def _is_callable(annotation: ast.expr | None, aliases: frozenset[str]) -> bool:
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    return text.startswith("Callable[") or not aliases.isdisjoint(text.split(" | "))


@cache
def _defined() -> frozenset[str]:
    """Return the types of callables that modules have named, `Move = Callable[...]`, with the names of modules."""
    return frozenset(
        f"{_name(module)}.{node.targets[0].id}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Subscript)
        and dotted(node.value.value) == "Callable"
    )


def _name(module: Module) -> str:
    return ".".join(module.path.relative_to(PACKAGE.parent).with_suffix("").parts)


def _aliases(module: Module) -> frozenset[str]:
    """Return the names of types of callables in a module, imported ones included."""
    own = f"{_name(module)}."
    imports = [node for node in module.tree.body if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in imports for alias in node.names} & _defined()
    return frozenset(name.rpartition(".")[2] for name in names | {name for name in _defined() if name.startswith(own)})


def _assigned(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.Attribute, ast.expr | None]]:
    """Yield each attribute that is assigned, and its value, if it is one expression."""
    for assignment in (node for node in nodes if isinstance(node, ast.Assign)):
        for target in assignment.targets:
            targets, values = [target], [assignment.value]
            if isinstance(target, ast.Tuple):
                targets = target.elts
                values = assignment.value.elts if isinstance(assignment.value, ast.Tuple) else []
            for attribute, value in zip_longest(targets, values):
                if isinstance(attribute, ast.Attribute):
                    yield attribute, value


def _declared(kind: ast.ClassDef, aliases: frozenset[str]) -> Iterator[tuple[str, bool]]:
    """Yield each attribute that a class declares, and whether it is a callable."""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, _is_callable(node.annotation, aliases)
        if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
            continue
        arguments = (*node.args.args, *node.args.kwonlyargs)
        passed = {argument.arg for argument in arguments if _is_callable(argument.annotation, aliases)}
        inside = list(ast.walk(node))
        for statement in inside:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute):
                yield statement.target.attr, _is_callable(statement.annotation, aliases)
        for attribute, value in _assigned(inside):
            if dotted(attribute.value) == "self":
                yield attribute.attr, isinstance(value, ast.Name) and value.id in passed


@cache
def _callbacks() -> frozenset[str]:
    """Return the names of attributes that are callables in every class that declares them."""
    declared: dict[str, bool] = {}
    for module in modules():
        aliases = _aliases(module)
        for node in module.nodes:
            for name, is_callable in _declared(node, aliases) if isinstance(node, ast.ClassDef) else ():
                declared[name] = declared.get(name, True) and is_callable
    return frozenset(name for name, is_callable in declared.items() if is_callable)


def _set_later(module: Module) -> Iterator[str]:
    for attribute, value in _assigned(module.nodes):
        is_made = isinstance(value, ast.Lambda) or (isinstance(value, ast.Call) and dotted(value.func) == "partial")
        if dotted(attribute.value) != "self" and (is_made or attribute.attr in _callbacks()):
            yield f"{module.place} {ast.unparse(attribute)}"


def test_no_callback_is_set_on_an_object_after_its_construction() -> None:
    """By the names of attributes: a name that another class has for something else is seen for lambdas and partials."""
    found = {place for module in modules() for place in _set_later(module)}
    assert found == set(MAY_BE_SET), "pass it to the constructor, or append it to a list of observers"


def _takers(module: Module) -> Iterator[str]:
    """Yield the methods, other than constructors, that keep a callable of their arguments on an object."""
    aliases = _aliases(module)
    for kind in (node for node in module.nodes if isinstance(node, ast.ClassDef)):
        for method in (node for node in kind.body if isinstance(node, ast.FunctionDef)):
            arguments = (*method.args.args, *method.args.kwonlyargs)
            passed = {argument.arg for argument in arguments if _is_callable(argument.annotation, aliases)}
            kept = {value.id for _, value in _assigned(ast.walk(method)) if isinstance(value, ast.Name)}
            if method.name != "__init__" and not kept.isdisjoint(passed):
                yield f"{module.place} {kind.name}.{method.name}"


def test_no_method_keeps_a_callback_in_place_of_an_earlier_one() -> None:
    assert {place for module in modules() for place in _takers(module)} == set(MAY_BE_TAKEN)
