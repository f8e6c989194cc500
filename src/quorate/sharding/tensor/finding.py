"""The plan of a model, from the names and the arrangement of its layers.

Recognized are attention with separate layers for query, key, value and output (as in Llama and BERT), or with the first
three in one `Conv1D` (GPT-2). So are pairs of linear layers with elementwise functions between them, chains of
convolutions (`Chain`), embeddings, and the layer that gives logits. Other layers are not cut.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node, Tracer
from torch.nn import Embedding, Linear, Module, Sequential

from quorate.core.axes import is_no_size
from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.branches import branches_in, is_in_branches
from quorate.sharding.tensor.heads import head_size, is_repeatable
from quorate.sharding.tensor.plan import (
    CLOSED,
    Plan,
    by_channel,
    check_plan,
    divides_vocabulary,
    is_convolution,
    is_linear,
    is_of_transformers,
    widths,
)
from quorate.sharding.tensor.sequence import styles_in_blocks

_INPUTS = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("q_lin", "k_lin", "v_lin"),
    ("to_q", "to_k", "to_v"),
    ("wq", "wk", "wv"),
    ("q", "k", "v"),
)
_OUTPUTS = ("o_proj", "out_proj", "out_lin", "wo", "o", "out", "proj")
_PAIRS = (
    (("gate_proj", "up_proj"), "down_proj"),
    (("up_proj",), "down_proj"),
    (("c_fc",), "c_proj"),
    (("fc1",), "fc2"),
    (("fc_1",), "fc_2"),
    (("lin1",), "lin2"),
    (("linear1",), "linear2"),
    (("w1", "w3"), "w2"),
    (("up",), "down"),
    (("wi_0", "wi_1"), "wo"),
    (("wi",), "wo"),
    (("dense_h_to_4h",), "dense_4h_to_h"),
    (("intermediate.dense",), "output.dense"),
)
"""Layers that are cut by columns, and the layer after them."""
OF_SINGLE_NUMBERS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Dropout, nn.Identity),
)
"""Elementwise modules."""
_OF_SINGLE_CHANNELS = (
    *(nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
)
_FUNCTIONS = (
    *(torch.relu, torch.relu_, torch.sigmoid, torch.tanh, F.relu, F.relu6, F.leaky_relu, F.elu, F.celu, F.selu, F.gelu),
    *(F.silu, F.mish, F.tanh, F.sigmoid, F.softplus, F.softsign, F.hardtanh, F.hardswish, F.hardsigmoid),
    *(F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.interpolate),
    *(F.max_pool1d, F.max_pool2d, F.max_pool3d, F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
    *(F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
)
_METHODS = ("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "contiguous")


@dataclass
class _Draft:
    styles: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def takes(self, *names: str) -> bool:
        return not any(name in self.styles for name in names)


def tensor_plan(model: Module, workers: int, *, sequence: bool = False) -> Plan:
    """Return the plan by which `quorate.parallelize(model, tensor="auto")` cuts the layers of `model`.

    Args:
        model: The model. If it has convolutions, its forward pass is run with placeholders for tensors.
        workers: The number of workers that compute layers together.
        sequence: Whether norms, dropout and other operations between cut layers work on pieces of the sequence
            (dimension 1 of activations). Each worker then has one piece from the first to the last of the model's
            blocks.

    Returns:
        The styles of layers by the names of modules; it can be printed, changed, and passed as `tensor`. The last
        worker has fewer entries of a vocabulary that is no multiple of `workers`.

    Raises:
        ConfigurationError: Heads, neurons or channels are not divisible by `workers`, or with `sequence` a block has
            layers other than norms and split layers.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> quorate.tensor_plan(model, workers=2)["0"]
        'columns'
    """
    if not isinstance(model, Module):
        raise ConfigurationError(f"tensor_plan takes a torch.nn.Module, not {type(model).__name__}")
    if is_no_size(workers):
        raise ConfigurationError(f"workers must be a whole number (at least 1), not {workers!r}")
    draft = _Draft()
    closed = [f"{name}." for name, module in model.named_modules() if isinstance(module, CLOSED)]
    for name, module in model.named_modules():
        if isinstance(module, CLOSED):
            draft.why[name] = f"{type(module).__name__} of torch calculates with its layers itself"
        elif not name.startswith(tuple(closed)):
            _attention(name, module, model, workers, draft, can_repeat=not sequence)
    if not sequence:
        _filters(model, workers, draft)
    for name, module in model.named_modules():
        if not isinstance(module, CLOSED) and not name.startswith(tuple(closed)):
            _pairs(name, module, workers, draft)
    _vocabulary(model, workers, draft)
    if sequence:
        draft.styles |= styles_in_blocks(draft.styles, draft.why, model)
    branches = branches_in(model)
    kept, why = (
        {name: style for name, style in some.items() if not is_in_branches(name, branches)}
        for some in (draft.styles, draft.why)
    )
    plan = Plan(model, workers, kept, why)
    check_plan(plan, model, workers)
    return plan


def _under(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child


def _child(module: Module, path: str) -> Any:
    part: Module | None = module
    for key in path.split("."):
        part = part._modules.get(key) if isinstance(part, Module) else None
    return part


def _attention(name: str, module: Module, model: Module, workers: int, draft: _Draft, *, can_repeat: bool) -> None:
    inputs = next((some for some in _INPUTS if all(is_linear(_child(module, key)) for key in some)), None)
    fused = _child(module, "c_attn")
    if inputs is None and not is_of_transformers(fused):
        return
    first = [_under(name, key) for key in inputs or ("c_attn",)]
    last = _output_of(name, module, model, is_fused=inputs is None)
    why = None
    if last is None:
        why = "no layer was found that takes what its heads give"
    elif _others(module, inputs or ("c_attn",), last.removeprefix(f"{name}.")):
        why = "it has parameters beside its linear layers"
    elif inputs is None and widths(fused)[1] != 3 * widths(_child(model, last))[0]:
        why = "its fused layer does not give query, key and value of one width"
    size = head_size(module, [_child(model, layer) for layer in first], is_fused=inputs is None)
    if why is None and size is None:
        why = "it does not say how many heads it has"
    if why is not None:
        draft.why[name] = why
        return
    assert last is not None and size is not None
    for layer in first:
        heads = widths(_child(model, layer))[1] // size // (3 if inputs is None else 1)
        if can_repeat and layer != first[0] and is_repeatable(heads, workers):
            draft.styles[layer] = "repeated"
            continue
        if heads % workers:
            raise ConfigurationError(
                f"{layer} has {heads} heads of {size}, which {workers} workers cannot share evenly; take a number of "
                f"workers that divides {heads}, or a plan without it"
            )
        draft.styles[layer] = "fused" if inputs is None else "columns"
    draft.styles[last] = "rows"


def _output_of(name: str, module: Module, model: Module, *, is_fused: bool) -> str | None:
    candidates = ("c_proj",) if is_fused else _OUTPUTS
    here = next((key for key in candidates if is_linear(_child(module, key))), None)
    if here is not None:
        return _under(name, here)
    parent = name.rpartition(".")[0]
    beside = _under(parent, "output.dense")  # as BERT has it
    return beside if is_linear(_child(model, beside)) else None


def _others(module: Module, inputs: tuple[str, ...], last: str) -> bool:
    inside = {
        id(p) for key in (*inputs, last) if _child(module, key) is not None for p in _child(module, key).parameters()
    }
    return any(id(p) not in inside for p in module.parameters())


def _filters(model: Module, workers: int, draft: _Draft) -> None:
    """Cut chains of convolutions, and the layer after them that gives the result."""
    chains, ends, why = follow(model, workers)
    draft.why |= why
    for chain in chains:
        first, *middle, last = chain.layers
        draft.styles |= {first: "columns"} | dict.fromkeys(middle, "pieces") | {last: "rows"}
        draft.styles |= dict.fromkeys(chain.between, "channels")
    for name in ends:
        gives = widths(_child(model, name))[1]
        if gives % workers:
            draft.why[name] = f"{gives} outputs are no multiple of {workers}"
        elif draft.takes(name):
            draft.styles[name] = "head"


def _pairs(name: str, module: Module, workers: int, draft: _Draft) -> None:
    if isinstance(module, Sequential):
        for first, last in _in_sequence(module):
            if not draft.takes(_under(name, first), _under(name, last)):
                continue
            _cut_pair(name, module, (first,), last, workers, draft)
        return
    for known_first, known_last in _PAIRS:
        layers = [_child(module, key) for key in (*known_first, known_last)]
        if all(map(is_linear, layers)) and draft.takes(*(_under(name, key) for key in (*known_first, known_last))):
            inner = {widths(layer)[1] for layer in layers[:-1]}
            if inner == {widths(layers[-1])[0]}:
                (width,) = inner
                inside = {id(p) for layer in layers for p in layer.parameters()}
                if any(width in p.shape for p in module.parameters() if id(p) not in inside and p.dim() == 1):
                    draft.why[name] = "it has parameters of the width between its linear layers"
                    return
                _cut_pair(name, module, known_first, known_last, workers, draft)
                return


def _in_sequence(module: Sequential) -> Iterator[tuple[str, str]]:
    """Yield pairs with only elementwise functions between them."""
    before: str | None = None
    for key, child in module.named_children():
        if isinstance(child, Linear):
            if before is not None and widths(module.get_submodule(before))[1] == widths(child)[0]:
                yield before, key
                before = None
            else:
                before = key
        elif not (isinstance(child, OF_SINGLE_NUMBERS) or type(child).__module__ == "transformers.activations"):
            before = None


def _cut_pair(name: str, module: Module, first: tuple[str, ...], last: str, workers: int, draft: _Draft) -> None:
    width = widths(_child(module, last))[0]
    if width % workers:
        raise ConfigurationError(
            f"{_under(name, last)} takes {width} neurons, which {workers} workers cannot share evenly; take a number "
            f"of workers that divides {width}, or a plan without it"
        )
    draft.styles |= {_under(name, key): "columns" for key in first} | {_under(name, last): "rows"}


def _vocabulary(model: Module, workers: int, draft: _Draft) -> None:
    """Cut an embedding whose weight a linear layer shares, or that has the size of a last linear layer."""
    named = dict(model.named_modules())
    tables = {name: module for name, module in named.items() if type(module) is Embedding}
    heads = {name: module for name, module in named.items() if isinstance(module, Linear) and name not in draft.styles}
    for name, table in tables.items():
        tied = [other for other, layer in heads.items() if layer.weight is table.weight]
        alike = [
            other
            for other in ("lm_head", "head", "output")
            if other in heads and widths(heads[other]) == (table.embedding_dim, table.num_embeddings)
        ]
        ends = tied or alike
        if not ends:
            continue
        if not divides_vocabulary(table.num_embeddings, workers) or table.max_norm is not None:
            why = f"{table.num_embeddings} entries are too few for {workers} workers"
            draft.why |= dict.fromkeys([name, *ends], why if table.max_norm is None else "it has a max_norm")
            continue
        draft.styles |= {name: "embedding"} | dict.fromkeys(ends, "head")


@dataclass(frozen=True)
class Chain:
    """Names of the modules of a chain.

    A chain begins with a convolution that is cut by its filters, and ends with a convolution or linear layer that is
    cut by its inputs. Every result in it has one use only, and operations between two layers treat channels separately.
    So names of modules, and the order in which they were made, do not matter.
    """

    layers: list[str]
    """Convolutions, and linear layers after them, two at least: columns, pieces, ..., rows."""
    between: list[str]
    """Norms, and grouped convolutions."""


class _Steps(Tracer):
    """Traces a module without a convolution inside as one step."""

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        is_one = not (isinstance(m, nn.Sequential) or any(map(is_convolution, m.modules())))
        return is_one or super().is_leaf_module(m, module_qualified_name)


class _Followed:
    def __init__(self, name: str, module: Module, graph: Graph, workers: int) -> None:
        self._prefix, self._module, self._graph, self._workers = f"{name}." if name else "", module, graph, workers
        calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
        read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
        weights = Counter(id(w) for m in module.modules() if (w := m._parameters.get("weight")) is not None)
        self._alone = {
            target
            for target, count in calls.items()
            if count == 1 and target not in read and weights[id(self._of(target)._parameters.get("weight"))] <= 1
        }
        self.odd: dict[str, str] = {}
        """Norms that cannot be shared, and why."""

    def chains(self) -> Iterator[Chain]:
        """Yield all chains, in order."""
        taken = set[str]()
        for node in self._graph.nodes:
            if self._is_layer(node, is_flat=False) and node.target not in taken:
                layers, between = self._from(node)
                taken |= set(layers)
                if len(layers) > 1:
                    yield Chain(*([self._prefix + name for name in names] for names in (layers, between)))

    def ends(self) -> list[str]:
        """Return the linear layers whose result is the model's."""
        nodes = [node.args[0] for node in self._graph.nodes if node.op == "output"]
        producers = [node for node in nodes if isinstance(node, Node) and node.op == "call_module"]
        return [
            self._prefix + str(node.target)
            for node in producers
            if type(self._of(node.target)) is Linear and node.target in self._alone
        ]

    def _of(self, target: Any) -> Any:
        return self._module.get_submodule(target)

    def _is_layer(self, node: Node, *, is_flat: bool) -> bool:
        if node.op != "call_module" or node.target not in self._alone:
            return False
        layer = self._of(node.target)
        return type(layer) is Linear if is_flat else is_convolution(layer) and by_channel(layer) is None

    def _from(self, node: Node) -> tuple[list[str], list[str]]:
        """Return the successive layers from `node` on, and the modules between them."""
        layers, between, since, is_flat = [str(node.target)], list[str](), list[str](), False
        while len(node.users) == 1:
            (user,) = node.users
            others = (*user.args[1:], *user.kwargs.values())
            if not user.args or user.args[0] is not node or any(isinstance(x, Node) for x in others):
                break
            if self._is_layer(user, is_flat=is_flat):
                layers.append(str(user.target))
                between, since = between + since, []
            elif self._is_by_channel(user):
                since.append(str(user.target))
            elif not is_flat and _is_flatten(user, self._of):
                is_flat = True
            elif not self._is_free(user, is_flat=is_flat):
                break
            node = user
        return layers, between

    def _is_by_channel(self, node: Node) -> bool:
        module = self._of(node.target) if node.op == "call_module" and node.target in self._alone else None
        count = by_channel(module)
        if count is None:
            return False
        if count % self._workers and (isinstance(module, nn.GroupNorm) or is_convolution(module)):
            self.odd[self._prefix + str(node.target)] = f"{count} groups of channels are no multiple of {self._workers}"
            return False
        return True  # a norm has as many channels as the layer before it, which is refused where they do not divide

    def _is_free(self, node: Node, *, is_flat: bool) -> bool:
        """Return whether `node` has no parameters, and treats channels separately."""
        if node.op == "call_module":
            return isinstance(self._of(node.target), OF_SINGLE_NUMBERS + (() if is_flat else _OF_SINGLE_CHANNELS))
        if node.op == "call_function":
            return not is_flat and node.target in _FUNCTIONS
        return node.op == "call_method" and node.target in _METHODS


def _is_flatten(node: Node, module_of: Any) -> bool:
    if node.op == "call_module":
        module = module_of(node.target)
        return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
    is_one = (node.op, node.target) in (("call_function", torch.flatten), ("call_method", "flatten"))
    return is_one and (*node.args[1:], *node.kwargs.values()) in ((1,), (1, -1))


def follow(model: Module, workers: int) -> tuple[list[Chain], list[str], dict[str, str]]:
    """Return the chains in `model`, the linear layers at its end, and reasons why modules are not cut. A module that
    cannot be traced (its operations depend on numbers) is replaced by its parts."""
    chains, ends, why = list[Chain](), list[str](), dict[str, str]()
    with torch.random.fork_rng(devices=[]):
        for name, module, graph in _outermost("", model, why):
            followed = _Followed(name, module, graph, workers)
            traced = list(followed.chains())
            chains += traced
            why |= followed.odd
            if not name and traced:
                ends = followed.ends()
    return chains, ends, why


def _outermost(name: str, module: Module, why: dict[str, str]) -> Iterator[tuple[str, Module, Graph]]:
    if sum(map(is_convolution, module.modules())) < 2:
        return
    try:
        graph = _Steps().trace(module)
    except Exception:  # whatever a model's code raises that is given no numbers
        if not isinstance(module, nn.ModuleList | nn.ModuleDict):
            why[name or type(module).__name__] = "the result of its code cannot be predicted; its parts are looked at"
        for key, child in module.named_children():
            yield from _outermost(f"{name}.{key}" if name else key, child, why)
    else:
        yield name, module, graph
