"""`batch="kept"`: whoever dies or joins, and when, losses and parameters are those of a run without a death."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import TensorDataset

import quorate
from quorate.checkpoint.participants import CheckpointContext
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.wire import current
from quorate.wire.virtual.world import Outcome, VirtualWorld
from tests.support.faulty import Fault, Faulty
from tests.support.joined import joined

NEVER = 1 << 40
EXAMPLES, BATCH, EPOCHS = 50, 3, 3
INPUTS = torch.randn(EXAMPLES, 5, generator=torch.Generator().manual_seed(0))
OF_STRATEGY: dict[str, dict[str, Any]] = {"all-reduce": {}, "quorum": {"wait_for": "all", "clip_norm": 1.0}}
Losses = dict[int, dict[tuple[int, ...], float]]
"""By update and the examples of a micro-batch, its loss."""


@dataclass(kw_only=True)
class Training:
    """A training with dropout. `deaths` are calls of the wire, by rank; `joins` are virtual seconds, by rank."""

    size: int
    micro_batches: int = 1
    strategy: str = "all-reduce"
    deaths: Mapping[int, int] = field(default_factory=dict)
    dies: Callable[[int, int], bool] = lambda rank, update: False
    joins: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    evaluates: bool = False
    root: Path | None = None
    """The folder of checkpoints."""
    saves: int = -1
    """The update before which it saves, and ends."""
    meets: bool = True
    """Whether all workers meet inside the loop: none misses a step."""
    losses: Losses = field(default_factory=lambda: defaultdict(dict))
    computed: dict[int, list[tuple[int, tuple[int, ...]]]] = field(default_factory=lambda: defaultdict(list))
    """By rank, the update and the examples of each micro-batch."""
    faults: list[Fault] = field(default_factory=list)

    def outcomes(self) -> list[Outcome[Tensor]]:
        self.meets &= not self.joins
        self.faults = [Fault(kind="stop", rank=rank, at=NEVER) for rank in self.deaths]
        world = VirtualWorld(self.size, joiners=len(self.joins), seed=self.seed, timeout=20.0, generators=True)
        return world.outcomes(self._live)

    def parameters(self) -> Tensor:
        """Those of the workers that come to the end, which are equal."""
        outcomes = self.outcomes()
        errors = [end.error for end in outcomes if end.error is not None and not end.is_crashed]
        assert not errors or (self.joins and all(getattr(error, "code", 1) == 0 for error in errors)), errors
        first, *others = [end.result for end in outcomes if end.result is not None]
        assert all(torch.equal(first, other) for other in others)
        return first

    def _live(self, wire: Wire) -> Tensor:
        wire.clock.sleep(self.joins.get(wire.rank, 0.0))
        faulty = Faulty(wire, self.faults)
        return joined(partial(self._train, faulty))(faulty)

    def _train(self, faulty: Faulty, world: quorate.World) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.2), nn.Tanh(), nn.Linear(4, 1), nn.Linear(1, 1))
        settings: dict[str, Any] = {"on_death": "continue", "batch": "kept", "micro_batches": self.micro_batches}
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer: Any = quorate.distribute(plain, model, self.strategy, **settings, **OF_STRATEGY[self.strategy])
        scheduler = ExponentialLR(optimizer, 0.97)
        loader = quorate.loader(TensorDataset(INPUTS, torch.arange(EXAMPLES)), BATCH)
        current.here().context(CheckpointContext).root = self.root
        if self.root is not None:
            quorate.load(scheduler=scheduler)
        for fault in self.faults:
            if fault.rank == world.rank:
                fault.at = faulty.calls + self.deaths[world.rank]
        worker, pace = optimizer.__dict__["_quorate_worker"], random.Random(f"{self.seed} {world.rank}").random()
        for epoch in range(loader.epoch, EPOCHS):
            for inputs, numbers in loader:
                optimizer.zero_grad()
                is_rare = int(numbers[0]) % 4 == 0  # some micro-batches use further parameters
                loss = (model if is_rare else model[:-1])(inputs).square().mean()
                self._note(world.rank, worker.updates, tuple(numbers.tolist()), float(loss.detach()))
                if self.dies(world.rank, worker.updates):
                    faulty.crash()
                loss.backward()
                if self.strategy == "all-reduce":
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                if optimizer.has_updated and worker.updates % 4 == 0 and self.meets:
                    assert world.mean(float(worker.updates)) == worker.updates
                world.wire.clock.sleep(0.01 * pace)
                if optimizer.has_updated and worker.updates == self.saves:
                    quorate.save(scheduler=scheduler)
                    return self._ended(optimizer, model)
            assert optimizer.has_updated
            if self.evaluates:
                with world.evaluate():
                    world.gather(epoch)
        return self._ended(optimizer, model)

    def _ended(self, optimizer: Any, model: nn.Module) -> Tensor:
        optimizer.finish()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def _note(self, rank: int, update: int, examples: tuple[int, ...], loss: float) -> None:
        assert self.losses[update].get(examples, loss) == pytest.approx(loss, abs=1e-6), "the same mask, again"
        self.losses[update][examples] = loss
        self.computed[rank].append((update, examples))


@cache
def undisturbed(size: int, micro_batches: int, strategy: str = "all-reduce") -> tuple[Losses, Tensor]:
    training = Training(size=size, micro_batches=micro_batches, strategy=strategy)
    parameters = training.parameters()
    return training.losses, parameters


def check(training: Training) -> None:
    """Hold it against the same training without a death."""
    parameters = training.parameters()
    losses, expected = undisturbed(training.size, training.micro_batches, training.strategy)
    assert training.losses.keys() == losses.keys()
    for update, of_update in losses.items():
        assert training.losses[update] == pytest.approx(of_update, abs=1e-6)
    torch.testing.assert_close(parameters, expected, atol=1e-6, rtol=0)


PLANS: dict[str, dict[int, int]] = {
    "one": {1: 2},
    "two at once": {0: 1, 3: 1},
    "at the start": {2: 0},
    "all but one": {0: 0, 1: 1, 2: 4},
}
"""Which worker of four dies with the gradient of which update, before it is exchanged."""


@pytest.mark.covering(("plan", "micro_batches", "strategy"), product(PLANS, [1, 3], OF_STRATEGY))
def test_losses_are_those_of_a_run_without_a_death(plan: str, micro_batches: int, strategy: str) -> None:
    of = {"size": 4, "micro_batches": micro_batches, "strategy": strategy}
    check(Training(**of, dies=lambda rank, update: PLANS[plan].get(rank) == update))


def test_rounds_of_all_make_the_steps_of_all_reduce() -> None:
    """Without a death; the mean is clipped to the same norm."""
    (of_sums, x), (of_rounds, y) = undisturbed(4, 3), undisturbed(4, 3, "quorum")
    assert of_rounds.keys() == of_sums.keys()
    for update, losses in of_sums.items():
        assert of_rounds[update] == pytest.approx(losses, abs=1e-5)
    torch.testing.assert_close(x, y, atol=1e-5, rtol=0)


@pytest.mark.parametrize("strategy", OF_STRATEGY)
def test_only_the_micro_batches_of_the_dead_are_computed_again_in_its_step(strategy: str) -> None:
    dies = lambda rank, update: (rank, update) == (1, 1)  # noqa: E731
    training = Training(size=4, micro_batches=3, strategy=strategy, dies=dies)
    training.parameters()
    of_step = [examples for own in training.computed.values() for update, examples in own if update == 1]
    again = sorted(examples for examples in set(of_step) if of_step.count(examples) > 1)
    assert again == sorted(examples for update, examples in training.computed[1] if update == 1)
    counts = [[update for update, _ in training.computed[rank]].count(2) for rank in (0, 2, 3)]
    assert counts == [4, 4, 4]


@pytest.mark.parametrize("strategy", OF_STRATEGY)
@pytest.mark.seeds(4, 40)
def test_random_deaths_and_joins(seed: int, strategy: str) -> None:
    draw = random.Random(seed)
    size, micro_batches = draw.choice([2, 3, 4, 5]), draw.choice([1, 1, 2, 3])
    victims = draw.sample(range(size), draw.choice([1, 1, 2, size - 1]) if size > 2 else 1)
    deaths = {rank: draw.randint(1, draw.choice([8, 40, 110])) for rank in victims}
    joins = {size + place: draw.uniform(0.0, 0.15) for place in range(len(deaths))} if draw.random() < 0.5 else {}
    chosen: dict[str, Any] = {"seed": seed, "evaluates": draw.random() < 0.5, "strategy": strategy}
    check(Training(size=size, micro_batches=micro_batches, deaths=deaths, joins=joins, **chosen))


@pytest.mark.parametrize("strategy", OF_STRATEGY)
def test_a_newcomer_gets_the_share_back(strategy: str) -> None:
    dies = lambda rank, update: (rank, update) == (1, 2)  # noqa: E731
    training = Training(size=3, strategy=strategy, dies=dies, joins={3: 0.05})
    check(training)
    last = max(training.losses)
    assert [update for update, _ in training.computed[3]].count(last) == 1
    assert all([update for update, _ in training.computed[rank]].count(last) == 1 for rank in (0, 2))


@pytest.mark.parametrize("strategy", OF_STRATEGY)
def test_a_resumed_run_makes_the_steps_of_an_unbroken_one(strategy: str, tmp_path: Path) -> None:
    """Also where a worker had died before the checkpoint, and those of the start are there again."""
    of: dict[str, Any] = {"size": 3, "micro_batches": 2, "strategy": strategy, "root": tmp_path, "meets": False}
    Training(**of, saves=4, dies=lambda rank, update: (rank, update) == (1, 2)).parameters()
    resumed, (losses, parameters) = Training(**of), undisturbed(3, 2, strategy)
    torch.testing.assert_close(resumed.parameters(), parameters, atol=1e-6, rtol=0)
    assert min(resumed.losses) == 4 and max(resumed.losses) == max(losses)
    for update, of_update in resumed.losses.items():
        assert of_update == pytest.approx(losses[update], abs=1e-6)


def wrong(kind: str, world: quorate.World) -> None:
    model = nn.Linear(5, 1)
    settings: dict[str, Any] = {"on_death": "continue", "batch": "kept"}
    optimizer: Any = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.1), model, "all-reduce", **settings)
    shares: dict[str, dict[str, Any]] = {"dynamic": {"share": "dynamic"}, "clients": {"clients": 4}}
    loader = quorate.loader(TensorDataset(INPUTS), BATCH, **shares.get(kind, {}))
    if kind == "accumulate":
        with optimizer.accumulate():
            pass
    if kind == "no batch":
        model(INPUTS).sum().backward()
    for (inputs,) in loader:
        if kind == "closure":
            optimizer.step(partial(model, inputs))
        if kind != "no pass":
            model(inputs).sum().backward()
        if kind == "two passes":
            model(inputs).sum().backward()
        if kind == "scaled":
            optimizer.found_inf = torch.zeros(1)
        optimizer.step()
        if kind == "mean in the loop":
            world.mean(1.0)
        if kind == "evaluation in the loop":
            with world.evaluate():
                pass


MISTAKES = {
    "accumulate": "leave out optimizer.accumulate()",
    "clients": "leave out partition= and clients=",
    "closure": "without a closure",
    "dynamic": 'share="dynamic" cannot be combined',
    "evaluation in the loop": "only if optimizer.has_updated",
    "mean in the loop": "only if optimizer.has_updated",
    "no batch": "iterate over the loader",
    "no pass": "needs one backward pass",
    "scaled": "GradScaler",
    "two passes": "add up the losses",
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_loop_that_cannot_keep_its_batch_is_refused_in_one_sentence(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=MISTAKES[kind].replace("(", r"\(").replace(")", r"\)")):
        VirtualWorld(2).run(joined(partial(wrong, kind)))


def test_a_single_worker_accumulates_as_well() -> None:
    losses, parameters = undisturbed(1, 3)
    assert len(losses) == EPOCHS * 6 and {len(of_update) for of_update in losses.values()} == {2, 3}
    assert parameters.isfinite().all()
