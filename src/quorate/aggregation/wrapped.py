"""`Wrapping`: a rule that mixes vectors before another rule is applied to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from quorate.aggregation import rules
from quorate.aggregation.rule import Rule
from quorate.core.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Wrapping(Rule):
    """The common part of pre-aggregation wrappers; both rules take the same f."""

    rule: str
    """Name of the rule that is applied to the mixed vectors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inner.has_centre:
            raise ConfigurationError(
                f"{self.rule} starts from its latest result, and cannot be applied to mixed vectors"
            )

    @property
    def inner(self) -> Rule:
        """The rule, for this f."""
        return rules.get(self.rule)(f=self.f)

    @property
    def name(self) -> str:
        return f"{type(self).__name__} of {self.inner.name}"

    @property
    def is_linear(self) -> bool:
        """Whether the inner rule, which combines, returns the mean of mixed rows."""
        return self.inner.is_linear

    def middle(self, count: int) -> tuple[int, int] | None:
        return self.inner.middle(count)

    def behind(self, first: Tensor, then: Tensor | None) -> Tensor:
        """Return two mixings as one."""
        return first if then is None else then @ first

    def combine(self, rows: Sequence[Tensor], into: Tensor) -> None:
        self.inner.combine(rows, into)
