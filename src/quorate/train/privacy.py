"""What federated rounds with noise give away of a client: an upper bound, by an accountant."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError, MissingExtra

if TYPE_CHECKING:
    from torch.nn import Module

    from quorate.core.strategy import Strategy

_ORDERS = [1.5, *range(2, 65), 80, 96, 128, 192, 256, 384, 512]


def check_buffers(model: Module, strategy: Strategy, label: str) -> None:
    """Raise `ConfigurationError` where buffers would travel as they are beside parameters that are hidden."""
    name = next((name for name, _ in model.named_buffers()), None)
    terms = strategy.client_terms
    if terms is not None and terms.is_hidden and strategy.buffers != "none" and name is not None:
        raise ConfigurationError(
            f"noise and secure of {label} protect the parameters, and not the buffers of the model (as {name}), "
            f'which buffers="{strategy.buffers}" exchanges as they are; set buffers="none", and each worker keeps its '
            "own, or build the model without buffers (GroupNorm in place of BatchNorm)"
        )


@one_sentence({"rounds": "it is how many rounds a training makes"})
def privacy_spent(*, rounds: int, sampled: float, noise: float, delta: float = 1e-5) -> float:
    """The epsilon of (epsilon, `delta`)-differential privacy of each client after so many rounds with noise.

    `sampled` and `noise` are the settings of a federated strategy with `clip`: each client is drawn for a round by
    itself with probability `sampled`, and the sum of ways no longer than S has Gaussian noise of deviation `noise` S.
    Two trainings are neighbours where one has one client more. It is supposed that whoever sees the model does not know
    who was drawn, which follows from the run's seed; where they may, `sampled` is 1 here. Rényi accounting of the
    Poisson-subsampled Gaussian mechanism (Mironov, Talwar, Zhang 2019), by Google's dp-accounting, the extra `privacy`.
    `delta` is to be well below 1 over the number of clients.

    Raises `MissingExtra` without the extra, and `ConfigurationError` for numbers that cannot be. Cost: some tenths of a
    second.
    """
    is_sound = rounds >= 0 and 0 < sampled <= 1 and noise > 0 and 0 < delta < 1
    if not is_sound:
        found = f"rounds={rounds}, sampled={sampled}, noise={noise}, delta={delta}"
        raise ConfigurationError(
            f"{found}: rounds must be at least 0, sampled above 0 and at most 1, noise above 0, delta between 0 and 1"
        )
    try:
        from dp_accounting import dp_event, rdp
    except ImportError:
        raise MissingExtra("privacy_spent needs dp-accounting; install it with: pip install dp-accounting") from None
    if rounds == 0:
        return 0.0
    accountant = rdp.RdpAccountant(_ORDERS)
    logging.getLogger("absl").setLevel(logging.ERROR)  # of an order that does not converge, and is left out
    accountant.compose(dp_event.PoissonSampledDpEvent(sampled, dp_event.GaussianDpEvent(noise)), rounds)
    return float(accountant.get_epsilon(delta))
