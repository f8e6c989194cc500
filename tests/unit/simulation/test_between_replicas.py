"""The replicas of a layout under each strategy, by hand and beside the plan's own ring."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.core.errors import ConfigurationError
from quorate.planning.cluster import Cluster
from quorate.planning.layouts import Layout
from quorate.planning.model import Block, Model
from quorate.planning.prediction import Prediction, predict
from quorate.simulation.between_replicas import Agreed, BetweenReplicas, Variation, in_all, links_between
from quorate.simulation.codes import CodingCost, reduction_in
from quorate.simulation.grid import SimulatedArm
from quorate.simulation.links import Links
from quorate.simulation.models import times_of

NUMBERS = 4_000_000
SPREAD = (0.9, 1.0, 1.0, 1.1, 1.5)


def model(**others: Any) -> Model:
    """Four blocks of 1 + 2 ms for an example, of a batch of 8."""
    block: dict[str, Any] = {"forward": 1e-3, "backward": 1e-3, "weight": 1e-3, "numbers": NUMBERS // 4, "saved": 10.0}
    return Model(name="a model", batch=8, blocks=[Block(name=str(n), **block) for n in range(4)], **others)


def cluster(workers: int, **others: Any) -> Cluster:
    values: dict[str, Any] = {"memory": 1e9, "bandwidth": 1e9, "latency": 1e-4, "overlaps": False, **others}
    return Cluster(workers=workers, **values)


def arm(strategy: str, **settings: Any) -> SimulatedArm:
    own, reduction = reduction_in(strategy, settings)
    times = times_of(strategy, own)
    text = strategy + ":" * bool(settings) + ",".join(f"{name}={value}" for name, value in settings.items())
    return SimulatedArm(
        text=text, strategy=strategy, settings=settings, times=times, reduction=reduction, cost=CodingCost()
    )


def agreed(
    strategy: str, replicas: int = 4, variation: Variation | None = None, on: Cluster | None = None, **settings: Any
) -> tuple[Prediction, Agreed]:
    """The plan's own prediction of all-reduce, and the simulated one of a strategy."""
    prediction = predict(Layout(replicas=replicas, strategy="all-reduce"), model(), on or cluster(replicas))
    between = BetweenReplicas(cluster=on or cluster(replicas), variation=variation or Variation(), bytes_each=4)
    return prediction, between.agreed(prediction, arm(strategy, **settings))


@pytest.mark.parametrize("on", [cluster(4), cluster(4, cores=8), cluster(4, per_host=2, inside_bandwidth=1e10)])
def test_all_reduce_takes_what_the_plan_says(on: Cluster) -> None:
    """A ring, on hosts of one worker, on one host, and on two."""
    prediction, simulated = agreed("all-reduce", on=on)
    assert simulated.prediction.seconds == pytest.approx(prediction.seconds, rel=0.01)
    assert simulated.prediction.sent == pytest.approx(prediction.sent, rel=0.01)
    assert simulated.is_exact and simulated.staleness == 0
    assert sum(simulated.prediction.parts.values()) == pytest.approx(simulated.prediction.seconds, rel=1e-3)


def test_local_steps_exchange_once_a_period() -> None:
    prediction, simulated = agreed("local-sgd", sync_every=8)
    alone = prediction.seconds - prediction.parts["replicas"]
    assert simulated.prediction.seconds == pytest.approx(alone + prediction.parts["replicas"] / 8, rel=0.01)
    assert not simulated.is_exact and simulated.prediction.layout.strategy == "local-sgd:sync_every=8"
    assert agreed("diloco")[1].prediction.seconds < agreed("local-sgd")[1].prediction.seconds


def test_codes_are_sent_in_place_of_numbers() -> None:
    _, dense = agreed("all-reduce")
    _, half = agreed("all-reduce", compress="half")
    assert half.prediction.sent == pytest.approx(dense.prediction.sent / 2, rel=0.01)
    assert half.prediction.seconds < dense.prediction.seconds and not half.is_exact


def test_quorums_do_not_wait_for_the_slowest() -> None:
    """One worker is always 2.5 times as slow; without it a quorum is exact, and as fast as all-reduce, or faster."""
    slow = Variation(imbalance="rank:3:x2.5")
    waits, goes_on = (agreed(name, variation=slow)[1] for name in ("all-reduce", "eager-solo"))
    assert waits.prediction.seconds > 1.5 * goes_on.prediction.seconds
    assert waits.is_exact and not goes_on.is_exact and goes_on.staleness > 0
    assert agreed("quorum", wait_for="all")[1].is_exact


def test_timed_steps_vary_in_each_replica_by_its_slowest_worker() -> None:
    variation = Variation(spread=SPREAD)
    of_one, of_many = (
        [variation.longest(replica, step, inside) for replica in range(20) for step in range(50)] for inside in (1, 16)
    )
    assert min(of_one) >= 0.9 and max(of_many) <= 1.5
    assert sum(of_one) / 1000 < 1.15 < 1.3 < sum(of_many) / 1000
    still, varying = agreed("all-reduce")[1], agreed("all-reduce", variation=variation)[1]
    assert varying.prediction.parts["waiting"] > 0.05 * still.prediction.seconds
    assert still.prediction.parts["waiting"] == pytest.approx(0, abs=1e-9)


def test_recorded_workers_stay_slow() -> None:
    recorded = Variation(recorded=[[1.0, 1.0], [2.0, 3.0]])
    assert [recorded.factor(worker, 0) for worker in range(4)] == [1.0, 2.0, 1.0, 3.0]
    assert recorded.longest(0, 1, 2) == 3.0


def test_links_of_pieces_share_the_port_of_a_host() -> None:
    hosts = cluster(8, per_host=4, inside_bandwidth=1e10, inside_latency=1e-6)
    assert links_between(hosts, 8, 1).per_host == 4 and links_between(hosts, 8, 1).bandwidth == 1e9
    assert links_between(hosts, 2, 4) == Links(
        text="", latency=1e-4, bandwidth=2.5e8, per_host=1, inside_latency=1e-6, inside_bandwidth=1e10
    )
    assert links_between(cluster(4, per_host=4, inside_bandwidth=1e10), 4, 1).bandwidth == 1e10
    assert links_between(cluster(4), 4, 1).per_host == 1 and links_between(cluster(4, cores=2), 4, 1).per_host == 0


def test_strategies_that_do_not_fit_are_left_out() -> None:
    """Gossip on edges in one direction only, and strategies that cannot act between pieces."""
    layouts = [Layout(replicas=4, strategy="all-reduce"), Layout(replicas=2, tensor=2, strategy="all-reduce")]
    predictions = [predict(layout, model(), cluster(4)) for layout in [*layouts, Layout(tensor=4)]]
    between = BetweenReplicas(cluster=cluster(4), variation=Variation(), bytes_each=4)
    arms = [arm("all-reduce"), arm("ad-psgd"), arm("d-psgd", topology="directed-ring")]
    several, refused = in_all(predictions, arms, between, {"all-reduce": True})
    assert [each.prediction.layout.strategy for each in several] == ["all-reduce", "ad-psgd", "all-reduce", ""]
    assert list(refused) == ["d-psgd:topology=directed-ring"]
    with pytest.raises(ConfigurationError, match="directed"):
        between.agreed(predictions[0], arms[-1])
