"""State of the workers of a pipeline as one tree again: each has the parameters of some stages, by name.

The files of one stage are of shards, and parts, of the same parameters: `pieces` joins these. The trees of all stages
then become one, from which a worker takes its own state. If it has exactly the stages of an old worker, it takes that
one's tree alone, so that no state is lost.
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
    """One optimizer's model in a checkpoint, read for a worker of the new run."""

    def __init__(self, about: Mapping[str, Any], optimizers: Sequence[Mapping[str, Any]], entry: Distributed) -> None:
        """`about` is the manifest's entry about the optimizer, `optimizers` the state in its files."""
        cut = about.get("stages", [])
        every = [names for tree in optimizers for names in tree.get("names", [])]
        self._tied = {names[0]: names[1:] for names in every if len(names) > 1}
        self.count, self._entry = len(cut) or 1, entry
        self.is_same = cut == entry.stages
        self.is_cut_anew = (about.get("shards", 1), about.get("tensor", 1)) != (entry.shard[0], entry.parts)
        self.is_cut_anew |= not self.is_same
        """Whether the model was laid out over other workers of a replica."""
        self._is_whole = not cut and not entry.stages

    def joined(self, trees: Sequence[Any]) -> Any:
        """Return this worker's state from those of all workers of one old replica, in order."""
        return self._merged(trees, lambda some: joined(some, *self._entry.reads, self._own(some)))

    def model(self, files: Sequence[tuple[dict[str, Tensor], Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the local tensors, and the extra state of modules; state of no present stage is kept in it."""
        tensors, rest = self.joined([tensors for tensors, _ in files]), self.joined([rest for _, rest in files])
        elsewhere = self._entry.elsewhere
        return (
            {key: x for key, x in tensors.items() if key not in elsewhere},
            {key: x for key, x in rest.items() if key not in elsewhere},
        )

    def optimizer(self, trees: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the state in torch's format, with this worker's numbers of parameters. Raises `CheckpointError` for
        other parameters."""
        if self._is_whole:
            return of_shards(trees, self._entry, self._own(trees))
        renumbered = [self._renumbered(tree) for tree in trees]
        every = {name for tree in trees for name in self._firsts(tree)}
        own_names = names_of(self._entry)
        missing = next((names[0] for names in own_names if not every & set(names)), None)
        if missing is not None:
            raise CheckpointError(f"the checkpoint's optimizer has no {missing}, and the script's has it")
        in_script = {name for names in own_names for name in names}
        more = next(
            (name for tree in trees for names in tree["names"] if not in_script & set(names) for name in names), ""
        )
        if more and not self._entry.stages:
            raise CheckpointError(f"the checkpoint's optimizer has {more}, and the script's does not have it")
        state: dict[str, Any] = self._merged(renumbered, lambda some: of_shards(some, self._entry, self._own(some)))
        return state

    def replica(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the own state of one old replica's workers, as that of one worker with this one's stages."""
        kept = [part["replica"] for part in parts]
        if any(replica is None for replica in kept):
            return dict(self.joined(parts))
        state = self.joined(parts if self._is_whole else [self._by_number(part) for part in parts])
        numbers = state["replica"]["parameters"]
        if isinstance(numbers, dict):
            numbers = [numbers[number] for number in sorted(numbers)]
        optimizer = self.optimizer([replica["optimizer"] for replica in kept])
        return {**state, "replica": {"parameters": numbers, "optimizer": optimizer}}

    def _own(self, trees: Sequence[Any]) -> int | None:
        """Return the place of this worker's own tree among those of all workers of its stage; None without one."""
        here, count = self._entry.coordinates, len(trees)
        if here is None or self.is_cut_anew or count != here.axes.shards * here.axes.tensor:
            return None
        return here.in_replica % count

    def _merged(self, trees: Sequence[Any], join: Callable[[Sequence[Any]], Any]) -> Any:
        each = len(trees) // self.count
        stages = [trees[begin : begin + each] for begin in range(0, len(trees), each)] if each else [trees]
        if self.is_same and len(stages) > 1:
            stages = [stages[self._entry.stage]]
        tree = merged([join(some) for some in stages])
        return tree if self.is_same else self._under_all_names(tree)

    def _under_all_names(self, tree: Any) -> Any:
        """Return the tree with tied parameters under all their names, as each stage has kept them under its first
        one."""
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
        number_of = {name: number for number, names in enumerate(names_of(self._entry)) for name in names}
        self._firsts(tree)
        numbers = {}
        for old, names in enumerate(tree["names"]):
            new = next((number_of[name] for name in names if name in number_of), None)
            if new is not None:
                numbers[old] = new
        return numbers

    def _renumbered(self, tree: dict[str, Any]) -> dict[str, Any]:
        numbers, own = self._numbers(tree), self._entry.optimizer.param_groups
        theirs = tree["param_groups"]
        if len(theirs) != len(own):
            raise CheckpointError(
                f"the checkpoint's optimizer has {len(theirs)} parameter groups, and the script's {len(own)}"
            )
        begin, groups = 0, []
        for own_group, group in zip(own, theirs, strict=True):
            end = begin + len(own_group["params"])
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


def names_of(entry: Distributed) -> list[list[str]]:
    """Return all names in the model of each of the optimizer's parameters, in its order. A parameter outside of the
    model has its number among these."""
    names_by_id: dict[int, list[str]] = {}
    for name, p in entry.model.named_parameters(remove_duplicate=False):
        names_by_id.setdefault(id(p), []).append(name)
    names, others = [], 0
    for p in entry.parameters:
        names.append(names_by_id.get(id(p)) or [f"{others} outside of the model"])
        others += id(p) not in names_by_id
    return names


def merged(trees: Sequence[Any]) -> Any:
    """Merge the state of several stages: dictionaries get the keys of all, other values are those of the first."""
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
