"""Small stand-ins for optimizers of other packages: what they keep in groups, in attributes and in each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Counting(torch.optim.Optimizer):
    """A rate that falls with a count, and one of each kind of option, all written by `step`."""

    def __init__(self, params: Iterable[Any], lr: float = 0.1) -> None:
        options = {
            "lr": lr, "k": 0, "weight_sum": 0.0, "began": False, "t": torch.ones(()), "past": [], "phase": "warm",
            "of_count": lambda k: 1 / k,
        }  # fmt: skip
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"], group["began"], group["phase"] = group["weight_sum"] + 0.5, True, "hot"
            group["past"] = [*group["past"], group["lr"]]
            group["t"].add_(0.25)
            rate = group["lr"] * group["of_count"](group["k"]) / float(group["t"])
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-rate)


class Falling(torch.optim.SGD):
    """Its rate falls in `step`."""

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        for group in self.param_groups:
            group["lr"] *= 0.7


class Prodigal(torch.optim.Optimizer):
    """An estimate `d` of the distance, as of Prodigy: from all gradients so far, kept in the group."""

    def __init__(self, params: Iterable[Any], lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "d": 1e-2, "numerator": 0.0, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            there = [p for p in group["params"] if p.grad is not None]
            for p in there:
                self.state[p].setdefault("p0", p.clone())
            group["numerator"] += sum(float((p.grad * (self.state[p]["p0"] - p)).sum()) for p in there)
            group["d"] = max(group["d"], min(0.1, abs(group["numerator"])))
            group["k"] += 1
            for p in there:
                p.sub_(p.grad, alpha=group["lr"] * group["d"])


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD: its parameters are y between steps, and x, their average, after `eval()`."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "weight_sum": 0.0, "train_mode": False})

    @torch.no_grad()
    def eval(self) -> None:
        for group in self.param_groups:
            if group["train_mode"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - 1 / group["beta"])
                group["train_mode"] = False

    @torch.no_grad()
    def train(self) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - group["beta"])
                group["train_mode"] = True

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if not self.param_groups[0]["train_mode"]:
            raise Exception("Optimizer was not in train mode when step is called")
        for group in self.param_groups:
            group["k"] += 1
            group["weight_sum"] += group["lr"] ** 2
            c = group["lr"] ** 2 / group["weight_sum"]
            for p in group["params"]:
                if p.grad is not None:
                    z = self.state[p].setdefault("z", p.clone())
                    p.lerp_(z, c).add_(p.grad, alpha=group["lr"] * (group["beta"] * (1 - c) - 1))
                    z.sub_(p.grad, alpha=group["lr"])


class OfMatrices(torch.optim.Optimizer):
    """A Muon that asserts that each tensor is a matrix."""

    def __init__(self, params: Iterable[Any], lr: float = 0.02, momentum: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    assert p.ndim == 2, "only matrices"
                    kept = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                    kept.mul_(group["momentum"]).add_(p.grad)
                    p.add_(kept / (kept.norm() + 1e-7), alpha=-group["lr"])


class Lookahead(torch.optim.Optimizer):
    """Slow weights around another optimizer, whose groups it shares; its checkpoints hold both."""

    def __init__(self, inner: torch.optim.Optimizer, every: int = 3) -> None:
        self.inner, self.every, self.count = inner, every, 0
        super().__init__(inner.param_groups, dict(inner.defaults))
        inner.param_groups = self.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                slow = self.state[p].setdefault("slow", p.clone())
                if self.count % self.every == 0:
                    slow.lerp_(p, 0.5)
                    p.copy_(slow)

    def state_dict(self) -> dict[str, Any]:
        return {"outer": super().state_dict(), "inner": self.inner.state_dict(), "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["outer"])
        self.inner.load_state_dict(state_dict["inner"])
        self.inner.param_groups, self.count = self.param_groups, state_dict["count"]


class Around(torch.optim.Optimizer):
    """Scales gradients for a base optimizer whose state its own `state_dict()` leaves out, as SAM's does."""

    def __init__(self, params: Iterable[Any], base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(params, {"rho": 0.05, **options})
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.mul_(1 - group["rho"])
        self.base_optimizer.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups


class WithHessian(torch.optim.Optimizer):
    """A Sophia: `update_hessian()` beside `step(bs=...)`."""

    def __init__(self, params: Iterable[Any], lr: float = 0.02) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def update_hessian(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("hessian", torch.zeros_like(p))
                    kept.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)

    @torch.no_grad()
    def step(self, closure: Any = None, bs: int = 8) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    kept = self.state[p].setdefault("hessian", torch.zeros_like(p))
                    p.addcdiv_(p.grad, kept * bs + 1, value=-group["lr"])


def numbers_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The options of the first group, without parameters and functions; tensors as numbers, lists as their sums."""
    return {
        key: x.item() if isinstance(x, Tensor) else sum(x) if isinstance(x, list) else x
        for key, x in optimizer.param_groups[0].items()
        if key != "params" and not callable(x)
    }
