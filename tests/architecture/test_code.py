"""No placeholders, and no error swallowed without a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import Module, dotted, modules

MAY_CATCH_ANYTHING: dict[str, str] = {
    "src/quorate/launch/warm/loading.py trials": "a dataset raises what it likes; the answer has it",
    "src/quorate/cli/planner/trials.py _several.answer": "what ends a run is raised by whoever waits for it",
    "src/quorate/data/same_data.py sample": "a dataset raises what it likes; the training loop meets it at its place",
    "src/quorate/data/files/dataset.py Files.read": "a reader raises what it likes for a damaged file, which is named",
    "src/quorate/data/files/listing.py _counted": "as above: what it raised is told to all workers, and raised on all",
    "src/quorate/gossip/requests.py Requests._take_message": "what a served function raises is told to whoever asked",
    "src/quorate/launch/loggers/writing.py Writing._guarded": "a logger of others raises what it likes",
    "src/quorate/launch/warm/run_server.py Run._live": "whoever waits for a run gets what ended its thread",
    "src/quorate/means/algorithms/in_turn.py SumsInTurn._run": "whoever waits for a sum gets what ended its task",
    "src/quorate/replica/by_tensors.py reach_of": "a stranger's class that fails a trial is taken for the general case",
    "src/quorate/replica/optimizer_state.py _tried": "as above: its momentum is kept by the shared optimizer",
    "src/quorate/replica/optimizer_state.py clears_gradients": "as above: it is taken to leave gradients as they are",
    "src/quorate/replica/optimizer_state.py keys_like_parameters": "a class that fails a trial is told in a sentence",
    "src/quorate/sharding/host_step.py HostStep._make": "what ends a step in its thread is raised in the training",
    "src/quorate/sharding/tensor/finding.py _outermost": "a model's code that cannot be followed is looked at in parts",
    "src/quorate/wire/store.py _Call.run": "what a call raises is raised by whoever asked for it",
    "src/quorate/wire/group.py SumInHalves.pass_on": "whoever waits for a sum gets what ended its other half",
    "src/quorate/wire/real/host_sums.py HostSums._run": "as above: whoever waits for a sum gets it",
    "src/quorate/wire/real/works.py TaskWork._run": "what a spawned task raises is raised by whoever waits for it",
    "src/quorate/wire/virtual/stage.py Stage.play": "a virtual worker ends as a process would, whatever ended it",
    "src/quorate/wire/virtual/stage.py Stage.spawn.body": "as above: whoever waits for the task gets it",
}
"""`path function`: why whatever was raised there goes on by another way than `raise`."""


def _functions(module: Module) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """Every node with the functions and classes around it, the outermost first."""
    pending: list[tuple[ast.AST, list[ast.AST]]] = [(module.tree, [])]
    while pending:
        node, around = pending.pop()
        yield node, around
        inside = [*around, node] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else around
        pending.extend((child, inside) for child in ast.iter_child_nodes(node))


def _is_abstract(node: ast.AST) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(dotted(decorator).rpartition(".")[2] == "abstractmethod" for decorator in decorators)


def _place(module: Module, around: list[ast.AST]) -> str:
    return f"{module.place} {'.'.join(getattr(node, 'name', '') for node in around) or '(module)'}"


def _catches_anything(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(dotted(kind).rpartition(".")[2] in {"Exception", "BaseException"} for kind in types)


def test_nothing_is_left_for_later() -> None:
    raised = [
        f"{_place(module, around)} line {node.lineno}"
        for module in modules()
        for node, around in _functions(module)
        if isinstance(node, ast.Raise)
        and node.exc is not None
        and dotted(node.exc.func if isinstance(node.exc, ast.Call) else node.exc) == "NotImplementedError"
        and not any(_is_abstract(outer) for outer in around)
    ]
    written = [
        f"{module.place}:{line}"
        for module in modules()
        for line, text in enumerate(module.text.splitlines(), start=1)
        if re.search(r"\b(TODO|FIXME|XXX)\b", text)
    ]
    assert not raised + written


def test_no_bare_except() -> None:
    assert not [
        f"{module.place}:{node.lineno}"
        for module in modules()
        for node in module.nodes
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]


def test_who_catches_anything_raises_it_again_or_says_why() -> None:
    caught = {
        _place(module, around)
        for module in modules()
        for node, around in _functions(module)
        if isinstance(node, ast.ExceptHandler) and _catches_anything(node) and not isinstance(node.body[-1], ast.Raise)
    }
    assert caught == set(MAY_CATCH_ANYTHING), "keep the table beside this test in step with the code"


def test_what_only_tells_is_told_in_one_way() -> None:
    """By `core.telling`, which ends nothing where the log's disk is full."""
    direct = ("sys.stderr.write(", "file=sys.stderr")
    found = [module.place for module in modules() if any(words in module.text for words in direct)]
    assert not found
