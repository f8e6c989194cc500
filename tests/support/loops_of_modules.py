"""Ordinary loops of evaluations, precisions, and modules of many kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from tests.support.loops_in_shards import (
    INPUTS,
    STEPS,
    WIDTH,
    Block,
    Net,
    ShardsCell,
    Tied,
    by_loss,
    graded,
    loss_of,
    of_model,
    stepped,
    trained,
)


@stepped
def no_grad_eval(m: Any, seen: list[Any]) -> None:
    m.eval()
    with torch.no_grad():
        seen.append(m(torch.ones(3, INPUTS)))
    m.train()


def inference_eval(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    seen: list[Any] = []

    def evaluate(m: Any) -> None:
        m.eval()
        with torch.inference_mode():
            seen.append(m(torch.ones(3, INPUTS)) + 0)
        m.train()

    evaluate(model)
    trained(cell, model, optimizer, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


@stepped
@torch.inference_mode()
def inference_decorated(m: Any, seen: list[Any]) -> None:
    m.eval()
    for _ in range(2):
        seen.append(m(torch.ones(3, INPUTS)).mean().item())
    seen.append(float(sum(p.abs().sum() for p in m.parameters())))
    m.train()


@by_loss
def autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return loss_of(m, x)


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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class Beside(Net):
    """Calls the layers of its blocks itself."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block.down(torch.tanh(block.up(block.norm(x))))
        return self.head(x)


layers_beside = of_model(Beside)


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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def to_before(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net().to(torch.float64))
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_after(cell: ShardsCell) -> Any:
    model = cell.parallelize(Net()).to(torch.float64)
    optimizer = cell.distribute(torch.optim.SGD(model.parameters(), lr=0.01), model)
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_after_distribute(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    model.to(torch.float64)
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
    return cell.end(model, optimizer)


def to_between(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    model.to(torch.float64)
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x.double()))
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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def script_blocks(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net(block=lambda: torch.jit.script(Block())))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def script_whole(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(torch.jit.script(nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1))))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def trace_whole(cell: ShardsCell) -> Any:
    net = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, 1))
    model, optimizer = cell.made(torch.jit.trace(net, torch.ones(1, INPUTS)))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def compiled_block(cell: ShardsCell) -> Any:
    model: Any = Net()
    if cell.zero is not None:
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def compiled_whole(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, torch.compile(model, backend="eager"), optimizer)
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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def spectral_norm(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.parametrizations.spectral_norm(model.blocks[0].up)
    nn.utils.parametrizations.orthogonal(model.first)
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


class Normalized(Block):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.up.weight.div_(self.up.weight.norm(dim=1, keepdim=True))
        return super().forward(x)


written_in_forward = of_model(partial(Net, block=Normalized))


def spectral_norm_old(cell: ShardsCell) -> Any:
    model = Net()
    nn.utils.spectral_norm(model.blocks[0].up)
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def pruned(cell: ShardsCell) -> Any:
    model = Net()
    prune.l1_unstructured(model.blocks[0].up, "weight", 0.5)
    model, optimizer = cell.made(model)
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def vector(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    return cell.end(model, optimizer, torch.nn.utils.parameters_to_vector(model.parameters()).detach())


def vector_back(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    count = sum(p.numel() for p in model.parameters())
    torch.nn.utils.vector_to_parameters(torch.linspace(-0.02, 0.02, count), model.parameters())
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


@graded
def grads_changed(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.grad.mul_(0.5)
        p.grad.add_(p.detach(), alpha=0.01)
        p.grad = p.grad * 2
        p.grad.data = p.grad.data.sign() * 0.01
        seen.append(p.grad.clone())


@graded
def grad_data_assigned(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.grad.data = p.grad.data * 0.5


@graded
def grad_noise(m: Any, seen: list[Any]) -> None:
    for p in m.parameters():
        p.grad += torch.linspace(-0.1, 0.1, p.numel()).view(p.shape)


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

    trained(cell, model, optimizer, stepped=inspect)
    return cell.end(model, optimizer, *seen)


class Attentive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None] * torch.linspace(0.5, 1.5, 5)[None, :, None]
        return x + self.mix(y, y, y)[0].mean(1)


attention = of_model(partial(Net, block=Attentive))


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

    trained(cell, model, optimizer, loss, stepped=evaluate)
    return cell.end(model, optimizer, *seen)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None] * torch.linspace(0.5, 1.5, 5)[None, :, None]
        return x + self.lstm(y)[0][:, -1]


lstm = of_model(partial(Net, block=Recurrent))


def gru_root(cell: ShardsCell) -> Any:
    torch.manual_seed(0)
    model, optimizer = cell.made(nn.GRU(INPUTS, WIDTH, num_layers=2, batch_first=True))
    trained(cell, model, optimizer, lambda m, x: m(x[:, None])[0].square().mean())
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


own_function = of_model(partial(Net, block=OwnBlock))


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
    trained(cell, model, optimizer)
    return cell.end(model, optimizer, *model.buffers())


def two_forwards(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + loss_of(m, x * 0.5))
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
    trained(
        cell,
        model,
        optimizer,
        lambda m, x: loss_of(lambda x: functional_call(m, dict(m.named_parameters()), (x,)), x),
    )
    return cell.end(model, optimizer)


def functional_changed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(
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
    trained(cell, model, optimizer, lambda m, x: loss_of(lambda x: m.head(m.blocks[0](m.first(x))), x))
    return cell.end(model, optimizer)


def forward_called(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, lambda m, x: loss_of(m.forward, x))
    return cell.end(model, optimizer)


def penalty(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + 0.01 * sum(p.square().sum() for p in m.parameters()))
    return cell.end(model, optimizer)


def penalty_before(cell: ShardsCell) -> Any:
    """The penalty is calculated before the model is called."""
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, lambda m, x: 0.01 * sum(p.square().sum() for p in m.parameters()) + loss_of(m, x))
    return cell.end(model, optimizer)


@by_loss
def weights_beside(m: Any, x: Tensor) -> Tensor:
    """A block's weight and bias in the loss, whole and as norms."""
    up, down = m.blocks[0].up, m.blocks[1].down
    y = F.linear(torch.cat([x] * 8, 1), up.weight, up.bias)
    norms = [down.weight.norm(), up.weight.abs().sum(), y.square().mean()]
    return loss_of(m, x) + 0.1 * torch.stack(norms[1:]).sum() + x.mean() * norms[0]


class TiedBlocks(nn.Module):
    """Two blocks that have one weight, which is used outside both as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder, self.decoder, self.head = Block(), Block(), nn.Linear(WIDTH, 1)
        self.decoder.up.weight = self.encoder.up.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.decoder(self.encoder(F.linear(x, self.decoder.down.weight[:, :INPUTS])))
        return self.head(x @ self.encoder.up.weight.T[:, :WIDTH])  # type: ignore[no-any-return]


def tied_blocks(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(TiedBlocks(), **({} if cell.zero is None else {"blocks": ["encoder", "decoder"]}))
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def penalty_norm(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer, lambda m, x: loss_of(m, x) + 0.01 * m.head.weight.abs().sum())
    return cell.end(model, optimizer)


@by_loss
def gradient_penalty(m: Any, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    y = m(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.square().mean() + slope.square().sum(1).mean()


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
    trained(cell, model, optimizer, stepped=lambda m: schedule.step())
    return cell.end(model, optimizer)


def replaced(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    trained(cell, model, optimizer)
    torch.manual_seed(3)
    model.head = nn.Linear(WIDTH, 1)
    optimizer.add_param_group({"params": list(model.head.parameters())})
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)


def printed(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Net())
    text = f"{model} {model.head.weight} {next(iter(model.parameters()))}"
    assert "Linear" in text
    trained(cell, model, optimizer)
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


lists = of_model(Lists)


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


def beside_in_one_piece(cell: ShardsCell) -> Any:
    model, optimizer = cell.made(Recomputing("beside", False), blocks=[])
    trained(cell, model, optimizer)
    return cell.end(model, optimizer)
