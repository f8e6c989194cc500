"""Ordinary loops that read and write parameters and gradients, register hooks, and load numbers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.loops_in_shards import (
    INPUTS,
    STEPS,
    WIDTH,
    Net,
    ShardsCell,
    Tied,
    by_loss,
    graded,
    loss_of,
    of_model,
    stepped,
    trained,
    whole,
)

plain = of_model(Net)


def clip_norm(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    trained(cell, model, optimizer, graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1)))
    return cell.end(model, optimizer, *norms)


def clip_norm_item(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    trained(
        cell,
        model,
        optimizer,
        graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.1).item()),
    )
    return cell.end(model, optimizer, *norms)


def clip_inf(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    norms = []
    trained(
        cell,
        model,
        optimizer,
        graded=lambda m: norms.append(torch.nn.utils.clip_grad_norm_(m.parameters(), 0.01, float("inf"))),
    )
    return cell.end(model, optimizer, *norms)


@graded
def clip_by_hand(m: Any, seen: list[Any]) -> None:
    norm = sum(float(p.grad.norm()) ** 2 for p in m.parameters()) ** 0.5
    for p in m.parameters():
        p.grad.mul_(0.1 / (norm + 1e-6))


@graded
def clip_by_hand_data(m: Any, seen: list[Any]) -> None:
    norm = sum(p.grad.data.norm(2).item() ** 2 for p in m.parameters()) ** 0.5
    for p in m.parameters():
        p.grad.data.mul_(0.1 / (norm + 1e-6))


@graded
def clip_by_hand_tensor(m: Any, seen: list[Any]) -> None:
    norm = torch.stack([p.grad.norm() for p in m.parameters()]).norm()
    for p in m.parameters():
        p.grad.mul_(0.1 / (norm + 1e-6))


def clip_value(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, graded=lambda m: torch.nn.utils.clip_grad_value_(m.parameters(), 0.01))
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
    trained(cell, model, optimizer)
    model.blocks[0].requires_grad_(True)
    model.head.requires_grad_(False)
    trained(cell, model, optimizer, begin=STEPS)
    return cell.end(model, optimizer)


def freeze_only(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    model.head.requires_grad_(False)
    trained(cell, model, optimizer, begin=STEPS)
    return cell.end(model, optimizer)


def thaw_only(cell: ShardsCell) -> Any:
    model = Net()
    model.blocks[0].requires_grad_(False)
    model = cell.parallelize(model)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    trained(cell, model, optimizer)
    model.blocks[0].requires_grad_(True)
    trained(cell, model, optimizer, begin=STEPS)
    return cell.end(model, optimizer)


def penalty_gathered(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    def loss(m: Any, x: Tensor) -> Tensor:
        penalty = sum(p.square().sum() for p in m.blocks.parameters())
        return loss_of(m, x) + 0.01 * (penalty if cell.zero is None else penalty.full_tensor())

    trained(cell, model, optimizer, loss)
    return cell.end(model, optimizer)


def penalty_times_loss(cell: ShardsCell) -> Any:
    """Its gradient depends on the examples of each worker."""
    model, optimizer = cell.made(Net())

    def loss(m: Any, x: Tensor) -> Tensor:
        penalty = sum(p.square().sum() for p in m.blocks.parameters())
        return loss_of(m, x) * (1 + 0.01 * (penalty if cell.zero is None else penalty.full_tensor()))

    trained(cell, model, optimizer, loss)
    return cell.end(model, optimizer)


@by_loss
def weight_gathered(m: Any, x: Tensor) -> Tensor:
    """The gathered weight multiplies the examples of each worker, beside the model."""
    weight = m.first.weight
    gathered = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
    return loss_of(m, x) + 0.1 * (x @ gathered.t()).square().mean()


@stepped
@torch.no_grad()
def row_by_copy(m: Any, seen: list[Any]) -> None:
    w = whole(m.blocks[0].up.weight)
    w[0] = 0.0
    m.blocks[0].up.weight.copy_(w)


@stepped
@torch.no_grad()
def rows_scaled(m: Any, seen: list[Any]) -> None:
    w = m.blocks[0].up.weight
    w.mul_((0.3 / w.norm(dim=1, keepdim=True)).clamp(max=1))


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

    trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen, *average)


def add_group(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    optimizer = cell.distribute(torch.optim.SGD(model.head.parameters(), lr=0.01, momentum=0.9), model)
    trained(cell, model, optimizer)
    optimizer.add_param_group({"params": list(model.blocks.parameters()), "lr": 0.01})
    trained(cell, model, optimizer, begin=STEPS)
    return cell.end(model, optimizer)


@stepped
def norms_logged(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        seen.extend([p.norm().item(), float(p.data.norm()), p.grad.norm().item(), p.detach().abs().mean().item()])
        seen.extend([p.max().item(), p.min().item(), p.mean().item(), p.sum().item()])


@stepped
def std_logged(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        seen.extend(
            [
                p.isnan().any().item(),
                (p == 0).sum().item(),
                p.var().item() if p.numel() > 1 else 0.0,
                bool((p.grad.abs() < 1e9).all()),
            ]
        )


def histogram(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    found = [torch.histc(p.detach().cpu(), 10, -1, 1) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def as_numpy(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    found = [torch.as_tensor(p.detach().cpu().numpy()) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def as_list(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    found = [torch.as_tensor(p.detach().flatten().tolist()) for p in model.parameters()]
    return cell.end(model, optimizer, *found)


def ema(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    average = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(m: Any) -> None:
        for a, p in zip(average, m.parameters(), strict=True):
            a.lerp_(p, 0.1)

    trained(cell, model, optimizer, stepped=update)
    return cell.end(model, optimizer, *average)


def ema_dict(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    average = {name: x.clone() for name, x in model.state_dict().items()}

    @torch.no_grad()
    def update(m: Any) -> None:
        for name, x in m.state_dict().items():
            average[name].mul_(0.9).add_(x, alpha=0.1)

    trained(cell, model, optimizer, stepped=update)
    model.load_state_dict(average)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer, *average.values())


@stepped
def clamp_data(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.data.clamp_(-0.05, 0.05)


@stepped
def data_assigned(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.data = p.data * 0.9


@stepped
def data_assigned_whole(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.data = torch.linspace(-0.1, 0.1, p.numel()).view(p.shape)


@stepped
def data_copied(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.data.copy_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))


@stepped
@torch.no_grad()
def copied(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.copy_(torch.linspace(-0.1, 0.1, p.numel()).view(p.shape))


@stepped
@torch.no_grad()
def edited(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.mul_(0.9).add_(0.001)


@stepped
@torch.no_grad()
def indexed(m: Any, seen: list[Any]) -> None:
    m.blocks[0].up.weight[0] = 0.0
    m.head.weight[:, 3:5] *= 0.5


def rows_of(write: Any, cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())

    @torch.no_grad()
    def edit(m: Any) -> None:
        write(m.blocks[0].up.weight)

    trained(cell, model, optimizer, stepped=edit)
    return cell.end(model, optimizer)


@stepped
@torch.no_grad()
def columns(m: Any, seen: list[Any]) -> None:
    m.head.weight[:, 3:5] *= 0.5
    m.blocks[0].up.weight[:, 0] = 0.0
    m.blocks[0].up.weight[:, 2].mul_(0.5)


def initialized(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.01)
            nn.init.zeros_(module.bias)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_of_tensor(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0.5)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_before(cell: ShardsCell) -> Any:
    model = Net()
    for p in model.parameters():
        p.register_hook(lambda grad: grad * 0.5)
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hook_clamps(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    for p in model.parameters():
        p.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    for _ in range(STEPS):
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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def hooks_of_modules(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []
    model.blocks[1].register_forward_hook(lambda module, args, output: output * 1.5)
    model.blocks[0].up.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    model.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    trained(cell, model, optimizer)
    assert len(seen) == STEPS
    return cell.end(model, optimizer)


def weight_in_forward_hook(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []
    model.blocks[1].up.register_forward_hook(lambda m, args, output: seen.append(m.weight.detach().norm().item()))
    model.blocks[1].register_forward_hook(lambda m, args, output: seen.append(m.up.weight.detach().norm().item()))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer, *seen)


def hooks_backward(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    model.blocks[1].register_full_backward_hook(lambda module, given, out: tuple(x * 0.5 for x in given))
    model.blocks[0].down.register_full_backward_pre_hook(lambda module, out: tuple(x * 0.5 for x in out))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def _other() -> dict[str, Tensor]:
    return {name: x.clone() for name, x in Net(seed=7).state_dict().items()}


def load_before(cell: ShardsCell) -> Any:
    model = Net()
    model.load_state_dict(_other())
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_between(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    model.load_state_dict(_other())
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_after(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    found = model.load_state_dict(_other())
    assert not found.missing_keys
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_assign(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net())
    model.load_state_dict(_other(), assign=True)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_assign_after(cell: ShardsCell) -> Any:
    """In one process torch's optimizer would keep the parameters from before."""
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    model.load_state_dict(_other(), assign=cell.zero is not None)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def load_part(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    part = {name: x for name, x in _other().items() if name.startswith("blocks.0")}
    model.load_state_dict(part, strict=False)
    model.head.load_state_dict({name: x * 0.5 for name, x in Net(seed=8).head.state_dict().items()})
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def round_trip(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    kept = {name: x.clone() for name, x in model.state_dict().items()}
    optim = optimizer.state_dict()
    trained(cell, model, optimizer)
    model.load_state_dict(kept)
    optimizer.load_state_dict(optim)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


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
