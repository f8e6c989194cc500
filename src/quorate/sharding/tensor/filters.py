"""Chains of convolutions in a model, found by tracing its forward pass (`torch.fx`).

A chain begins with a convolution that is cut by its filters, and ends with a convolution or linear layer that is cut by
its inputs. Every result in it has one use only, and operations between two layers treat channels separately: so names
of modules, and the order in which they were made, do not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph, Node, Tracer
from torch.nn import Linear, Module

from quorate.sharding.tensor.plan import by_channel, is_convolution

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


@dataclass(frozen=True)
class Chain:
    """Names of the modules of a chain."""

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
            why[name or type(module).__name__] = "what its code does cannot be foreseen; its parts are looked at"
        for key, child in module.named_children():
            yield from _outermost(f"{name}.{key}" if name else key, child, why)
    else:
        yield name, module, graph
