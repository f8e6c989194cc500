"""What torch's functions do with some rows of images, so that the result is some rows of what one process has.

Each takes torch's function, the rows that lie here, and its other arguments; it returns rows, or a tensor that all
workers have whole. A parameter that meets rows is given the sum of all workers' gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.sharding.space.halos import ROWS, Window, whole, with_halos
from quorate.sharding.space.norms import normalized
from quorate.sharding.tensor.activations import Together, copied, summed

MOST_OF_TOKENS = 3
"""Dimensions of what images are flattened to: features, or tokens."""


@dataclass(frozen=True)
class Part:
    """The rows of a tensor that lie on this worker."""

    x: Tensor
    count: int
    """Of the rows of the whole."""
    together: Together

    def of(self, x: Tensor, count: int | None = None) -> Part:
        """Another tensor with as many rows, or with `count`."""
        return replace(self, x=x, count=self.count if count is None else count)

    def fetched(self, window: Window, value: float = 0.0) -> tuple[Tensor, int]:
        """What a window looks at, and the rows of its result."""
        return with_halos(self.x, self.count, window, self.together, value)

    def whole(self) -> Tensor:
        """All rows."""
        return whole(self.x, self.count, self.together)


Found = Part | Tensor
Apply = Callable[..., Any]


def shared(x: Any, together: Together) -> Any:
    """A tensor that is whole, for a calculation with rows: its gradient will be the sum over all workers."""
    needs = isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled()
    return copied(x, together) if needs else x


def _many(value: Any, count: int) -> list[Any]:
    given = list(value) if isinstance(value, Sequence) else [value]
    return given * count if len(given) == 1 else given


def convolution(
    func: Apply,
    part: Part,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Found:
    """`conv1d`, `conv2d`, `conv3d`."""
    dims = weight.dim() - 2
    stride, dilation = _many(stride, dims), _many(dilation, dims)
    if padding == "same":
        totals = [far * (size - 1) for far, size in zip(dilation, weight.shape[2:], strict=True)]
        sides = [(total // 2, total - total // 2) for total in totals]
    else:
        sides = [(n, n) for n in _many(0 if padding == "valid" else padding, dims)]
    window = Window(weight.shape[2], stride[0], *sides[0], dilation[0])
    x, count = part.fetched(window)
    beside = [n for pair in reversed(sides[1:]) for n in pair]
    alike = all(before == after for before, after in sides[1:])
    if not alike:
        x = F.pad(x, beside)
    padded = [0, *((before if alike else 0) for before, _ in sides[1:])]
    together = part.together
    found = func(x, shared(weight, together), shared(bias, together), stride, padded, dilation, groups)
    return part.of(found, count)


def max_pooling(
    func: Apply,
    part: Part,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Found:
    """`max_pool1d`, `max_pool2d`, `max_pool3d`."""
    dims = part.x.dim() - 2
    kernel, far, sides = _many(kernel_size, dims), _many(dilation, dims), _many(padding, dims)
    steps = _many(stride, dims) if stride else kernel
    window = Window(kernel[0], steps[0], sides[0], sides[0], far[0], ceil_mode)
    x, count = part.fetched(window, -torch.inf)
    return part.of(func(x, kernel, steps, [0, *sides[1:]], far, ceil_mode), count)


def mean_pooling(
    func: Apply,
    part: Part,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Found:
    """`avg_pool1d`, `avg_pool2d`, `avg_pool3d`; without a last window that is not full."""
    dims = part.x.dim() - 2
    kernel, sides = _many(kernel_size, dims), _many(padding, dims)
    steps = _many(stride, dims) if stride else kernel
    if ceil_mode or (sides[0] and not count_include_pad):
        raise ConfigurationError(
            "an average pooling with ceil_mode=True, or count_include_pad=False, cannot be computed on rows "
            '(tensor="space")'
        )
    x, count = part.fetched(Window(kernel[0], steps[0], sides[0], sides[0]))
    rest: list[Any] = [] if divisor_override is None else [divisor_override]
    return part.of(func(x, kernel, steps, [0, *sides[1:]], ceil_mode, count_include_pad, *rest), count)


def adaptive_mean(func: Apply, part: Part, output_size: Any) -> Found:
    """`adaptive_avg_pool1d`, ...: whole. To one row by a sum over the workers, else with all rows on each."""
    size = _many(output_size, part.x.dim() - 2)
    if size[0] != 1:
        return joined(func, part, output_size)
    mean = summed(part.x.sum(ROWS, keepdim=True), part.together) / part.count
    found: Tensor = func(mean, size)
    return found


def joined(func: Apply, part: Part, *args: Any, **kwargs: Any) -> Tensor:
    """Any function of all rows, whole on each worker."""
    found: Tensor = func(part.whole(), *args, **kwargs)
    return found


def flattened(func: Apply, part: Part, *args: Any, **kwargs: Any) -> Tensor:
    """`flatten`, `view` and `reshape` to features, or tokens: whole."""
    found = joined(func, part, *args, **kwargs)
    if found.dim() > MOST_OF_TOKENS:
        raise ConfigurationError(
            f'images of which workers have some rows (tensor="space") were given the shape {tuple(found.shape)}; their '
            f"rows stay as they are, or they are flattened to {MOST_OF_TOKENS} dimensions at most"
        )
    return found


def sum_or_mean(func: Apply, part: Part, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Found:
    """`sum` and `mean`: whole where rows are among what they are over, in rows elsewhere."""
    x = part.x
    dims = list(range(x.dim())) if dim is None else [n % x.dim() for n in _many(dim, 1)]
    if ROWS in dims:
        total = summed(x.sum(dims, keepdim=keepdim, dtype=dtype), part.together)
        if func.__name__ == "sum":
            return total
        count = part.count
        for n in dims:
            count *= 1 if n == ROWS else x.shape[n]
        return total / count
    if not keepdim and min(dims) < ROWS:
        raise ConfigurationError(f'{func.__name__} of some rows (tensor="space") takes keepdim=True')
    return part.of(func(x, dims, keepdim=keepdim, dtype=dtype))


def padded(func: Apply, part: Part, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Found:
    """`pad`: rows are added by constants only."""
    at = 2 * (part.x.dim() - 1 - ROWS)
    before, after = pad[at : at + 2] if len(pad) > at else (0, 0)
    if not before and not after:
        return part.of(func(part.x, pad, mode, value))
    if mode != "constant" or min(before, after) < 0:
        raise ConfigurationError(
            f'rows of images (tensor="space") are not padded by the mode "{mode}", or by {before} and {after}; '
            "they are padded by constants, zeros as a rule"
        )
    x, count = part.fetched(Window(before=before, after=after), value or 0.0)
    return part.of(func(x, [*pad[:at], 0, 0, *pad[at + 2 :]], mode, value), count)


def batch_norm(
    func: Apply,
    part: Part,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found:
    """With the statistics of all rows in training, which running ones are renewed by."""
    x, together = part.x, part.together
    scales = [shared(p, together) for p in (weight, bias)]
    if not training:
        return part.of(func(x, running_mean, running_var, *scales, False, momentum, eps))
    dims = [n for n in range(x.dim()) if n != 1]
    count = _numbers(part, x.numel() // x.shape[1])
    if count < 2:
        raise ConfigurationError("a norm over batches is trained on more than one number of each channel")
    found, mean, variance = normalized(x, together, dims, count, eps)
    with torch.no_grad():
        if running_mean is not None:
            running_mean.lerp_(mean.view(-1).to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_((variance.view(-1) * (count / (count - 1))).to(running_var.dtype), momentum)
    return part.of(_scaled(found, *scales))


def group_norm(
    func: Apply,
    part: Part,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Found:
    """With the statistics of all rows."""
    x = part.x
    groups = x.reshape(x.shape[0], num_groups, -1)
    found, _, _ = normalized(groups, part.together, [2], _numbers(part, groups.shape[2]), eps)
    return part.of(_scaled(found.view(x.shape), *(shared(p, part.together) for p in (weight, bias))))


def instance_norm(
    func: Apply,
    part: Part,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Found:
    """As a group norm with a channel in each group; without running statistics."""
    if running_mean is not None or not use_input_stats:
        raise ConfigurationError('an instance norm with running statistics cannot be computed on rows (tensor="space")')
    return group_norm(func, part, part.x.shape[1], weight, bias, eps)


def _numbers(part: Part, here: int) -> int:
    """How many there are on all workers where `here` are on this one."""
    return here // part.x.shape[ROWS] * part.count


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    shape = (1, -1, *(1,) * (x.dim() - 2))
    x = x.clone() if weight is None and bias is None else x  # which is kept for backward, and may be written to
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def _of_dims(name: str, apply: Apply, dims: Sequence[int] = (1, 2, 3)) -> dict[str, Apply]:
    return {f"{name}{n}d": apply for n in dims}


FUNCTIONS: dict[str, Apply] = {
    **_of_dims("conv", convolution),
    **_of_dims("max_pool", max_pooling),
    **_of_dims("avg_pool", mean_pooling),
    **_of_dims("adaptive_avg_pool", adaptive_mean),
    **_of_dims("adaptive_max_pool", joined),
    **dict.fromkeys(("flatten", "view", "reshape"), flattened),
    **dict.fromkeys(("sum", "mean"), sum_or_mean),
    "pad": padded,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "instance_norm": instance_norm,
}
"""By the names of torch's functions."""
