"""The plan of a model, from the names and the arrangement of its layers.

Recognised are attention with separate layers for query, key, value and output (as in Llama and BERT), or with the first
three in one `Conv1D` (GPT-2); pairs of linear layers with elementwise functions between them; chains of convolutions
(`tensor.filters`); embeddings, and the layer that gives logits. Other layers are not cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.nn import Embedding, Linear, Module, Sequential

from quorate.core.errors import ConfigurationError
from quorate.sharding.tensor.branches import branches_in, is_in_branches
from quorate.sharding.tensor.filters import OF_SINGLE_NUMBERS, follow
from quorate.sharding.tensor.heads import head_size, is_repeatable
from quorate.sharding.tensor.plan import CLOSED, Plan, check_plan, is_linear, is_of_transformers, widths
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


@dataclass
class _Draft:
    styles: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def takes(self, *names: str) -> bool:
        return not any(name in self.styles for name in names)


def tensor_plan(model: Module, workers: int, *, sequence: bool = False) -> Plan:
    """Return the plan by which `quorate.parallelize(model, tensor="auto")` cuts the layers of `model` over `workers`.

    The plan can be printed, changed, and passed as `tensor`. With `sequence`, norms, dropout and other operations
    between cut layers work on pieces of the sequence (dimension 1 of activations), from the first to the last of the
    model's blocks; each worker has one piece.

    Raises `ConfigurationError` where heads, or neurons, are no multiple of `workers`, and with `sequence` for blocks
    with other layers than norms and cut layers. A vocabulary that is no multiple is not cut, and the plan says so.
    """
    if not isinstance(model, Module):
        raise ConfigurationError(f"tensor_plan takes a torch.nn.Module, not {type(model).__name__}")
    if _is_no_number(workers):
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


def _is_no_number(workers: object) -> bool:
    return isinstance(workers, bool) or not isinstance(workers, int) or workers < 1


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
        if table.num_embeddings % workers or table.max_norm is not None:
            why = f"{table.num_embeddings} entries are no multiple of {workers}"
            draft.why |= dict.fromkeys([name, *ends], why if table.max_norm is None else "it has a max_norm")
            continue
        draft.styles |= {name: "embedding"} | dict.fromkeys(ends, "head")
