"""The routing of tokens to experts: capacities, dropped tokens, and the losses that balance experts. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Routes:
    """The M pairs of a token and an expert that are computed, in order of experts."""

    token: Tensor
    """Positions of tokens in the batch: (M,)."""
    expert: Tensor
    """Numbers of experts, in ascending order: (M,)."""
    gate: Tensor
    """Factors of the experts' outputs; with a graph: (M,)."""
    dropped: int
    """Pairs whose expert was full."""
    balance_loss: Tensor
    """E sum_i f_i P_i, without a coefficient; 1 where all experts are chosen equally often."""
    z_loss: Tensor
    """The mean of (log sum exp of a token's logits) squared, without a coefficient."""


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
    Transformer, arXiv 2101.03961) without its coefficient: P_i is the mean probability of expert i, f_i the share of
    all choices that were for it, the dropped ones included. `z_loss` is equation 5 of Zoph et al. 2022 (ST-MoE, arXiv
    2202.08906). Numbers of fewer than 4 bytes are routed in float32. T is a multiple of `groups`.
    """
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
    demand = place.bincount(minlength=groups * count)
    position = torch.arange(len(order), device=logits.device) - (demand.cumsum(0) - demand)[place[order]]
    kept = order[position < capacity_of(each, count, top_k, capacity_factor)]
    expert = chosen.t().flatten()[kept]
    by_expert = expert.argsort(stable=True)
    kept = kept[by_expert]

    share = demand.view(groups, count).to(probability.dtype) / max(each * top_k, 1)
    mean = probability.view(groups, each, count).mean(1) if tokens else probability.new_zeros(groups, count)
    z = logits.logsumexp(-1).square()
    return Routes(
        token=kept % max(tokens, 1),
        expert=expert[by_expert],
        gate=gates.t().flatten()[kept],
        dropped=tokens * top_k - len(kept),
        balance_loss=count * (share * mean).sum(-1).mean(),
        z_loss=z.mean() if tokens else z.sum(),
    )
