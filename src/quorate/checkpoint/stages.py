"""What the workers of a pipeline have kept, as one tree again: each has the parameters of some stages, by name.

The files of one stage are of shards, and parts, of the same parameters: `pieces` joins these. The trees of all stages
then become one, of which a worker takes what it has itself. Where it has exactly what an old one had, it takes that
one's alone, so that nothing that was kept is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from quorate.checkpoint.optimizers import of_shards
from quorate.checkpoint.participants import Distributed
from quorate.checkpoint.pieces import joined
from quorate.core.errors import CheckpointError


class OldStages:
    """Of one optimizer's model, as a checkpoint has it, read for one worker of today."""

    def __init__(self, about: Mapping[str, Any], optimizers: Sequence[Mapping[str, Any]], one: Distributed) -> None:
        """`about` is what the manifest says of the optimizer, `optimizers` the state that its files hold."""
        cut = about.get("stages", [])
        every = [names for tree in optimizers for names in tree.get("names", [])]
        self._tied = {names[0]: names[1:] for names in every if len(names) > 1}
        self.count, self._one = len(cut) or 1, one
        self.is_same = cut == one.stages
        self._is_whole = not cut and not one.stages

    def joined(self, trees: Sequence[Any]) -> Any:
        """Of all workers of one old replica, in order: what this worker has of it."""
        return self._merged(trees, lambda some: joined(some, *self._one.reads))

    def model(self, files: Sequence[tuple[dict[str, Tensor], Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Its tensors that are here, and what its modules keep besides; what no stage has today is left in it."""
        tensors, rest = self.joined([tensors for tensors, _ in files]), self.joined([rest for _, rest in files])
        elsewhere = self._one.elsewhere
        return (
            {key: x for key, x in tensors.items() if key not in elsewhere},
            {key: x for key, x in rest.items() if key not in elsewhere},
        )

    def optimizer(self, trees: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """In torch's format, with this worker's numbers for parameters. Raises `CheckpointError` for other ones."""
        if self._is_whole:
            return of_shards(trees, self._one)
        renumbered = [self._renumbered(tree) for tree in trees]
        every = {name for tree in trees for name in self._firsts(tree)}
        mine = names_of(self._one)
        missing = next((names[0] for names in mine if not every & set(names)), None)
        if missing is not None:
            raise CheckpointError(f"the checkpoint's optimizer has no {missing}, and the script's has it")
        known = {name for names in mine for name in names}
        more = next((name for tree in trees for names in tree["names"] if not known & set(names) for name in names), "")
        if more and not self._one.stages:
            raise CheckpointError(f"the checkpoint's optimizer has {more}, and the script's does not have it")
        found: dict[str, Any] = self._merged(renumbered, lambda some: of_shards(some, self._one))
        return found

    def replica(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """What the workers of one old replica had for themselves, as one that is in the place of this one."""
        kept = [part["replica"] for part in parts]
        if any(replica is None for replica in kept):
            return dict(self.joined(parts))
        found = self.joined(parts if self._is_whole else [self._by_number(part) for part in parts])
        numbers = found["replica"]["parameters"]
        if isinstance(numbers, dict):
            numbers = [numbers[number] for number in sorted(numbers)]
        optimizer = self.optimizer([replica["optimizer"] for replica in kept])
        return {**found, "replica": {"parameters": numbers, "optimizer": optimizer}}

    def _merged(self, trees: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
        each = len(trees) // self.count
        stages = [trees[begin : begin + each] for begin in range(0, len(trees), each)] if each else [trees]
        if self.is_same and len(stages) > 1:
            stages = [stages[self._one.stage]]
        found = merged([join(some) for some in stages])
        return found if self.is_same else self._under_all_names(found)

    def _under_all_names(self, tree: Any) -> Any:
        """Whatever is kept of tied parameters stands under the first name that the worker had, which is another one in
        another stage."""
        if isinstance(tree, dict):
            more = {other: tree[key] for key, others in self._tied.items() if key in tree for other in others}
            return type(tree)({key: self._under_all_names(item) for key, item in {**more, **tree}.items()})
        if isinstance(tree, list | tuple):
            return type(tree)([self._under_all_names(item) for item in tree])
        return tree

    def _firsts(self, tree: Mapping[str, Any]) -> list[str]:
        names = tree.get("names")
        if names is None:
            raise CheckpointError(
                "the checkpoint does not say which parameters its optimizer has, and cannot be read in other stages"
            )
        return [name for some in names for name in some]

    def _numbers(self, tree: Mapping[str, Any]) -> dict[int, int]:
        """Of this worker's parameters by those of an old one."""
        mine = {name: number for number, names in enumerate(names_of(self._one)) for name in names}
        self._firsts(tree)
        found = {}
        for old, names in enumerate(tree["names"]):
            new = next((mine[name] for name in names if name in mine), None)
            if new is not None:
                found[old] = new
        return found

    def _renumbered(self, tree: dict[str, Any]) -> dict[str, Any]:
        numbers, own = self._numbers(tree), self._one.optimizer.param_groups
        theirs = tree["param_groups"]
        if len(theirs) != len(own):
            raise CheckpointError(
                f"the checkpoint's optimizer has {len(theirs)} parameter groups, and the script's {len(own)}"
            )
        begin, groups = 0, []
        for mine, group in zip(own, theirs, strict=True):
            end = begin + len(mine["params"])
            moved = [numbers[old] for old in group["params"] if old in numbers]
            if any(not begin <= number < end for number in moved):
                raise CheckpointError("the checkpoint's optimizer has parameters in other groups than the script's")
            groups.append({**group, "params": list(range(begin, end))})
            begin = end
        state = {numbers[old]: kept for old, kept in tree["state"].items() if old in numbers}
        return {"state": state, "param_groups": groups}

    def _by_number(self, part: dict[str, Any]) -> dict[str, Any]:
        numbers, kept = self._numbers(part["replica"]["optimizer"]), part["replica"]["parameters"]
        if kept is not None:
            kept = {numbers[old]: x for old, x in enumerate(kept) if old in numbers}
        return {**part, "replica": {"parameters": kept, "optimizer": {}}}


def names_of(one: Distributed) -> list[list[str]]:
    """Of each of the optimizer's parameters, in its order: all of its names in the model; of one that is not the
    model's, the number among these."""
    known: dict[int, list[str]] = {}
    for name, p in one.model.named_parameters(remove_duplicate=False):
        known.setdefault(id(p), []).append(name)
    found, others = [], 0
    for p in one.parameters:
        found.append(known.get(id(p)) or [f"{others} outside of the model"])
        others += id(p) not in known
    return found


def merged(trees: Sequence[Any]) -> Any:
    """What several stages have kept: dictionaries with the keys of all, anything else that of the first that has it."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if isinstance(first, dict):
        keys = dict.fromkeys(key for tree in trees if isinstance(tree, dict) for key in tree)
        return type(first)(
            {key: merged([tree[key] for tree in trees if isinstance(tree, dict) and key in tree]) for key in keys}
        )
    if isinstance(first, list | tuple):
        alike = [tree for tree in trees if isinstance(tree, list | tuple) and len(tree) == len(first)]
        return type(first)([merged([tree[place] for tree in alike]) for place in range(len(first))])
    return first
