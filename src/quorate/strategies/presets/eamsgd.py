"""EAMSGD: elastic averaging with a centre on servers, and momentum in the local steps.

Idea: The strategy `easgd` for an optimizer with momentum: each worker keeps the momentum of its own steps, and an
exchange with the centre does not change it. The paper uses Nesterov momentum of 0.99, with `torch.optim.SGD`, at a
tenth or less of the learning rate. The strategy does not change the user's optimizer; it warns on stderr if that has no
momentum. All settings are those of `easgd`.

Cost: As `easgd`; momenta are not sent.

When it loses: As `easgd`. Momentum keeps its direction after an exchange with the centre, so with 0.99 a worker takes a
hundred steps to follow. If workers' data differ, a smaller momentum or a larger `beta` is better.

Honesty:
- corrupt gradient: goes on; `on_nonfinite` reports or skips one with NaN or infinity, or ends the training. Any other
  one corrupts its own replica and momentum, and within some exchanges the centre
- resume: goes on; the centre, and every worker with its own replica and momentum

Paper: Zhang, Choromanska, LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, Algorithm 2: v <- delta v - eta
g(x + delta v), x <- x + v. torch keeps x + delta v in the place of x, and that is what is exchanged here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorate.strategies import register
from quorate.strategies.easgd import EASGD


@register("eamsgd")
@dataclass(frozen=True, kw_only=True)
class EAMSGD(EASGD):
    """Elastic averaging with a centre on servers, for optimizers with momentum."""

    wants_momentum: ClassVar[bool] = True
