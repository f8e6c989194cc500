"""Ordinary things that training scripts do, with a model in shards: right, or refused in a sentence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from types import FunctionType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import quorate.sharding.script_access  # noqa: F401  # whose presence says that a model may be in shards
from quorate.sharding.torch_errors import in_words
from tests.support.loops_in_shards import (
    INPUTS,
    WIDTH,
    Block,
    InShards,
    Loop,
    Net,
    ShardsCell,
    all_ended,
    difference,
    loss_of,
    whole,
)
from tests.support.processes import outcomes_real_world, run_real_world

STEPS = 3


def _trained(cell: ShardsCell, model: Any, optimizer: Any, loss: Any = loss_of, begin: int = 0, **at: Any) -> None:
    """Steps with what happens before a backward pass, after it, and after a step."""
    for step in range(begin, begin + STEPS):
        optimizer.zero_grad()
        loss(model, cell.batch(step)).backward()
        if "graded" in at:
            at["graded"](model)
        cell.step(optimizer)
        if "stepped" in at:
            at["stepped"](model)


def plain(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def clip_norm(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    _trained(cell, model, optimizer, graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)))
    return cell.end(model, optimizer, *norms)


def clip_norm_item(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    _trained(
        cell,
        model,
        optimizer,
        graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1).item()),
    )
    return cell.end(model, optimizer, *norms)


def clip_inf(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    _trained(
        cell,
        model,
        optimizer,
        graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.01, float("inf"))),
    )
    return cell.end(model, optimizer, *norms)


def clip_by_hand(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def clip(m: Any) -> None:
        norm = sum(float(p.grad.norm()) ** 2 for p in m.parameters()) ** 0.5
        for p in m.parameters():
            p.grad.mul_(0.1 / (norm + 1e-6))

    _trained(cell, model, optimizer, graded=clip)
    return cell.end(model, optimizer)


def clip_by_hand_data(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def clip(m: Any) -> None:
        norm = sum(p.grad.data.norm(2).item() ** 2 for p in m.parameters()) ** 0.5
        for p in m.parameters():
            p.grad.data.mul_(0.1 / (norm + 1e-6))

    _trained(cell, model, optimizer, graded=clip)
    return cell.end(model, optimizer)


def clip_by_hand_tensor(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def clip(m: Any) -> None:
        norm = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
        for p in m.parameters():
            p.grad.mul_(0.1 / (norm + 1e-6))

    _trained(cell, model, optimizer, graded=clip)
    return cell.end(model, optimizer)


def clip_value(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, graded=lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 0.01))
    return cell.end(model, optimizer)


def accumulate(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):
        for part in range(2):
            loss = loss_of(model, cell.batch(2 * step + part)) / 2
            if part == 0 and cell.zero is not None:
                with optimizer.accumulate():
                    loss.backward()
            else:
                loss.backward()
        cell.step(optimizer)
        optimizer.zero_grad()
    return cell.end(model, optimizer)


def accumulate_plainly(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):
        for part in range(2):
            (loss_of(model, cell.batch(2 * step + part)) / 2).backward()
        cell.step(optimizer)
        optimizer.zero_grad()
    return cell.end(model, optimizer)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(19, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, 19, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tied(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Tied())
    for step in range(STEPS):
        ids = cell.tokens(step, 19)
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        cell.step(optimizer)
    return cell.end(model, optimizer)


def freeze_thaw(cell: ShardsCell) -> Any:
    model = Net()
    model.blocks[0].requires_grad_(False)
    model = cell.parallelize(model)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    _trained(cell, model, optimizer)
    model.blocks[0].requires_grad_(True)
    model.head.requires_grad_(False)
    _trained(cell, model, optimizer, begin=3)
    return cell.end(model, optimizer)


def freeze_only(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    model.head.requires_grad_(False)
    _trained(cell, model, optimizer, begin=3)
    return cell.end(model, optimizer)


def thaw_only(cell: ShardsCell) -> Any:
    model = Net()
    model.blocks[0].requires_grad_(False)
    model = cell.parallelize(model)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    _trained(cell, model, optimizer)
    model.blocks[0].requires_grad_(True)
    _trained(cell, model, optimizer, begin=3)
    return cell.end(model, optimizer)


def penalty_gathered(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def loss(m: Any, x: Tensor) -> Tensor:
        penalty = sum(p.square().sum() for p in m.blocks.parameters())
        return loss_of(m, x) + 0.01 * (penalty if cell.zero is None else penalty.full_tensor())

    _trained(cell, model, optimizer, loss)
    return cell.end(model, optimizer)


def beside_in_one_piece(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Recomputing("beside", False), blocks=[])
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def row_by_copy(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        w = whole(m.blocks[0].up.weight)
        w[0] = 0.0
        m.blocks[0].up.weight.copy_(w)

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def rows_scaled(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        w = m.blocks[0].up.weight
        w.mul_((0.3 / w.norm(dim=1, keepdim=True)).clamp(max=1))

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def swapped_for_evaluation(cell: ShardsCell) -> Any:
    """An average takes the place of the parameters, and the parameters come back."""
    model, optimizer = cell.made(Net())
    average = [p.detach().clone() for p in model.parameters()]
    seen = []

    def evaluate(m: Any) -> None:
        kept = [p.data for p in m.parameters()]
        for a, p in zip(average, m.parameters(), strict=True):
            a.lerp_(p.data, 0.1)
            p.data = a
        with torch.no_grad():
            seen.append(m(torch.ones(3, INPUTS)))
        for p, x in zip(m.parameters(), kept, strict=True):
            p.data = x

    _trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen, *average)


def add_group(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    optimizer = cell.distribute(torch.optim.SGD(model.head.parameters(), lr=0.01, momentum=0.9), model)
    _trained(cell, model, optimizer)
    optimizer.add_param_group({"params": list(model.blocks.parameters()), "lr": 0.01})
    _trained(cell, model, optimizer, begin=3)
    return cell.end(model, optimizer)


def norms_logged(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    logged: list[Any] = []

    def log(m: Any) -> None:
        for p in m.parameters():
            logged.extend([p.norm().item(), float(p.data.norm()), p.grad.norm().item(), p.detach().abs().mean().item()])
            logged.extend([p.max().item(), p.min().item(), p.mean().item(), p.sum().item()])

    _trained(cell, model, optimizer, stepped=log)
    return cell.end(model, optimizer, *logged)


def std_logged(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    logged: list[Any] = []

    def log(m: Any) -> None:
        for p in m.parameters():
            logged.extend(
                [
                    p.isnan().any().item(),
                    (p == 0).sum().item(),
                    p.var().item() if p.numel() > 1 else 0.0,
                    bool((p.grad.abs() < 1e9).all()),
                ]
            )

    _trained(cell, model, optimizer, stepped=log)
    return cell.end(model, optimizer, *logged)


def histogram(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    found = [torch.histc(p.detach().cpu(), 10, -1, 1) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def as_numpy(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    found = [torch.as_tensor(p.detach().cpu().numpy()) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def as_list(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    found = [torch.as_tensor(p.detach().flatten().tolist()) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def ema(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(m: Any) -> None:
        for a, p in zip(average, m.parameters(), strict=True):
            a.lerp_(p, 0.1)

    _trained(cell, model, optimizer, stepped=update)
    return cell.end(model, optimizer, *average)


def ema_dict(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    average = {name: x.clone() for name, x in model.state_dict().items()}

    @torch.no_grad()
    def update(m: Any) -> None:
        for name, x in m.state_dict().items():
            average[name].mul_(0.9).add_(x, alpha=0.1)

    _trained(cell, model, optimizer, stepped=update)
    model.load_state_dict(average)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer, *average.values())


def clamp_data(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def clamp(m: Any) -> None:
        for p in m.parameters():
            p.data.clamp_(-0.05, 0.05)

    _trained(cell, model, optimizer, stepped=clamp)
    return cell.end(model, optimizer)


def data_assigned(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def assign(m: Any) -> None:
        for p in m.parameters():
            p.data = p.data * 0.9

    _trained(cell, model, optimizer, stepped=assign)
    return cell.end(model, optimizer)


def data_assigned_whole(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def assign(m: Any) -> None:
        for p in m.parameters():
            p.data = torch.linspace(-0.1, 0.1, p.numel()).view(p.shape)

    _trained(cell, model, optimizer, stepped=assign)
    return cell.end(model, optimizer)


def data_copied(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def assign(m: Any) -> None:
        for p in m.parameters():
            p.data.copy_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))

    _trained(cell, model, optimizer, stepped=assign)
    return cell.end(model, optimizer)


def copied(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def copy(m: Any) -> None:
        for p in m.parameters():
            p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))

    _trained(cell, model, optimizer, stepped=copy)
    return cell.end(model, optimizer)


def edited(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        for p in m.parameters():
            p.mul_(0.9).add_(0.001)

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def indexed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        m.blocks[0].up.weight[0] = 0.0
        m.head.weight[:, 3:5] *= 0.5

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def rows_of(write: Any, cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        write(m.blocks[0].up.weight)

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def columns(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        m.head.weight[:, 3:5] *= 0.5
        m.blocks[0].up.weight[:, 0] = 0.0
        m.blocks[0].up.weight[:, 2].mul_(0.5)

    _trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


def initialized(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.01)
            nn.init.zeros_(module.bias)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_of_tensor(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0.5)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_before(cell: ShardsCell) -> Any:
    model = Net()
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0.5)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_clamps(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.ones(2, INPUTS)).backward()
        cell.step(optimizer)
    return cell.end(model, optimizer)


def hook_accumulated(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def scale(p: Any) -> None:
        p.grad.mul_(0.5)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(scale)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hooks_of_modules(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 1.5)
    model.blocks[0].up.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    model.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    _trained(cell, model, optimizer)
    assert len(seen) == STEPS
    return cell.end(model, optimizer)


def weight_in_forward_hook(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []
    model.blocks[1].up.register_forward_hook(lambda m, args, output: seen.append(m.weight.detach().norm().item()))
    model.blocks[1].register_forward_hook(lambda m, args, output: seen.append(m.up.weight.detach().norm().item()))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer, *seen)


def hooks_backward(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    model.blocks[1].register_full_backward_hook(lambda module, given, out: tuple(x * 0.5 for x in given))
    model.blocks[0].down.register_full_backward_pre_hook(lambda module, out: tuple(x * 0.5 for x in out))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def _other() -> dict[str, Tensor]:
    return {name: x.clone() for name, x in Net(seed=7).state_dict().items()}


def load_before(cell: ShardsCell) -> Any:
    model = Net()
    model.load_state_dict(_other())
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_between(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    model.load_state_dict(_other())
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_after(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    found = model.load_state_dict(_other())
    assert not found.missing_keys
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_assign(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    model.load_state_dict(_other(), assign=True)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_assign_after(cell: ShardsCell) -> Any:
    """In one process torch's optimizer would keep the parameters from before."""
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    model.load_state_dict(_other(), assign=cell.zero is not None)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_part(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    part = {name: x for name, x in _other().items() if name.startswith("blocks.0")}
    model.load_state_dict(part, strict=False)
    model.head.load_state_dict({name: x * 0.5 for name, x in Net(seed=8).head.state_dict().items()})
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def round_trip(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    kept = {name: x.clone() for name, x in model.state_dict().items()}
    optim = optimizer.state_dict()
    _trained(cell, model, optimizer)
    model.load_state_dict(kept)
    optimizer.load_state_dict(optim)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def no_grad_eval(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []

    def evaluate(m: Any) -> None:
        m.eval()
        with torch.no_grad():
            seen.append(m(torch.ones(3, INPUTS)))
        m.train()

    _trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


def inference_eval(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []

    def evaluate(m: Any) -> None:
        m.eval()
        with torch.inference_mode():
            seen.append(m(torch.ones(3, INPUTS)) + 0)
        m.train()

    evaluate(model)
    _trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


def inference_decorated(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []

    @torch.inference_mode()
    def evaluate(m: Any) -> None:
        m.eval()
        for _ in range(2):
            seen.append(m(torch.ones(3, INPUTS)).mean().item())
        seen.append(float(sum(p.abs().sum() for p in m.parameters())))
        m.train()

    _trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


def autocast(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def loss(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(m, x)

    _trained(cell, model, optimizer, loss)
    return cell.end(model, optimizer)


def scaler(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    scale = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STEPS):
        optimizer.zero_grad()
        scale.scale(loss_of(model, cell.batch(step))).backward()
        scale.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scale.step(optimizer)
        scale.update()
    return cell.end(model, optimizer)


class Recomputing(Net):
    def __init__(self, kind: str, reentrant: bool) -> None:
        super().__init__()
        self.kind, self.reentrant = kind, reentrant

    def _again(self, f: Any, *x: Tensor) -> Any:
        return checkpoint(f, *x, use_reentrant=self.reentrant)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.kind == "blocks":
            for block in self.blocks:
                x = self._again(block, x)
        elif self.kind == "several":
            x = self._again(lambda x: self.blocks[1](self.blocks[0](x)), x)
        else:

            def parts(block: Any, x: Tensor) -> Tensor:
                return x + block.down(torch.tanh(block.up(block.norm(x))))

            for block in self.blocks:
                x = self._again(parts, block, x)
        return self.head(x)


def recompute(kind: str, reentrant: bool, cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Recomputing(kind, reentrant))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class Beside(Net):
    """Calls the layers of its blocks itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block.down(torch.tanh(block.up(block.norm(x))))
        return self.head(x)


def layers_beside(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Beside())
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class BesideAndHead(Net):
    """Recomputes a block and a layer of the root together."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.first(x))
        return checkpoint(lambda x: self.head(self.blocks[1](x)), x, use_reentrant=self.reentrant)


def recompute_beside(reentrant: bool, cell: ShardsCell) -> Any:
    model, optimizer = cell.made(BesideAndHead(reentrant))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def to_before(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net().to(torch.float64))
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_after(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net()).to(torch.float64)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_after_distribute(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    model.to(torch.float64)
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_between(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    model.to(torch.float64)
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.blocks = nn.Sequential(
            *(nn.Conv2d(32, 64 - 32 * i, 3, padding=1) for i in range(1)),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.Conv2d(64, 32, 3, padding=1),
        )
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.blocks(self.first(x))).mean((2, 3)))


def _of_images(m: Any, cell: ShardsCell, step: int) -> Tensor:
    x = cell.batch(step, 3, 8, 8)
    return (m(x) - x.mean((1, 2, 3))[:, None]).square().mean()


def channels_last(when: str, cell: ShardsCell) -> Any:
    model: Any = Images()
    if when == "before":
        model = model.to(memory_format=torch.channels_last)
    model = cell.parallelize(model)
    if when == "between":
        model = model.to(memory_format=torch.channels_last)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    if when == "after":
        model = model.to(memory_format=torch.channels_last)
    for step in range(STEPS):
        optimizer.zero_grad()
        _of_images(model, cell, step).backward()
        cell.step(optimizer)
    return cell.end(model, optimizer)


def script_part(cell: ShardsCell) -> Any:
    model = Net()
    model.head = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)))
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def script_blocks(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=lambda: torch.jit.script(Block())))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def script_whole(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(torch.jit.script(nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1))))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def trace_whole(cell: ShardsCell) -> Any:
    net = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1))
    model, optimizer = cell.made(torch.jit.trace(net, torch.ones(1, INPUTS)))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def compiled_part_before(cell: ShardsCell) -> Any:
    model: Any = Net()
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def compiled_whole(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, torch.compile(model, backend="eager"), optimizer)
    return cell.end(model, optimizer)


class Capped(Tied):
    def __init__(self, norm_type: float = 2.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(19, WIDTH, max_norm=2.0, norm_type=norm_type)
        self.head = nn.Linear(WIDTH, 19)


def max_norm(model: Any, cell: ShardsCell) -> Any:
    model, optimizer = cell.made(model())
    seen = []
    for step in range(STEPS):
        ids = cell.tokens(step, 19)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        loss.backward()
        cell.step(optimizer)
    return cell.end(model, optimizer, *seen)


class CappedBags(Capped):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.EmbeddingBag(19, WIDTH, max_norm=2.0)

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.reshape(-1, 1)).view(*ids.shape, -1)


def weight_norm(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.parametrizations.weight_norm(model.blocks[0].up)
    nn.utils.parametrizations.weight_norm(model.head)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def spectral_norm(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.parametrizations.spectral_norm(model.blocks[0].up)
    nn.utils.parametrizations.orthogonal(model.first)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def weight_norm_old(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.weight_norm(model.blocks[0].up)
    nn.utils.weight_norm(model.head)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class Normalized(Block):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.up.weight.div_(self.up.weight.norm(dim=1, keepdim=True))
        return super().forward(x)


def written_in_forward(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=Normalized))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def spectral_norm_old(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.spectral_norm(model.blocks[0].up)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def pruned(cell: ShardsCell) -> Any:
    model = Net()
    prune.l1_unstructured(model.blocks[0].up, "weight", 0.5)
    model, optimizer = cell.made(model)
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def vector(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer, torch.nn.utils.parameters_to_vector(model.parameters()).detach())


def vector_back(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    count = sum(p.numel() for p in model.parameters())
    torch.nn.utils.vector_to_parameters(torch.linspace(-0.02, 0.02, count), model.parameters())
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def grads_changed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []

    def change(m: Any) -> None:
        for p in m.parameters():
            p.grad.mul_(0.5)
            p.grad.add_(p.detach(), alpha=0.01)
            p.grad = p.grad * 2
            p.grad.data = p.grad.data.sign() * 0.01
            seen.append(p.grad.clone())

    _trained(cell, model, optimizer, graded=change)
    return cell.end(model, optimizer, *seen)


def grad_data_assigned(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def change(m: Any) -> None:
        for p in m.parameters():
            p.grad.data = p.grad.data * 0.5

    _trained(cell, model, optimizer, graded=change)
    return cell.end(model, optimizer)


def grad_noise(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def change(m: Any) -> None:
        for p in m.parameters():
            p.grad += torch.linspace(-0.1, 0.1, p.numel()).view(p.shape)

    _trained(cell, model, optimizer, graded=change)
    return cell.end(model, optimizer)


def zeros_kept(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss_of(model, cell.batch(step)).backward()
        cell.step(optimizer)
        model.zero_grad(set_to_none=False)
    return cell.end(model, optimizer)


def states_inspected(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    optimizer = cell.distribute(torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3), model)
    seen: list[Any] = []

    def inspect(m: Any) -> None:
        for p in m.parameters():
            state = optimizer.state[p]
            seen.extend([state["exp_avg"].norm(), state["exp_avg_sq"].mean(), float(state["step"])])
            state["exp_avg"].mul_(0.5)

    _trained(cell, model, optimizer, stepped=inspect)
    return cell.end(model, optimizer, *seen)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None] * torch.linspace(0.5, 1.5, 5)[None, :, None]
        return x + self.mix(y, y, y)[0].mean(1)


def attention(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=Attentive))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def attention_eval(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=lambda: nn.TransformerEncoderLayer(WIDTH, 4, 128, 0.0, batch_first=True)))
    seen: list[Any] = []

    def loss(m: Any, x: Tensor) -> Tensor:
        return (m(x[:, None]) - x.sum(1)[:, None, None]).square().mean()

    @torch.no_grad()
    def evaluate(m: Any) -> None:
        m.eval()
        seen.append(m(torch.ones(3, 1, INPUTS)))
        m.train()

    _trained(cell, model, optimizer, loss, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None] * torch.linspace(0.5, 1.5, 5)[None, :, None]
        return x + self.lstm(y)[0][:, -1]


def lstm(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=Recurrent))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def gru_root(cell: ShardsCell) -> Any:
    torch.manual_seed(0)
    model, optimizer = cell.made(nn.GRU(INPUTS, WIDTH, num_layers=2, batch_first=True))
    _trained(cell, model, optimizer, lambda m, x: m(x[:, None])[0].square().mean())
    return cell.end(model, optimizer)


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return grad @ w, grad.t() @ x


class OwnBlock(Block):
    def forward(self, x: Tensor) -> Tensor:
        return x + Own.apply(torch.tanh(Own.apply(self.norm(x), self.up.weight)), self.down.weight)


def own_function(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=OwnBlock))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class Counting(Block):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.bool))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count += 1
            self.seen = self.seen * 0.5 + 1
        return super().forward(x * self.mask) + 0.01 * self.seen


def buffers(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=Counting))
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer, *model.buffers())


def two_forwards(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + loss_of(m, x * 0.5))
    return cell.end(model, optimizer)


def two_backwards(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, cell.batch(step))
        loss.backward(retain_graph=True)
        (loss * 0.5).backward()
        cell.step(optimizer)
    return cell.end(model, optimizer)


def functional(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(
        cell,
        model,
        optimizer,
        lambda m, x: loss_of(lambda x: functional_call(m, dict(m.named_parameters()), (x,)), x),
    )
    return cell.end(model, optimizer)


def functional_changed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(
        cell,
        model,
        optimizer,
        lambda m, x: loss_of(lambda x: functional_call(m, {n: p * 0.9 for n, p in m.named_parameters()}, (x,)), x),
    )
    return cell.end(model, optimizer)


def generate(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Tied())
    seen = []
    for step in range(STEPS):
        ids = cell.tokens(step, 19)
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        cell.step(optimizer)
        with torch.no_grad():
            text = torch.zeros(1, 1, dtype=torch.int64)
            for _ in range(4):
                text = torch.cat([text, model(text)[:, -1:].argmax(-1)], 1)
        seen.append(text)
    return cell.end(model, optimizer, *seen)


class Generating(Tied):
    @torch.no_grad()
    def generate(self, text: Tensor, count: int) -> Tensor:
        for _ in range(count):
            text = torch.cat([text, self(text)[:, -1:].argmax(-1)], 1)
        return text

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids).mean(1)


def generate_method(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Generating())
    seen = []
    for step in range(STEPS):
        ids = cell.tokens(step, 19)
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        cell.step(optimizer)
        seen.append(model.generate(torch.zeros(1, 1, dtype=torch.int64), 4))
    return cell.end(model, optimizer, *seen)


def other_method(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Generating())
    for step in range(STEPS):
        ids = cell.tokens(step, 19)
        optimizer.zero_grad()
        model.embed(ids).square().mean().backward()
        cell.step(optimizer)
    return cell.end(model, optimizer)


def submodule_called(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, lambda m, x: loss_of(lambda x: m.head(m.blocks[0](m.first(x))), x))
    return cell.end(model, optimizer)


def forward_called(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, lambda m, x: loss_of(m.forward, x))
    return cell.end(model, optimizer)


def penalty(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + 0.01 * sum(p.square().sum() for p in m.parameters()))
    return cell.end(model, optimizer)


def penalty_norm(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + 0.01 * m.head.weight.abs().sum())
    return cell.end(model, optimizer)


def gradient_penalty(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def loss(m: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        y = m(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.square().mean() + slope.square().sum(1).mean()

    _trained(cell, model, optimizer, loss)
    return cell.end(model, optimizer)


def grads_by_function(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):
        loss = loss_of(model, cell.batch(step))
        for p, grad in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True):
            p.grad = grad
        cell.step(optimizer)
    return cell.end(model, optimizer)


def dropout_and_schedule(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    _trained(cell, model, optimizer, stepped=lambda m: schedule.step())
    return cell.end(model, optimizer)


def replaced(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    _trained(cell, model, optimizer)
    torch.manual_seed(3)
    model.head = nn.Linear(WIDTH, 1)
    optimizer.add_param_group({"params": list(model.head.parameters())})
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def printed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    text = f"{model} {model.head.weight} {next(iter(model.parameters()))}"
    assert "Linear" in text
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer, sum(p.numel() for p in model.parameters()))


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(torch.randn(WIDTH, WIDTH) / 8 for _ in range(3))
        self.named = nn.ParameterDict({"first": torch.randn(WIDTH, INPUTS) / 3})
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.named["first"].t()
        for w in self.weights:
            x = torch.tanh(x @ w)
        return self.head(x)


def lists(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Lists())
    _trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def lbfgs_like_closure(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, cell.batch(step))
            loss.backward()
            return loss

        optimizer.step(closure)
        cell.steps += 1
    return cell.end(model, optimizer)


def _loops() -> dict[str, Loop]:
    """The functions of this module that take a cell and nothing else, by name, and those with a choice."""
    found: dict[str, Loop] = {}
    for name, loop in list(globals().items()):
        if isinstance(loop, FunctionType) and loop.__module__ == __name__ and name[0] != "_" and "test" not in name:
            if loop.__code__.co_varnames[: loop.__code__.co_argcount] == ("cell",):
                found[name] = loop
    for reentrant in (True, False):
        for kind in ("blocks", "several", "beside"):
            found[f"recompute {kind} {reentrant}"] = partial(recompute, kind, reentrant)
        found[f"recompute with head {reentrant}"] = partial(recompute_beside, reentrant)
    found |= {f"channels_last {when}": partial(channels_last, when) for when in ("before", "between", "after")}
    found |= {f"row {name}": partial(rows_of, write) for name, write in WRITES.items()}
    return found | {f"max_norm {kind.__name__}": partial(max_norm, kind) for kind in (Capped, CappedBags)}


def _halve(w: Any) -> None:
    w[0] *= 0.5


def _assign(w: Any) -> None:
    w[0] = torch.ones(WIDTH)


WRITES: dict[str, Any] = {
    "zero_": lambda w: w[0].zero_(),
    "mul_": lambda w: w[1:3].mul_(0.5),
    "*=": _halve,
    "=": _assign,
    "fill_": lambda w: w[0].fill_(1),
    "normal_": lambda w: w[:7].normal_(),
    "narrow": lambda w: w.data.narrow(0, 0, 2).zero_(),
    "chunk": lambda w: w.chunk(2)[0].add_(1),
    "copy_": lambda w: w[:2].copy_(torch.ones(2, WIDTH)),
}
LOOPS = _loops()
_BESIDE = "got a whole tensor and a parameter in shards; call the model"
_ROWS = "writes into some rows of a tensor in shards"
REFUSED: dict[str, tuple[int, str]] = {
    "as_list": (3, r"tolist\(\) of a tensor in shards; gather it by p.full_tensor"),
    "as_numpy": (3, r"numpy\(\) of a tensor in shards; gather it by p.full_tensor"),
    "forward_called": (0, _BESIDE),
    "functional_changed": (0, "functional_call gives other parameters .* to a model in shards"),
    "grad_noise": (0, _BESIDE),
    "gradient_penalty": (0, "gradients of gradients .*; train such a model without shards"),
    "grads_by_function": (0, r"use loss.backward\(\), and p.grad"),
    "indexed": (1, _ROWS),
    "layers_beside": (0, _BESIDE),
    "max_norm Capped": (0, "tokens has max_norm=2.0"),
    "max_norm CappedBags": (0, "tokens has max_norm=2.0"),
    "other_method": (0, _BESIDE),
    "penalty": (0, _BESIDE),
    "recompute beside False": (0, _BESIDE),
    "recompute beside True": (0, _BESIDE),
    "replaced": (3, "is not in shards; add modules and parameters to the model before quorate.parallelize"),
    **{name: (1, _ROWS) for name in LOOPS if name.startswith("row ")},
    **{name: (0, "is a ScriptModule") for name in LOOPS if name.startswith(("script_", "trace_"))},
    "submodule_called": (0, _BESIDE),
    "to_between": (3, "converted to torch.float64 after its first forward pass; convert it before"),
    "vector": (3, r"write back what has changed by p.copy_\(whole\)"),
    "written_in_forward": (0, "writes into blocks.0.up.weight in its forward pass"),
}
"""Loops that are refused: after how many steps, before another one, and the sentence."""
SOME = (
    *("accumulate", "clip_by_hand", "columns", "data_assigned", "ema", "hook_before", "hook_clamps", "inference_eval"),
    *("load_assign_after", "load_part", "norms_logged", "swapped_for_evaluation", "tied", "weight_in_forward_hook"),
    *("functional_changed", "max_norm Capped", "row zero_", "gradient_penalty"),
)
"""Those that are tried with ZeRO 1 and 2, too."""
TOLERANCES = {"autocast": 2e-3, "norms_logged": 1e-5}


def _all(names: Sequence[str], zero: int, world: Any) -> dict[str, InShards]:
    return all_ended({name: LOOPS[name] for name in names}, zero, world)


@pytest.fixture(scope="module")
def ends() -> dict[str, list[InShards]]:
    """How each loop ends on each of two workers, with ZeRO 3."""
    found = run_real_world(2, partial(_all, list(LOOPS), 3), 300.0)
    return {name: [ended[name] for ended in found] for name in LOOPS}


def _check(name: str, ended: Sequence[InShards]) -> None:
    if name in REFUSED:
        steps, sentence = REFUSED[name]
        for worker in ended:
            assert re.match(r"ConfigurationError: ", worker.error), worker.error
            assert re.search(sentence, worker.error), worker.error
            assert worker.steps == steps
        return
    assert [worker.error for worker in ended] == ["", ""]
    assert max(difference(worker, LOOPS[name]) for worker in ended) < TOLERANCES.get(name, 2e-6)


@pytest.mark.parametrize("name", LOOPS)
def test_an_ordinary_loop_is_right_in_shards_or_refused(name: str, ends: dict[str, list[InShards]]) -> None:
    _check(name, ends[name])


@pytest.mark.parametrize("zero", [1, 2])
def test_the_other_stages_do_the_same(zero: int) -> None:
    found = run_real_world(2, partial(_all, SOME, zero), 120.0)
    for name in SOME:
        _check(name, [ended[name] for ended in found])


def _first_reads_alone(world: Any) -> None:
    cell = ShardsCell(world.rank, world.size, 3)
    model, optimizer = cell.made(Net())
    if world.is_first:
        model.head.weight.norm().item()
    _trained(cell, model, optimizer)


def test_a_number_that_one_worker_reads_is_named() -> None:
    ended = outcomes_real_world(2, _first_reads_alone, 60.0)
    assert any("reading a number of a tensor in shards" in outcome.error_message for outcome in ended), ended


def test_an_error_of_torch_is_told_in_words() -> None:
    error = RuntimeError("aten.mm.default got mixed torch.Tensor and DTensor, need to convert all torch.Tensor")
    assert "aten.mm.default got a whole tensor and a parameter in shards" in str(in_words(error))
    assert in_words(RuntimeError("size mismatch")) is None
