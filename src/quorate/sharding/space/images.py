"""Images that a model is given are cut into rows, and what it gives is whole again."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module

from quorate.core.errors import ConfigurationError
from quorate.sharding.space.halos import own
from quorate.sharding.space.rows import Rows, part_of, rows_with
from quorate.sharding.tensor.activations import Together


class Images:
    """Of one model, whose convolutions have `dims` dimensions in space."""

    def __init__(self, together: Together, dims: int) -> None:
        self._together, self._dims = together, dims

    def before(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Cut every tensor of floating point with so many dimensions, and two for examples and channels. Raises
        `ConfigurationError` where there is none, or one with fewer rows than there are workers."""
        found: list[Rows] = []
        given = self._cut(args, found), self._cut(kwargs, found)
        if not found:
            raise ConfigurationError(
                f'a model with tensor="space" is given images of {self._dims + 2} dimensions (examples, channels, '
                "rows, ...), and was given none"
            )
        return given

    def behind(self, module: Module, args: tuple[Any, ...], output: Any) -> Any:
        """Join what is still in rows."""
        return _whole(output)

    def _cut(self, value: Any, found: list[Rows]) -> Any:
        if isinstance(value, list | tuple) and type(value) in (list, tuple):
            return type(value)(self._cut(one, found) for one in value)
        if isinstance(value, dict):
            return {key: self._cut(one, found) for key, one in value.items()}
        is_one = isinstance(value, Tensor) and value.is_floating_point() and value.dim() == self._dims + 2
        if not is_one:
            return value
        found.append(rows_with(own(value, self._together), value.shape[2], self._together))
        return found[-1]


def _whole(value: Any) -> Any:
    if isinstance(value, Rows):
        return part_of(value).whole()
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_whole, value))
    return {key: _whole(one) for key, one in value.items()} if type(value) is dict else value
