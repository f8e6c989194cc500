"""`Experts`: a layer of many modules of one kind, with each token sent to a few of them. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn import Linear, Module, Parameter

from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.plain_piece import plain_piece
from quorate.sharding.traffic import Traffic


class Experts(Module):
    """Experts, and a router that sends each token to `top_k` of them.

    Tokens of (..., dim) become (..., out), where `out` is the width of an expert's output: for each token the sum of
    its experts' outputs, times their gates. On one process it is an ordinary module. `quorate.parallelize` distributes
    the experts over the shards of a replica; every worker routes its own tokens, with a capacity for them alone.
    Parameters of experts are stacked: `experts.<name>` is (count, *shape), and a worker's piece has fewer rows.

    Args:
        expert: A function that creates an expert, a Module that takes (tokens, dim). It is called `count` times; all
            have the same names and shapes of parameters, and no buffers.
        count: The number of experts; a multiple of the number of shards.
        dim: The width of a token.
        top_k: The number of experts of each token.
        capacity_factor: An expert takes at most ceil(capacity_factor top_k T / count) of the T tokens of a call. The
            others add zeros, so such a token continues by the residual connection around the layer alone. None: no
            limit. `route` (`quorate.sharding.experts`) has the exact rules.
        groups: The number of groups of neighbouring tokens, each with its own capacity and losses. One process with
            `groups=4` and the concatenated batches of four workers computes the same as four workers with `groups=1`.

    Attributes:
        balance_loss, z_loss: After a call, losses without coefficients to be added: `loss + 0.01 * layer.balance_loss`.

    On a GPU each expert computes as many rows as it takes at most, and the surplus ones are ignored, so that the GPU is
    not waited for. Without a limit, sizes depend on the tokens: a layer waits once in each call.

    Raises:
        ConfigurationError: Numbers are out of range, or experts have different parameters or buffers.

    Sources: Lepikhin et al. 2020 (GShard, arXiv 2006.16668), Fedus et al. 2021 (Switch Transformer, arXiv 2101.03961).

    Example:
        >>> layer = quorate.Experts(lambda: torch.nn.Linear(4, 4), count=8, dim=4)
        >>> layer(torch.randn(2, 5, 4)).shape
        torch.Size([2, 5, 4])
    """

    balance_loss: Tensor | None
    z_loss: Tensor | None

    def __init__(
        self,
        expert: Callable[[], Module],
        count: int,
        dim: int,
        *,
        top_k: int = 2,
        capacity_factor: float | None = 1.25,
        groups: int = 1,
    ) -> None:
        super().__init__()
        sizes: dict[str, object] = {"count": count, "dim": dim, "top_k": top_k, "groups": groups}
        for name, number in sizes.items():
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigurationError(
                    f"{name}={number!r} is not a number of Experts; it must be a whole number (at least 1)"
                )
        if top_k > count:
            raise ConfigurationError(f"top_k={top_k} is more than there are experts: {count}")
        if capacity_factor is not None and not 0 < capacity_factor < float("inf"):
            raise ConfigurationError(
                f"capacity_factor={capacity_factor!r} is out of range; it must be above 0, or None: no token is dropped"
            )
        if isinstance(expert, Module) or not callable(expert):
            raise ConfigurationError(
                "expert is called once for each expert, to make it; give a function, as in "
                "Experts(lambda: nn.Sequential(...), 8, 64), so that each begins with numbers of its own"
            )
        self.count, self.dim, self.top_k, self.groups = count, dim, top_k, groups
        self.capacity_factor = capacity_factor
        self.router = Linear(dim, count, bias=False)
        self.experts = _stacked([expert() for _ in range(count)])
        self._dropped: int | Tensor = 0
        self.balance_loss = self.z_loss = None
        self._exchange: Exchange | None = None

    @property
    def dropped(self) -> int:
        """The number of choices that were not taken in the last call; a GPU is waited for."""
        return int(self._dropped)

    def spread_(self, exchange: Exchange) -> None:
        """Keep only the parameters of the count / S experts of this worker's rank, from now on."""
        self._exchange = exchange

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs. Raises `ConfigurationError` for other widths, and tokens that `groups` do not divide."""
        if x.shape[-1] != self.dim:
            raise ConfigurationError(f"Experts takes tokens of {self.dim} numbers, not {x.shape[-1]}")
        flat = x.reshape(-1, self.dim)
        if len(flat) % self.groups:
            raise ConfigurationError(f"{len(flat)} tokens cannot be cut into groups={self.groups} of equal size")
        choices = choices_of(self.router(flat), self.top_k, self.capacity_factor, self.groups)
        routes, y = self._there_and_back(flat, choices)
        self.balance_loss, self.z_loss, self._dropped = routes.balance_loss, routes.z_loss, routes.dropped
        weighted = y * routes.gate.to(y.dtype).view(-1, *[1] * (y.dim() - 1))
        outputs = weighted.new_zeros(len(flat), *y.shape[1:]).index_add(0, routes.token, weighted)
        return outputs.view(*x.shape[:-1], *y.shape[1:])

    def _there_and_back(self, flat: Tensor, choices: Choices) -> tuple[Routes, Tensor]:
        """Return the routes of the tokens `flat`, and the outputs of their experts.

        A GPU is waited for once if there is no limit to an expert's tokens, and else not at all.
        """
        if self.capacity_factor is not None and pads(flat):
            return self._in_full_rows(flat, choices)
        exchange, sent = self._exchange, choices.counts
        if exchange is None:
            of_experts: list[int] = sent.tolist()
            routes = choices.routes(sum(of_experts))
            return routes, self._computed(flat[routes.token], of_experts, 1)
        counts = exchange.counts(sent)
        workers = exchange.size
        sums = torch.cat((sent.view(workers, -1).sum(1), counts.sum(1), counts.sum(0))).tolist()
        sent_rows, taken, of_experts = sums[:workers], sums[workers : 2 * workers], sums[2 * workers :]
        routes = choices.routes(sum(sent_rows))
        received = exchange.rows(flat[routes.token], sent_rows, taken)
        numbers = torch.arange(counts.shape[1], device=counts.device).repeat(exchange.size)
        order = numbers.repeat_interleave(counts.flatten(), output_size=sum(taken)).argsort(stable=True)
        y = self._computed(received[order], of_experts, exchange.size)
        return routes, exchange.rows(y[order.argsort()], taken, sent_rows)

    def _in_full_rows(self, flat: Tensor, choices: Choices) -> tuple[Routes, Tensor]:
        """Return the same, with as many rows for each expert as it takes at most. No size depends on a number."""
        exchange, each = self._exchange, len(flat) // self.groups
        most = self.groups * capacity_of(each, self.count, self.top_k, self.capacity_factor)
        routes, is_filled = choices.full_rows(most)
        rows = flat[routes.token]
        if exchange is None:
            y = self._computed(rows, [most] * self.count, 1)
        else:
            here, mosts = self.count // exchange.size, exchange.values("rows for each expert", most)
            sent, taken = [here * most] * exchange.size, [here * rows_of_one for rows_of_one in mosts]
            pieces = exchange.rows(rows, sent, taken).split(taken)
            by_expert = [piece.unflatten(0, (here, size)) for piece, size in zip(pieces, mosts, strict=True)]
            y = self._computed(torch.cat(by_expert, 1).flatten(0, 1), [sum(mosts)] * here, exchange.size)
            back = y.unflatten(0, (here, sum(mosts))).split(mosts, 1)
            y = exchange.rows(torch.cat([piece.flatten(0, 1) for piece in back]), taken, sent)
        return routes, y.masked_fill(~is_filled.view(-1, *[1] * (y.dim() - 1)), 0.0)

    def _computed(self, rows: Tensor, counts: list[int], workers: int) -> Tensor:
        """Return the outputs of local experts. Each is called, even without tokens, so that all parameters get
        gradients.

        Gradients of a replica are means over its workers, and those of experts come from the tokens of all of them.
        """
        stacks = {name: _here(p, workers) for name, p in self.experts.named_parameters()}
        each = {name: stack.unbind() for name, stack in stacks.items()}
        call: Any = functional_call
        return torch.cat(
            [
                call(self.experts, {name: ones[place] for name, ones in each.items()}, (tokens,))
                for place, tokens in enumerate(rows.split(counts))
            ]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the results of the last call, as tensors with a graph cannot be copied."""
        return {**self.__dict__, "balance_loss": None, "z_loss": None}

    def extra_repr(self) -> str:
        """Return the settings, for `print`."""
        return f"count={self.count}, dim={self.dim}, top_k={self.top_k}, capacity_factor={self.capacity_factor}"


def _here(p: Any, workers: int) -> Tensor:
    """Return the local rows of a stack; their gradient will be divided by `workers`."""
    stack: Tensor = plain_piece(p) if hasattr(p, "to_local") else p.view_as(p)
    if workers > 1 and stack.requires_grad:
        stack.register_hook(lambda gradient: gradient / workers)
    return stack


def _stacked(experts: list[Module]) -> Module:
    """Return the first expert with each of its parameters replaced by the stack of all."""
    first, parameters = experts[0], [dict(expert.named_parameters(remove_duplicate=False)) for expert in experts]
    if any(
        {n: p.shape for n, p in named.items()} != {n: p.shape for n, p in parameters[0].items()} for named in parameters
    ):
        raise ConfigurationError("expert() made experts with different parameters; all have the same names and shapes")
    if not parameters[0] or len(parameters[0]) != len(list(first.parameters())) or any(True for _ in first.buffers()):
        raise ConfigurationError(
            f"{type(first).__name__} is not an expert: it has no parameters, or tied ones, or buffers, of which each "
            "expert would need its own"
        )
    for name, p in parameters[0].items():
        path, _, key = name.rpartition(".")
        stack = torch.stack([named[name].detach() for named in parameters])
        setattr(first.get_submodule(path), key, Parameter(stack, p.requires_grad))
    return first


@dataclass(frozen=True)
class Routes:
    """The M pairs of a token and an expert that are computed, in order of experts."""

    token: Tensor
    """Positions of tokens in the batch: (M,)."""
    expert: Tensor
    """Numbers of experts, in ascending order: (M,)."""
    gate: Tensor
    """Factors of the experts' outputs; with a graph: (M,)."""
    dropped: int | Tensor
    """Pairs whose expert was full."""
    balance_loss: Tensor
    """E sum_i f_i P_i, without a coefficient; 1 where all experts are chosen equally often."""
    z_loss: Tensor
    """The mean of (log sum exp of a token's logits) squared, without a coefficient."""


@dataclass(frozen=True)
class Choices:
    """All T k choices of tokens, in the order of `Routes`; those whose expert was full come last.

    Their shapes depend on no number, so that a GPU is not waited for.
    """

    token: Tensor
    expert: Tensor
    gate: Tensor
    counts: Tensor
    """How many choices each expert takes: (E,)."""
    balance_loss: Tensor
    z_loss: Tensor

    def routes(self, taken: int) -> Routes:
        """Return the routes, where `taken` is the sum of `counts`."""
        return Routes(
            token=self.token[:taken],
            expert=self.expert[:taken],
            gate=self.gate[:taken],
            dropped=len(self.token) - taken,
            balance_loss=self.balance_loss,
            z_loss=self.z_loss,
        )

    def full_rows(self, most: int) -> tuple[Routes, Tensor]:
        """Return routes with `most` rows for each expert, and which of them it takes; the others repeat a token."""
        places = torch.arange(most, device=self.counts.device)
        is_filled = places < self.counts.unsqueeze(1)
        choice = (self.counts.cumsum(0).sub(self.counts).unsqueeze(1) + places).where(is_filled, 0).flatten()
        routes = Routes(
            token=self.token[choice],
            expert=torch.arange(len(self.counts), device=places.device).unsqueeze(1).expand(-1, most).flatten(),
            gate=self.gate[choice],
            dropped=len(self.token) - self.counts.sum(),
            balance_loss=self.balance_loss,
            z_loss=self.z_loss,
        )
        return routes, is_filled.flatten()


def pads(x: Tensor) -> bool:
    """Whether sizes are to depend on no numbers of the device of `x`, since it would be waited for."""
    return x.device.type != "cpu"


def capacity_of(tokens: int, count: int, top_k: int, factor: float | None) -> int:
    """Return how many tokens of a group an expert takes: ceil(factor k T / E); all of them where `factor` is None."""
    if factor is None:
        return tokens
    return min(tokens, math.ceil(factor * top_k * tokens / count))


def route(logits: Tensor, top_k: int, capacity_factor: float | None, groups: int = 1) -> Routes:
    """The routes of T tokens to E experts by the router's `logits` (T, E), in `groups` of neighbouring tokens.

    Each token chooses the `top_k` experts of highest probability p = softmax(logits). Its gates are their
    probabilities, divided by the sum of these where `top_k` is more than 1 (Lepikhin et al. 2020, GShard, arXiv
    2006.16668, algorithm 1). Of each group an expert takes as many tokens as `capacity_of` says: first choices before
    second ones, and among these tokens in their order. Other pairs are dropped; gates that are left stay as they are.

    The losses are of each group, and averaged over groups. `balance_loss` is equation 4 of Fedus et al. 2021 (Switch
    Transformer, arXiv 2101.03961) without its coefficient. P_i is the mean probability of expert i, f_i the share of
    all choices that were for it, including the dropped ones. `z_loss` is equation 5 of Zoph et al. 2022 (ST-MoE, arXiv
    2202.08906). Numbers of fewer than 4 bytes are routed in float32. T is a multiple of `groups`.
    """
    choices = choices_of(logits, top_k, capacity_factor, groups)
    return choices.routes(int(choices.counts.sum()))


def choices_of(logits: Tensor, top_k: int, capacity_factor: float | None, groups: int = 1) -> Choices:
    """Return the choices of which `route` returns those that are taken. No GPU is waited for."""
    logits = logits.float() if logits.element_size() < 4 else logits
    tokens, count = logits.shape
    each = tokens // groups
    probability = logits.softmax(-1)
    gates, chosen = probability.topk(top_k, dim=-1)
    if top_k > 1:
        gates = gates / gates.sum(-1, keepdim=True)

    group = torch.arange(tokens, device=logits.device) // max(each, 1)
    place = (group.unsqueeze(1) * count + chosen).t().flatten()  # one for each group and expert; first choices first
    order = place.argsort(stable=True)
    first = _firsts(place[order], groups * count)
    demand = first.diff()
    position = torch.arange(len(order), device=logits.device) - first[place[order]]
    expert = chosen.t().flatten()[order]
    expert = expert.where(position < capacity_of(each, count, top_k, capacity_factor), count)
    by_expert = expert.argsort(stable=True)
    expert, choice = expert[by_expert], order[by_expert]

    share = demand.view(groups, count).to(probability.dtype) / max(each * top_k, 1)
    mean = probability.view(groups, each, count).mean(1) if tokens else probability.new_zeros(groups, count)
    z = logits.logsumexp(-1).square()
    return Choices(
        token=choice % max(tokens, 1),
        expert=expert,
        gate=gates.t().flatten()[choice],
        counts=_firsts(expert, count).diff(),
        balance_loss=count * (share * mean).sum(-1).mean(),
        z_loss=z.mean() if tokens else z.sum(),
    )


def _firsts(ascending: Tensor, count: int) -> Tensor:
    """Return the positions at which numbers of at least 0, 1, ..., `count` begin in an ascending vector."""
    return torch.searchsorted(ascending, torch.arange(count + 1, device=ascending.device))


class Exchange:
    """The workers that share the experts of one model, as one of them sees them."""

    def __init__(self, wire: Wire, traffic: Traffic) -> None:
        self.wire, self.traffic = wire, traffic
        self.rank, self.size = wire.rank, wire.size

    def swap(self, pieces: Sequence[Tensor], shapes: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
        """Send each worker its piece; return the pieces received by rank, of these `shapes` where they are known.
        Raises as `core.contracts.Work.wait`."""
        return self.traffic.wait(self.wire.all_to_all(pieces, shapes=shapes), self.wire.clock)

    def counts(self, sent: Tensor) -> Tensor:
        """Return how many tokens each worker sends to each expert here, (S, E / S). `sent` is how many this worker
        sends to each of all E. Cost: E numbers sent."""
        pieces = sent.view(self.size, -1).unbind()
        return torch.stack(self.swap(pieces, [piece.shape for piece in pieces]))

    def values(self, call: str, value: int) -> list[int]:
        """Return the `value` of every worker. Raises `Mismatch` where one makes another `call`."""
        return self.traffic.wait(self.wire.tell_all(call, value), self.wire.clock)

    def rows(self, x: Tensor, counts: Sequence[int], taken: Sequence[int]) -> Tensor:
        """Send each worker so many rows of `x`, and take so many; return these in order of ranks. Differentiable.

        Cost: the rows that go to other workers are sent, in each direction. All workers call it, and go backward
        through it, equally often and in the same order.
        """
        received: Tensor = _Swapped.apply(x, self, counts, taken)  # type: ignore[no-untyped-call]
        return received


class _Swapped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, counts: Sequence[int], taken: Sequence[int]) -> Tensor:
        ctx.how = exchange, counts, taken
        return _swapped(x.detach(), exchange, counts, taken)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        exchange, counts, taken = ctx.how
        return _swapped(gradient, exchange, taken, counts), None, None, None


def _swapped(x: Tensor, exchange: Exchange, counts: Sequence[int], taken: Sequence[int]) -> Tensor:
    pieces = [piece.contiguous() for piece in x.split(list(counts))]
    return torch.cat(exchange.swap(pieces, [(count, *x.shape[1:]) for count in taken]))
