"""What a script writes into parameters between two steps counts under every strategy, or is refused in one sentence."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import quorate
from quorate.core.errors import ConfigurationError, Diverged
from quorate.wire.virtual.world import VirtualWorld
from tests.support.every_strategy import NAMES, OF_ONE_TENSOR
from tests.support.joined import joined
from tests.support.kept_trainings import in_world
from tests.support.ordinary_loops import Cell, ended_for_real
from tests.support.scene import Scene, Trainer, nothing

IN_ROUNDS = ["adaptive", "bounded-staleness", "eager-majority", "eager-solo", "quorum"]
"""Under these workers come to their steps at different rounds."""
SIZE, STEPS, BOUND = 3, 24, 0.1
GROWS = {
    **dict.fromkeys(("async-local-sgd", "diloco", "streaming-diloco"), BOUND + 0.33 * 2 * BOUND),
    "decoupled-diloco": 0.3,
}
"""Where parameters may be beyond the bound at the end, as the formula of the paper leads there. The first outer step of
DiLoCo goes 1.33 times the mean way, by its rate and momentum: from one bound to the other, and a third further.
Decoupled DiLoCo's is as long as the updates are in the mean, along their mean direction."""
OLD_UNDER_WAY = ["ad-psgd", "eamsgd", "easgd", "fedprox", "group-averaging", "osgp", "relay", "symmetric-easgd"]
"""Under these older parameters are still taken in after all have written into theirs: of others, of a centre, or the
newest mean."""

Edit = Callable[[Any, nn.Module, int], None]


def pull(trainer: Trainer) -> torch.Tensor:
    x = trainer.draw()
    return (trainer.model(x) - 3 * x.sum(1, keepdim=True)).square().mean()


def scene(name: str, edit: Edit, *, within: bool = False, settings: dict[str, Any] | None = None, **more: Any) -> Scene:
    """Late and unequal workers, with an edit behind each step; they begin `within` the bound, or beyond it."""

    def model() -> nn.Module:
        layer = nn.Linear(8, 1, bias=False)
        if within:
            clip(None, layer, -1)
        return layer

    draws = [random.Random(rank) for rank in range(SIZE)]
    fields: dict[str, Any] = {"model": model, "loss": pull, "steps": STEPS, "world": {"seed": 1}, **more}
    fields["pause"] = lambda rank, step: draws[rank].random() * 0.03
    after = {"after": lambda trainer: edit(trainer.world, trainer.model, trainer.step - 1)}
    return Scene(name, SIZE, settings={**OF_ONE_TENSOR.get(name, {}), **(settings or {})}, **{**after, **fields})


def trained(name: str, edit: Edit, *, hooks: bool = False, **chosen: Any) -> list[torch.Tensor]:
    """The parameters that workers end with; with rate 0 what they end with is what was written."""

    def begin(trainer: Trainer) -> None:
        trainer.optimizer.register_step_post_hook(lambda *_: edit(trainer.world, trainer.model, -1))

    in_hooks = {"begin": begin, "after": nothing} if hooks else {}
    return scene(name, edit, **in_hooks, **chosen).run(lambda trainer: trainer.model.weight.detach().cpu().clone())


def clip(world: Any, model: nn.Module, step: int) -> None:
    for p in model.parameters():
        p.data.clamp_(-BOUND, BOUND)


def start() -> torch.Tensor:
    """Where the parameters begin."""
    torch.manual_seed(0)
    return nn.Linear(8, 1, bias=False).weight.detach()


def loaded(model: nn.Module) -> None:
    model.load_state_dict({name: torch.full_like(x, 100.0) for name, x in model.state_dict().items()})


def load(world: Any, model: nn.Module, step: int) -> None:
    if step == STEPS // 2:
        loaded(model)


def load_in_a_pause(world: Any, model: nn.Module, step: int) -> None:
    if step == STEPS // 2:
        with world.evaluate():
            loaded(model)


def swap(world: Any, model: nn.Module, step: int) -> None:
    """An average of the weights is put in for a while, as for an evaluation."""
    own = {name: x.clone() for name, x in model.state_dict().items()}
    loaded(model)
    model.load_state_dict(own)


@pytest.mark.parametrize("name", NAMES)
class TestEveryStrategy:
    def test_weights_clipped_after_every_step_stay_so(self, name: str) -> None:
        if name in IN_ROUNDS:
            with pytest.raises(ConfigurationError, match="register_step_post_hook"):
                trained(name, clip)
            return
        for end in trained(name, clip, within=True):
            assert float(end.abs().max()) <= GROWS.get(name, BOUND) + 1e-6

    def test_a_state_loaded_between_two_steps_is_gone_on_from(self, name: str) -> None:
        if name in IN_ROUNDS:
            with pytest.raises(ConfigurationError, match="register_step_post_hook"):
                trained(name, load, rate=0.0)
            return
        for end in trained(name, load, rate=0.0):
            if name in OLD_UNDER_WAY:
                assert 60.0 < float(end.min()) <= float(end.max()) < 140.0
            elif name == "fed-opt":  # its server's optimizer takes what was written for a way, and goes a step on it
                assert 0.02 < float((end - start()).abs().max()) < 1.0
            elif name in (
                "diloco",
                "streaming-diloco",
                "decoupled-diloco",
                "async-local-sgd",
            ):  # the outer step goes further
                assert float(end.min()) > 90.0
            else:
                assert torch.allclose(end, torch.full_like(end, 100.0), rtol=1e-5)

    def test_a_state_loaded_while_all_rest_is_gone_on_from(self, name: str) -> None:
        for end in trained(name, load_in_a_pause, rate=0.0):
            assert torch.allclose(end, torch.full_like(end, 100.0), rtol=1e-5)

    def test_weights_put_in_and_taken_out_again_change_nothing(self, name: str) -> None:
        alike = [trained(name, edit) for edit in (swap, lambda world, model, step: None)]
        assert all(torch.equal(x, y) for x, y in zip(*alike, strict=True))


@pytest.mark.parametrize("name", IN_ROUNDS)
def test_a_step_hook_clips_under_rounds(name: str) -> None:
    """What the sentence of the refusal advises."""
    for end in trained(name, clip, hooks=True):
        assert float(end.abs().max()) <= BOUND + 1e-6


PLAIN_OUTER: dict[str, Any] = {"outer_rate": 1.0, "outer_momentum": 0.0}
"""With these an outer step leads to the mean."""
LEARNERS: dict[str, Any] = {"sync_every": 4, "averaging": "mean", "wait_for": "all", **PLAIN_OUTER}
AT_REST: list[tuple[str, dict[str, Any]]] = [
    ("local-sgd", {"sync_every": 4}),
    ("diloco", {"sync_every": 4, **PLAIN_OUTER}),
    ("diloco", {"sync_every": 4, "overlap": 1, **PLAIN_OUTER}),
    ("diloco", {"sync_every": 6, "overlap": 3, **PLAIN_OUTER}),
    ("streaming-diloco", {"sync_every": 3, "overlap": 2, "merge": 0.0, **PLAIN_OUTER}),
    ("decoupled-diloco", {**LEARNERS, "overlap": 0}),
    ("decoupled-diloco", {**LEARNERS, "overlap": 1}),
    ("ad-psgd", {}),
    ("ad-psgd", {"overlap": True}),
    ("osgp", {}),
    ("osgp", {"bound": 3}),
    ("sgp", {}),
    ("d-psgd", {}),
    ("easgd", {"sync_every": 2}),
    ("easgd", {"sync_every": 3, "in_order": True}),
    ("eamsgd", {"sync_every": 2}),
    ("symmetric-easgd", {"sync_every": 2}),
    ("eager-averaging", {"sync_every": 4}),
    ("eager-averaging", {"sync_every": 4, "wait_for": "all"}),
]
"""Edits are made behind steps in which something was put under way, just merged, or neither."""


def lived(trainer: Trainer, steps: int, does: Callable[[nn.Module], Any]) -> tuple[Any, float]:
    """Clips after every step, and `does` something after the last one: what it returned, and the largest number."""
    returned = does(trainer.train(steps).model)
    trainer.finish()
    return returned, largest(trainer.model)


def largest(model: nn.Module) -> float:
    return max(float(p.detach().abs().max()) for p in model.parameters())


@pytest.mark.parametrize(("name", "settings"), AT_REST, ids=str)
class TestAtRest:
    def test_an_edit_belongs_to_what_is_evaluated_and_left(self, name: str, settings: dict[str, Any]) -> None:
        """An edit without a step behind it counts, too."""

        def evaluated(world: quorate.World, model: nn.Module) -> tuple[float, float]:
            with world.evaluate():
                found = largest(model)
            clip(world, model, -1)
            with world.evaluate():
                return found, largest(model)

        for steps in range(6, 10):

            def live(trainer: Trainer, steps: int = steps) -> Any:
                return lived(trainer, steps, lambda model: evaluated(trainer.world, model))

            for found, left in scene(name, clip, within=True, settings=settings).act(live):
                assert max(*found, left) <= BOUND + 1e-6, (steps, found, left)

    def test_an_edit_belongs_to_what_is_saved(self, name: str, settings: dict[str, Any], tmp_path: Path) -> None:
        kept = scene(name, clip, within=True, settings=settings, root=tmp_path)
        kept.act(lambda trainer: lived(trainer, 8, lambda model: quorate.save()))
        for restored, left in kept.but(loads=True).act(lambda trainer: lived(trainer, 0, largest)):
            assert max(restored, left) <= BOUND + 1e-6, (restored, left)


def evaluated_for_real(cell: Cell) -> float:
    def evaluated(model: nn.Module) -> float:
        with cell.world.evaluate():
            return largest(model)

    return max(lived(scene(cell.strategy, clip, within=True, settings=cell.settings).trainer(cell.world), 8, evaluated))


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [("diloco", {"sync_every": 4, "overlap": 1, **PLAIN_OUTER}), ("eager-averaging", {"sync_every": 4}), ("osgp", {})],
    ids=str,
)
def test_an_edit_belongs_to_what_is_averaged_in_processes(strategy: str, settings: dict[str, Any]) -> None:
    for found in ended_for_real(evaluated_for_real, strategy, **settings).right():
        assert found <= BOUND + 1e-6


def move_one(world: Any, model: nn.Module, step: int) -> None:
    """Rank 1 alone writes into its parameters after the last step."""
    if step == STEPS - 1 and world.rank == 1:
        for p in model.parameters():
            p.data.add_(3.0)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("diloco", {"sync_every": 5, "overlap": 1, **PLAIN_OUTER}),
        ("eager-averaging", {"sync_every": 4}),
        ("decoupled-diloco", {**LEARNERS, "overlap": 0}),
        ("ad-psgd", {}),
        ("ad-psgd", {"overlap": True}),
        ("osgp", {}),
    ],
    ids=str,
)
def test_an_edit_of_one_worker_after_its_last_step_counts_as_one_of_all(name: str, settings: dict[str, Any]) -> None:
    for end in trained(name, move_one, rate=0.0, settings=settings):
        assert torch.allclose(end, start() + 3.0 / SIZE, atol=0.3)


BEHIND_A_MEAN: dict[str, dict[str, Any]] = {
    **{name: {"sync_every": 4, **PLAIN_OUTER} for name in ("diloco", "streaming-diloco", "async-local-sgd")},
    **{name: {"sync_every": 4} for name in ("local-sgd", "slowmo", "group-averaging", "adaptive-local-sgd")},
    **{name: {"sync_every": 4} for name in ("fed-avg", "fed-prox", "fed-opt", "scaffold")},
    "decoupled-diloco": LEARNERS,
    "eager-averaging": {"sync_every": 4, "wait_for": "all"},
    "hierarchical-local-sgd": {"sync_every": 2, "across_every": 2},
    "post-local-sgd": {"sync_every": 4, "after": 4},
}
"""Settings with which means of all are formed after 4 and 8 steps, where the default is longer."""
WRITTEN = 3.0
TO_COMMON_NUMBERS = ["dana", "dc-asgd", "downpour", "hogwild", "parameter-server", "ssp", "sync-backup"]
"""The parameters are on servers, or in memory that all workers share: there a script writes for all."""
OF_A_CENTRE = ["eamsgd", "easgd", "symmetric-easgd"]
"""The centre is evaluated, and is the result; replicas, and what is written into them, count at the next exchange."""
OF_EQUAL_REPLICAS = [*IN_ROUNDS, "all-reduce", "backup-workers", "robust"]
"""Replicas are equal after each step: a script that writes into one of them is named."""


SAVED_IN_ROUNDS = [*IN_ROUNDS, "backup-workers", "async-local-sgd", "decoupled-diloco", "eager-averaging"]
"""A checkpoint is taken behind the next round, which no step leads to here."""
AT_A_POINT = ["fed-avg", "fed-opt", "fed-prox", "scaffold"]
"""A checkpoint between two rounds of clients goes on from the point at which they begin."""
OF_POINTS = ["decoupled-diloco"]
"""A learner may have handed in before the edit, and takes its own part of that merge on top: 3.25 in place of 3."""
BY_WEIGHT = ["eager-averaging", "osgp"]
"""The edit of one worker counts by the weight that the worker holds then, or among those that have not ended."""


def write(world: quorate.World, model: nn.Module, name: str, writers: str) -> None:
    if writers == "all" or world.rank == world.size - 1:
        for p in model.parameters():
            p.data.copy_(start() + WRITTEN) if name in TO_COMMON_NUMBERS else p.data.add_(WRITTEN)


def parted(world: quorate.World, name: str, steps: int, does: Callable[[nn.Module], Any]) -> float:
    """How far the parameters are at the end from where they began, after `does` behind so many steps of rate 0."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    choice = {**OF_ONE_TENSOR.get(name, {}), **BEHIND_A_MEAN.get(name, {})}
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=0.0), model, name, **choice)
    if steps == 0:
        quorate.load()
    for _ in range(steps):
        model(torch.randn(4, 8)).square().mean().backward()
        world.wire.clock.sleep(0.01 * (1 + world.rank))
        optimizer.step()
        optimizer.zero_grad()
    does(model)
    optimizer.finish()
    return float((model.weight.detach().cpu() - start()).mean())


@pytest.mark.parametrize("writers", ["one", "all"])
@pytest.mark.parametrize("name", NAMES)
class TestBehindAMean:
    """No worker makes a step behind the edit, so that nobody comes to another mean by itself."""

    def check(self, left: float, name: str, writers: str, size: int) -> None:
        mean = WRITTEN if writers == "all" or name in TO_COMMON_NUMBERS else WRITTEN / size
        if name in BY_WEIGHT and writers == "one":
            assert 0.3 * mean < left <= WRITTEN + 1e-5
        else:
            within = 0.3 if name in OF_POINTS else 1e-5
            assert left == pytest.approx(0.0 if name in OF_A_CENTRE else mean, abs=within)

    def test_an_edit_is_in_what_is_evaluated_and_left(self, name: str, writers: str) -> None:
        def evaluated(world: quorate.World, model: nn.Module) -> None:
            write(world, model, name, writers)
            with world.evaluate():
                found = float((model.weight.detach().cpu() - start()).mean())
            self.check(found, name, writers, world.size)

        for size, steps in ((2, 8), (3, 4), (3, 8)):
            is_refused = name in OF_EQUAL_REPLICAS and writers == "one"
            finished: Callable[..., None] = lambda world, model: write(world, model, name, writers)  # noqa: E731
            for end in [finished] if is_refused else [finished, evaluated]:

                @joined
                def live(world: quorate.World, end: Any = end, steps: int = steps) -> float:
                    return parted(world, name, steps, lambda model: end(world, model))

                if is_refused:
                    with pytest.raises(Diverged, match="the replicas? of rank"):
                        VirtualWorld(size, seed=1).run(live)
                    continue
                for left in VirtualWorld(size, seed=1).run(live):
                    self.check(left, name, writers, size)

    def test_an_edit_is_in_what_is_saved(self, name: str, writers: str, tmp_path: Path) -> None:
        if name in OF_EQUAL_REPLICAS and writers == "one":
            pytest.skip("replicas are equal after each step")
        if name in SAVED_IN_ROUNDS or name in AT_A_POINT:
            pytest.skip("a round, or the point at which clients begin, is saved")

        def save(world: quorate.World) -> float:
            def saved(model: nn.Module) -> None:
                write(world, model, name, writers)
                quorate.save()

            return parted(world, name, 8, saved)

        in_world(SIZE, tmp_path, save)
        for left in in_world(SIZE, tmp_path, lambda world: parted(world, name, 0, lambda model: None)):
            self.check(left, name, writers, SIZE)
