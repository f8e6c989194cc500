"""What a worker is prepared with when it joins: what the launcher says instead of the script, or beside it."""

from __future__ import annotations

import random

import numpy as np
import torch

from quorate.core.draws import mixed
from quorate.data.limit import LIMIT, Limit
from quorate.data.sharding import NEEDS_EQUAL_SHARES, RUN_SEED, SHARE_OVERRIDE
from quorate.launch.run.overrides import Overrides
from quorate.launch.worker.baselines import baselines
from quorate.train.distributed import BASELINES, LEARNING_RATE_FACTOR, OVERRIDE
from quorate.train.imbalance import parse_imbalance
from quorate.train.pace import parse_pace
from quorate.train.pacing import PACING, Pacing
from quorate.wire.current import Place
from quorate.wire.real.wire import RealWire


def prepare(place: Place, chosen: Overrides) -> None:
    """Let `chosen` be in force in this worker's place.

    A seed that was given seeds the default generators of torch, numpy and python, each rank's differently (in a
    virtual world they are seeded so already). Raises `ConfigurationError` for texts that say nothing known.
    """
    kept, wire = place.kept, place.wire
    is_real = isinstance(wire, RealWire)
    seed = kept[RUN_SEED] = chosen.seed or 0
    kept[OVERRIDE] = (chosen.strategy, chosen.settings)
    kept[SHARE_OVERRIDE] = chosen.share
    kept[LEARNING_RATE_FACTOR] = chosen.learning_rate_factor
    if is_real and chosen.strategy is not None and chosen.strategy in baselines:
        kept[BASELINES] = {chosen.strategy: baselines.get(chosen.strategy)}
        kept[NEEDS_EQUAL_SHARES] = chosen.strategy
    if chosen.imbalance or chosen.pace:
        imbalance = parse_imbalance(chosen.imbalance, seed=seed, size=wire.size) if chosen.imbalance else None
        pace = parse_pace(chosen.pace, seed=seed, size=wire.size) if chosen.pace else None
        kept[PACING] = Pacing(place, imbalance, pace)
    if chosen.seconds is not None:
        kept[LIMIT] = Limit(wire.channel("limit"), chosen.seconds)
    if chosen.seed is not None and is_real:
        drawn = mixed(seed, wire.rank)
        torch.manual_seed(drawn % 2**63)
        np.random.seed(drawn % 2**32)
        random.seed(drawn)
