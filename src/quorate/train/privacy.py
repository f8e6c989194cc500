"""The privacy loss of a client in federated rounds with noise: an upper bound, by an accountant."""

from __future__ import annotations

import logging

from quorate.core.arguments import one_sentence
from quorate.core.errors import ConfigurationError
from quorate.core.installed import missing_extra

_ORDERS = [1.5, *range(2, 65), 80, 96, 128, 192, 256, 384, 512]


@one_sentence({"rounds": "it is how many rounds a training makes"})
def privacy_spent(*, rounds: int, sampled: float, noise: float, delta: float = 1e-5) -> float:
    """Return epsilon of the (epsilon, `delta`)-differential privacy of each client after rounds with noise.

    The bound is by Rényi accounting of the Poisson-subsampled Gaussian mechanism (Mironov, Talwar, Zhang 2019), by
    Google's dp-accounting, the extra `privacy`. Neighbouring trainings differ in one additional client. Readers of the
    model are assumed not to know which clients were drawn, which follows from the run's seed; if they may, pass
    `sampled=1`.

    Args:
        rounds: The number of rounds of a federated strategy with `clip`.
        sampled: The probability of each client to be drawn for a round, a setting of the strategy.
        noise: The deviation of the Gaussian noise on the sum of deltas, in units of their largest length.
        delta: A probability well below 1 over the number of clients.

    Returns:
        Epsilon.

    Raises:
        MissingExtra: The extra `privacy` is not installed.
        ConfigurationError: A number is invalid.

    Cost: tenths of a second.

    Example:
        >>> epsilon = quorate.privacy_spent(rounds=100, sampled=0.1, noise=1.0)  # doctest: +SKIP
    """
    is_sound = rounds >= 0 and 0 < sampled <= 1 and noise > 0 and 0 < delta < 1
    if not is_sound:
        values = f"rounds={rounds}, sampled={sampled}, noise={noise}, delta={delta}"
        raise ConfigurationError(
            f"{values}: rounds must be at least 0, sampled above 0 and at most 1, noise above 0, delta between 0 and 1"
        )
    try:
        from dp_accounting import dp_event, rdp
    except ImportError:
        raise missing_extra("privacy_spent needs dp-accounting", extra="privacy", package="dp-accounting") from None
    if rounds == 0:
        return 0.0
    accountant = rdp.RdpAccountant(_ORDERS)
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that do not converge
    accountant.compose(dp_event.PoissonSampledDpEvent(sampled, dp_event.GaussianDpEvent(noise)), rounds)
    return float(accountant.get_epsilon(delta))
