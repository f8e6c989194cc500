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
from tests.support.every_strategy import NAMES, OF_ONE_TENSOR, optimizer_of
from tests.support.federated_trainings import trained as trained_clients
from tests.support.joined import joined
from tests.support.kept_trainings import in_world
from tests.support.ordinary_loops import Cell, ended_for_real
from tests.support.scene import Scene, Trainer, nothing

IN_ROUNDS = ["adaptive", "bounded-staleness", "eager-majority", "eager-solo", "quorum"]
"""Under these workers come to their steps at different rounds."""
SIZE, STEPS, BOUND = 3, 24, 0.1
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
            assert float(end.abs().max()) <= BOUND + 1e-6

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
                "fed-buff",
                "muloco",
            ):  # the outer step goes further
                assert float(end.min()) > 90.0
            elif name == "sparse-loco":  # an outer rate of 0.6
                assert 59.0 < float(end.min()) <= float(end.max()) < 61.0
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
        ("ad-psgd", {}),
        ("ad-psgd", {"overlap": True}),
        ("osgp", {}),
    ],
    ids=str,
)
def test_an_edit_of_one_worker_after_its_last_step_counts_as_one_of_all(name: str, settings: dict[str, Any]) -> None:
    for end in trained(name, move_one, rate=0.0, settings=settings):
        assert torch.allclose(end, start() + 3.0 / SIZE, atol=0.3)


@pytest.mark.parametrize(
    ("name", "settings", "share"),
    [
        ("post-local-sgd", {"after": 100}, 1 / SIZE),
        ("post-local-sgd", {"after": 6, "sync_every": 4}, None),
        ("diloco", {"after": 100}, 1 / SIZE),
        ("diloco", {"after": 6, "sync_every": 4}, 1 / SIZE),
    ],
    ids=str,
)
@pytest.mark.parametrize("evaluates", [True, False])
def test_an_edit_of_a_worker_left_behind_counts(
    name: str, settings: dict[str, Any], share: float | None, evaluates: bool
) -> None:
    """One worker edits its parameters in a synchronous phase, of which others make more steps."""

    def live(trainer: Trainer) -> list[torch.Tensor]:
        is_behind = trainer.rank == 0
        trainer.train(3 if is_behind else 8)
        if is_behind:
            for p in trainer.model.parameters():
                p.data.add_(3.0)
        ends = []
        if evaluates:
            with trainer.world.evaluate():
                ends.append(trainer.parameters)
        return [*ends, trainer.finish().parameters]

    for ends in scene(name, lambda *_: None, rate=0.0, settings=settings).act(live):
        for end in ends:
            moved = end - start().view(-1)
            torch.testing.assert_close(moved, moved[0].expand_as(moved), rtol=0, atol=1e-6)
            # Where steps have become local, an edit weighs as much as one of them.
            assert 0.2 < moved[0] < 3 / SIZE if share is None else moved[0] == pytest.approx(3 * share, abs=1e-6)


AT_THE_NEXT_ROUND = ["async-local-sgd", "decoupled-diloco", "eager-averaging"]
"""All workers save behind the round after the first one has asked for it."""
WITH_A_POINT: list[tuple[str, dict[str, Any]]] = [
    *((name, {"sync_every": 4}) for name in ("async-local-sgd", "decoupled-diloco", "diloco", "sparse-loco")),
    ("async-local-sgd", {"sync_every": 4, "outer": "adam"}),
    ("decoupled-diloco", {"sync_every": 4, "overlap": 0}),
    ("decoupled-diloco", {"sync_every": 3, "late": "drop"}),
    ("decoupled-diloco", {**LEARNERS, "overlap": 1}),
    ("diloco", {"sync_every": 4, "overlap": 1}),
    ("diloco", {"sync_every": 4, "outer_device": "cpu"}),
    *(("eager-averaging", {"sync_every": 4, "wait_for": count}) for count in (1, "majority", "all")),
    *((name, {"sync_every": 2}) for name in ("easgd", "eamsgd", "symmetric-easgd")),
    ("easgd", {"sync_every": 2, "overlap": True}),
]
"""Pauses lead to a point that outer steps, late updates or exchanges have made."""
IN_A_SYNCHRONOUS_PHASE: list[tuple[str, dict[str, Any]]] = [
    ("post-local-sgd", {"after": 100}),
    ("post-local-sgd", {"after": 6, "sync_every": 4}),
    ("diloco", {"after": 100}),
    ("diloco", {"after": 6, "sync_every": 4}),
]
OF_CLIENTS: list[tuple[str, dict[str, Any]]] = [
    (name, {"sync_every": 4}) for name in ("fed-avg", "fed-opt", "fed-prox", "scaffold")
]


def put(trainer: Trainer, writers: str) -> None:
    """Write the rank and 1 more into the parameters of all workers, or 3 more into those of the last worker."""
    for p in trainer.model.parameters():
        if writers == "unlike":
            p.data.fill_(1.0 + trainer.rank)
        elif trainer.rank == trainer.world.size - 1:
            p.data.add_(3.0)


@pytest.mark.parametrize("writers", ["unlike", "one"])
@pytest.mark.parametrize(("name", "settings"), [*WITH_A_POINT, *IN_A_SYNCHRONOUS_PHASE, *OF_CLIENTS], ids=str)
class TestWritten:
    """Unequal workers have made steps since they last met, and a script writes numbers before a pause."""

    def ends(self, name: str, settings: dict[str, Any], writers: str, steps: int, does: Callable[..., Any]) -> Any:
        def live(trainer: Trainer) -> tuple[torch.Tensor, torch.Tensor]:
            put(trainer.train(steps), writers)
            shown = does(trainer)
            return shown, trainer.finish().parameters

        rate = 0.0 if writers == "one" else 0.02
        return scene(name, lambda *_: None, rate=rate, settings=settings).act(live)

    def check(self, end: torch.Tensor, writers: str) -> None:
        mean = {"unlike": torch.tensor(2.0), "one": start().view(-1) + 1.0}[writers]
        torch.testing.assert_close(end, mean.expand_as(end), rtol=0, atol=1e-6)

    def test_what_is_written_is_evaluated_and_left(self, name: str, settings: dict[str, Any], writers: str) -> None:
        def evaluated(trainer: Trainer) -> torch.Tensor:
            with trainer.world.evaluate():
                return trainer.parameters

        for steps in (4, 7):
            for shown, left in self.ends(name, settings, writers, steps, evaluated):
                self.check(shown, writers)
                self.check(left, writers)
            for _, left in self.ends(name, settings, writers, steps, lambda trainer: None):
                self.check(left, writers)

    def test_what_is_written_is_saved(self, name: str, settings: dict[str, Any], writers: str, tmp_path: Path) -> None:
        def save(trainer: Trainer) -> None:
            put(trainer.train(4), writers)
            if name in AT_THE_NEXT_ROUND:
                trainer.world.barrier()
            quorate.save()
            trainer.finish()

        rate = 0.0 if writers == "one" else 0.02
        kept = scene(name, lambda *_: None, rate=rate, settings=settings, root=tmp_path)
        kept.act(save)
        for end in kept.but(loads=True).act(lambda trainer: trainer.finish().parameters):
            self.check(end, writers)


def written_for_real(cell: Cell) -> float:
    trainer = scene(cell.strategy, lambda *_: None, settings=cell.settings).trainer(cell.world).train(7)
    put(trainer, "unlike")
    with cell.world.evaluate():
        return float((trainer.parameters - 1.5).abs().max())


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("decoupled-diloco", {"sync_every": 4}),
        ("easgd", {"sync_every": 2}),
        ("symmetric-easgd", {"sync_every": 2}),
        ("post-local-sgd", {"after": 100}),
    ],
    ids=str,
)
def test_what_is_written_is_evaluated_in_processes(strategy: str, settings: dict[str, Any]) -> None:
    for distance in ended_for_real(written_for_real, strategy, **settings).right():
        assert distance <= 1e-5


def test_a_worker_that_ends_early_does_not_hold_the_others_back() -> None:
    """Its edit is added to where the others have come, as theirs are steps of a common point."""
    ends = []
    for writers in ("none", "one"):

        def live(trainer: Trainer, writers: str = writers) -> torch.Tensor:
            trainer.train(4 if trainer.rank == SIZE - 1 else 24)
            if writers == "one" and trainer.rank == SIZE - 1:
                put(trainer, "one")
            return trainer.finish().parameters

        settings = {**LEARNERS, "wait_for": 1}
        ends.append(scene("decoupled-diloco", lambda *_: None, rate=0.02, settings=settings).act(live)[0])
    assert torch.allclose(ends[1] - ends[0], torch.ones(8), atol=0.35), ends


@pytest.mark.parametrize("secure", [False, True])
def test_an_edit_that_a_hidden_sum_leaves_out_is_refused(secure: bool) -> None:
    def edit(trainer: Trainer) -> None:
        for p in trainer.model.parameters():
            p.data.add_(3.0)

    settings: dict[str, Any] = {"sampled": 0.5, "weigh": "equal", "clip": 0.2, "noise": 0.1, "secure": secure}
    with pytest.raises(ConfigurationError, match="parameters were changed between two clients, and a sum of updates"):
        trained_clients(2, "fed-avg", rounds=1, last=edit, buffers="none", **settings)


BEHIND_A_MEAN: dict[str, dict[str, Any]] = {
    **{name: {"sync_every": 4} for name in ("diloco", "streaming-diloco", "sparse-loco", "async-local-sgd")},
    **{name: {"sync_every": 4} for name in ("decoupled-diloco", "eager-averaging")},
    **{name: {"sync_every": 4} for name in ("local-sgd", "slowmo", "group-averaging", "adaptive-local-sgd")},
    **{name: {"sync_every": 4} for name in ("fed-avg", "fed-prox", "fed-opt", "scaffold")},
    "hierarchical-local-sgd": {"sync_every": 2, "across_every": 2},
    "post-local-sgd": {"sync_every": 4, "after": 4},
}
"""Settings with which means of all are formed after 4 and 8 steps, where the default is longer."""
WRITTEN = 3.0
TO_COMMON_NUMBERS = ["dana", "dc-asgd", "downpour", "hogwild", "parameter-server", "ssp", "sync-backup"]
"""The parameters are on servers, or in memory that all workers share: there a script writes for all."""
OF_EQUAL_REPLICAS = [*IN_ROUNDS, "all-reduce", "backup-workers", "one-bit-adam", "one-bit-lamb", "robust"]
"""Replicas are equal after each step: a script that writes into one of them is named."""


SAVED_IN_ROUNDS = [*IN_ROUNDS, "backup-workers"]
"""A checkpoint is taken behind the next round, which no step leads to here."""
BY_WEIGHT = ["osgp"]
"""The edit of one worker counts by the weight that the worker holds then."""


def write(world: quorate.World, model: nn.Module, name: str, writers: str) -> None:
    if writers == "all" or world.rank == world.size - 1:
        for p in model.parameters():
            p.data.copy_(start() + WRITTEN) if name in TO_COMMON_NUMBERS else p.data.add_(WRITTEN)


def parted(world: quorate.World, name: str, steps: int, does: Callable[[nn.Module], Any]) -> float:
    """How far the parameters are at the end from where they began, after `does` behind so many steps of rate 0."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1, bias=False)
    choice = {**OF_ONE_TENSOR.get(name, {}), **BEHIND_A_MEAN.get(name, {})}
    optimizer = quorate.distribute(optimizer_of(name, model.parameters(), lr=0.0), model, name, **choice)
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
            assert left == pytest.approx(mean, abs=1e-5)

    def test_an_edit_is_in_what_is_evaluated_and_left(self, name: str, writers: str) -> None:
        def evaluated(world: quorate.World, model: nn.Module) -> None:
            write(world, model, name, writers)
            with world.evaluate():
                found = float((model.weight.detach().cpu() - start()).mean())
            self.check(found, name, writers, world.size)

        for size, steps in ((2, 8), (3, 4), (3, 8)) if writers == "one" else ((3, 8),):  # the mean of equal numbers
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
        if name in SAVED_IN_ROUNDS:
            pytest.skip("a round is saved")

        def save(world: quorate.World) -> float:
            def saved(model: nn.Module) -> None:
                write(world, model, name, writers)
                if name in AT_THE_NEXT_ROUND:
                    world.barrier()
                quorate.save()

            return parted(world, name, 8, saved)

        in_world(SIZE, tmp_path, save)
        for left in in_world(SIZE, tmp_path, lambda world: parted(world, name, 0, lambda model: None)):
            self.check(left, name, writers, SIZE)
