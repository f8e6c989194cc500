"""Parameters on servers, in the virtual world: against all-reduce, against the papers' formulas, with late workers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.core.errors import PeerFailed
from tests.support.scene import Scene, Trainer, parameters

SIZES = [1, 2, 3, 5]
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02),
}
MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "one server": {"servers": 1},
    "backup": {"backup": 1},
    "carried": {"backup": 1, "late": "carry"},
    "bounded": {"mode": "bounded", "max_staleness": 2},
    "async": {"mode": "async"},
    "not consistent": {"mode": "async", "consistent": False},
    "softsync": {"mode": "async", "softsync": 2},
    "overlap": {"mode": "bounded", "overlap": True},
    "in order": {"mode": "async", "in_order": True},
    "by age": {"mode": "async", "staleness_scaling": "inverse", "step_size": "full"},
    "by gap": {"mode": "async", "staleness_scaling": "gap"},
    "compensated": {"mode": "async", "delay_compensation": "adaptive"},
    "downpour": {"mode": "async", "push_every": 2, "pull_every": 4},
    "4 bits": {"mode": "async", "compress": "blocks", "bits": 4, "dense_below": 0},
    "4 bits, both ways": {"compress": "blocks", "bits": 4, "dense_below": 0, "pulls": "coded"},
}


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3), nn.Linear(3, 1)).double()


def parts() -> nn.Module:
    return nn.ModuleList([net(), nn.Linear(1, 1).double(), nn.Linear(1, 1).double()])


def in_part(trainer: Trainer) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * trainer.step + trainer.rank)
    out = trainer.model[0](torch.randn(4, 4, generator=draw, dtype=torch.float64))
    if (trainer.rank, trainer.step % 3) == (0, 1):
        out = trainer.model[1](out)  # nobody else does, ever; and the last part nobody at all
    return out.square().mean()


def trained(size: int, name: str, kind: str, *, uneven: bool = False, **chosen: Any) -> list[list[Tensor]]:
    """Parameters and what the optimizer keeps, of workers that begin with other numbers and are late at random."""
    draws = [random.Random(rank) for rank in range(size)]
    steps = [12 + 2 * rank * uneven for rank in range(size)]
    fields: dict[str, Any] = {"model": parts, "make": OPTIMIZERS[kind], "loss": in_part, "seed": "rank", **chosen}
    scene = Scene(name, size, steps=steps, pause=lambda rank, step: draws[rank].random() * 0.03, **fields)
    return scene.run(lambda t: [x.detach().clone() for x in (*t.model.parameters(), *kept(t))])


def kept(trainer: Trainer) -> list[Tensor]:
    return [x for p in trainer.model.parameters() for x in trainer.optimizer.state[p].values() if x is not None]


WHERE: list[dict[str, Any]] = [{}, {"servers": 1}, {"consistent": False}, {"in_order": True}]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", SIZES)
def test_sync_and_bound_0_are_all_reduce(size: int, kind: str) -> None:
    shapes: list[dict[str, Any]] = [{}, {"uneven": True}, {"rests": (5, 10)}]
    modes: list[dict[str, Any]] = [{}, {"mode": "bounded", "max_staleness": 0}]
    expected_by_shape = [trained(size, "all-reduce", kind, **shape)[0] for shape in shapes]
    cases = itertools.product(zip(shapes, expected_by_shape, strict=True), modes)
    for ((shape, expected), mode), servers in zip(cases, itertools.cycle(WHERE[size % 4 :] + WHERE)):
        ends = trained(size, "parameter-server", kind, **shape, **servers, **mode)
        assert all(torch.equal(x, y) for end in ends for x, y in zip(end, ends[0], strict=True))
        for x, y in zip(ends[0], expected, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-14)


# -- what is learnt


LONG = 60


AIM = torch.arange(6.0, dtype=torch.float64)


def learnt(kind: str, **settings: Any) -> list[tuple[float, bool]]:
    """The loss of a regression that workers of unequal speed end with, and whether states lay on servers meanwhile."""

    def make(ps: Any) -> torch.optim.Optimizer:
        optimizer = OPTIMIZERS[kind](ps)
        optimizer.param_groups[0]["lr"] = 0.2 if kind == "adamw" else 0.1  # of AdamW each step is at most its rate
        optimizer.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LONG)
        return optimizer

    def loss(trainer: Trainer) -> Tensor:
        x = trainer.draw()
        return (trainer.model(x).squeeze(1) - x @ AIM).square().mean() / 2

    def between(trainer: Trainer) -> None:
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 5.0)

    def after(trainer: Trainer) -> None:
        trainer.optimizer.schedule.step()
        trainer.seen.append(bool(settings.get("pull_every")) or not trainer.optimizer.state)

    fields: dict[str, Any] = {"model": lambda: nn.Linear(6, 1).double(), "make": make, "loss": loss, "passes": 2}
    fields |= {"pause": lambda rank, _: 0.03 if rank == 1 else 0.01, "rests": (25, 50), "steps": LONG}
    scene = Scene("parameter-server", 4, between=between, after=after, settings=settings, **fields)
    return scene.run(lambda t: (float((t.model.weight.detach() - AIM).square().mean()), all(t.seen)))


@pytest.mark.parametrize(("mode", "kind"), [*zip(MODES, itertools.cycle(["momentum", "adamw"]), strict=False)])
def test_every_mode_learns_with_a_late_worker(mode: str, kind: str) -> None:
    begin = float(torch.arange(6.0).square().mean())
    found = learnt(kind, **MODES[mode])
    assert len({loss for loss, _ in found}) == 1
    assert found[0][0] < 0.02 * begin
    assert all(is_sharded for _, is_sharded in found)


# -- the papers' formulas, where gradients count in a known order


class Problem:
    """A regression of worker `rank`, whose gradient is known."""

    def __init__(self, rank: int) -> None:
        draw = torch.Generator().manual_seed(100 + rank)
        self.x = torch.randn(30, 5, 3, generator=draw, dtype=torch.float64)
        self.y = torch.randn(30, 5, generator=draw, dtype=torch.float64)

    def loss(self, w: Tensor, step: int) -> Tensor:
        return (self.x[step] @ w - self.y[step]).square().mean()

    def gradient(self, w: Tensor, step: int) -> Tensor:
        x = self.x[step]
        return 2 * x.T @ (x @ w - self.y[step]) / len(x)


RATE, SIZE, STEPS = 0.05, 3, 10


def ones(count: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.ParameterList([torch.ones(3, dtype=torch.float64) for _ in range(count)])


def served(size: int = SIZE, *, beta: float = 0.0, decay: float = 0.0, count: int = 1, **chosen: Any) -> Scene:
    """Each of `count` parameters is that of the worker's problem."""

    def loss(trainer: Trainer) -> Tensor:
        return sum(Problem(trainer.rank).loss(p, trainer.step) for p in trainer.model)

    make = partial(torch.optim.SGD, lr=RATE, momentum=beta, weight_decay=decay)
    settings = {"mode": "async", "in_order": True, **chosen.pop("settings", {})}
    fields: dict[str, Any] = {"model": ones(count), "make": make, "loss": loss, "steps": STEPS, **chosen}
    return Scene("parameter-server", size, settings=settings, **fields)


Rule = Callable[[Tensor, Tensor, Tensor, int, int], Tensor]
"""(gradient, parameters now, those that it is of, whose, its age): by how much to go down."""


def by_hand(rule: Rule) -> Tensor:
    w, problems = torch.ones(3, dtype=torch.float64), [Problem(rank) for rank in range(SIZE)]
    read, versions, version = [w] * SIZE, [0] * SIZE, 0
    for step in range(STEPS):
        for rank, problem in enumerate(problems):
            way = rule(problem.gradient(read[rank], step), w, read[rank], rank, version - versions[rank])
            w, version = w - way, version + 1
            read[rank], versions[rank] = w, version
    return w


def check(rule: Rule, beta: float = 0.0, decay: float = 0.0, **settings: Any) -> None:
    expected = by_hand(rule)
    for servers in (1, "all"):
        for end in served(beta=beta, decay=decay, settings={"servers": servers, **settings}).ends():
            torch.testing.assert_close(end, expected, rtol=1e-12, atol=1e-14)


def test_each_gradient_is_a_step_of_its_share() -> None:
    check(lambda g, now, old, rank, age: RATE / SIZE * g)


def test_or_a_whole_step() -> None:
    check(lambda g, now, old, rank, age: RATE * g, step_size="full")


def test_staleness_aware_rates() -> None:
    """Zhang et al. 2016, Equation 6."""
    check(lambda g, now, old, rank, age: RATE / max(1, age) * g, step_size="full", staleness_scaling="inverse")


def test_delay_compensation() -> None:
    """Zheng et al. 2017, Equation 10."""

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        return RATE / SIZE * (g + 0.5 * g * g * (now - old))

    check(rule, delay_compensation="constant", compensation=0.5)


def test_adaptive_delay_compensation() -> None:
    """There, Equation 14: the mean square is that of all gradients."""
    square = torch.zeros(3, dtype=torch.float64)

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        square.mul_(0.9).add_(0.1 * g * g)
        return RATE / SIZE * (g + 0.5 / (square + 1e-7).sqrt() * g * g * (now - old))

    check(rule, delay_compensation="adaptive", compensation=0.5, compensation_decay=0.9)


def test_gaps_divide_numbers() -> None:
    """Barkai et al. 2020: by how far the parameter has gone since, in steps of its usual size."""
    mean, made = torch.zeros(3, dtype=torch.float64), 0

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        nonlocal made
        if made:
            g = g / (1 + (now - old).abs() / (mean / (1 - 0.9**made) + 1e-7))
        way = RATE / SIZE * g
        mean.mul_(0.9).add_(0.1 * way.abs())
        made += 1
        return way

    check(rule, staleness_scaling="gap")


def test_weight_decay_is_in_the_momentum_of_each_worker() -> None:
    kept = [torch.zeros(3, dtype=torch.float64)] * SIZE

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        g = g + 0.1 * old
        kept[rank] = 0.9 * kept[rank] + g
        return RATE / SIZE * (g + 0.9 * kept[rank])

    check(rule, beta=0.9, momentum="worker", decay=0.1)


def test_momentum_of_each_workers_own_gradients() -> None:
    """DANA-Slim: v <- m v + g of one worker, and m v + g goes to the server."""
    kept = [torch.zeros(3, dtype=torch.float64)] * SIZE

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        kept[rank] = 0.9 * kept[rank] + g
        return RATE / SIZE * (g + 0.9 * kept[rank])

    check(rule, beta=0.9, momentum="worker")


def test_the_servers_momentum_is_of_all_gradients() -> None:
    kept = torch.zeros(3, dtype=torch.float64)

    def rule(g: Tensor, now: Tensor, old: Tensor, rank: int, age: int) -> Tensor:
        kept.mul_(0.9).add_(g)
        return RATE / SIZE * kept

    check(rule, beta=0.9)


def test_downpour_steps_on_its_own_copy_between_pushes() -> None:
    w, problems = torch.ones(3, dtype=torch.float64), [Problem(rank) for rank in range(SIZE)]
    own = [w] * SIZE
    for step in range(0, STEPS, 2):
        for rank, problem in enumerate(problems):
            first = problem.gradient(own[rank], step)
            second = problem.gradient(own[rank] - RATE * first, step + 1)
            w = own[rank] = w - RATE / SIZE * (first + second)
    for end in served(push_every=2, pull_every=2).ends():
        torch.testing.assert_close(end, w, rtol=1e-12, atol=1e-14)


def rested(pause: float) -> list[Tensor]:
    """Parameters after a rest in which all have written into them, and one of them stays longer."""

    def rest(trainer: Trainer) -> None:
        for p in trainer.model:
            p.data.mul_(0.5)
        trainer.clock.sleep(pause * trainer.rank)

    return served(2, beta=0.9, count=2, rests=[STEPS // 2 + 1], rest=rest).ends()


def test_pushes_wait_for_servers_that_still_rest() -> None:
    for end in rested(0.3):
        assert torch.equal(end, rested(0.0)[0])


def cleared(trainer: Trainer) -> Tensor:
    """Parameters after a rest that comes between two pushes, behind a step whose gradients the script has cleared."""
    for step in range(3):
        Problem(trainer.rank).loss(trainer.model[step % 2], step).backward()  # each is used in every other step
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
    return trainer.finish().parameters


def test_gradients_that_wait_to_be_pushed_count_though_they_were_cleared() -> None:
    """Three steps, of which two make a push, and the last is pushed as all end."""
    problems, w = [Problem(rank) for rank in range(2)], [torch.ones(3, dtype=torch.float64)] * 2
    first = [problem.gradient(w[0], 0) for problem in problems]
    second = [problem.gradient(w[1], 1) for problem in problems]
    w = [x - RATE / 2 * sum(gradients) for x, gradients in zip(w, (first, second), strict=True)]
    read = [torch.ones(3, dtype=torch.float64) - RATE / 2 * first[0], w[0]]
    last = [problem.gradient(x, 2) for problem, x in zip(problems, read, strict=True)]
    w[0] = w[0] - RATE / 2 * (last[0] + last[1])
    for end in served(2, count=2, push_every=2, pull_every=2).act(cleared):
        torch.testing.assert_close(end, torch.cat(w), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_what_is_read_alone_right_after_a_rest_is_what_all_rest_have_written(pause: float) -> None:
    def script(trainer: Trainer) -> Tensor:
        with trainer.world.evaluate():
            for p in trainer.model:
                p.data.fill_(5.0)
            trainer.clock.sleep(pause * trainer.rank)
        found = trainer.train(1).parameters  # reads, and pushes nothing
        trainer.finish()
        return found

    scene = served(2, count=2, settings={"in_order": False}, push_every=2, pull_every=1)
    found = scene.act(script)[0]  # the other one may come after its push
    assert torch.equal(found, torch.full_like(found, 5.0))


# -- what goes wrong


def fates(dead: int, **settings: Any) -> list[Any]:
    """What becomes of workers of which one dies before its sixth step."""
    fields: dict[str, Any] = {"model": net, "heavy": 0.9, "steps": 12, "pause": 0.01, "world": {"seed": 1}}
    loss = lambda t: t.model(torch.ones(2, 4, dtype=torch.float64)).square().mean()  # noqa: E731
    return Scene("parameter-server", 4, dies={dead: 5}, loss=loss, settings=settings, **fields).outcomes(parameters)


@pytest.mark.parametrize("mode", ["sync", "bounded", "async", "in order", "softsync"])
def test_the_others_go_on_without_a_worker_that_is_no_server(mode: str) -> None:
    settings = {"servers": 2, "on_death": "continue", **MODES[mode]}
    found = fates(3, **settings)
    assert found[3].is_crashed
    ends = [one.result for one in found[:3]]
    assert all(end is not None for end in ends), found
    assert all(torch.equal(end, ends[0]) for end in ends)


@pytest.mark.parametrize("mode", ["sync", "bounded", "async"])
@pytest.mark.parametrize("dead", [0, 1])
def test_without_a_server_all_stop_in_a_sentence(mode: str, dead: int) -> None:
    settings = {"servers": 2, "on_death": "continue", **MODES[mode]}
    found = fates(dead, **settings)
    for rank in {0, 1, 2, 3} - {dead}:
        assert isinstance(found[rank].error, PeerFailed), found[rank]
        assert "it was a server, and a part of the parameters was on it alone" in str(found[rank].error)
        assert found[rank].error.ranks == (dead,)


class Odd(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise ZeroDivisionError("by hand")


def test_an_optimizer_that_raises_on_a_server_ends_all() -> None:
    first, second = Scene("parameter-server", 2, make=partial(Odd, lr=0.1), servers=1).outcomes()
    assert isinstance(first.error, ZeroDivisionError)
    assert isinstance(second.error, PeerFailed)
    assert "ZeroDivisionError: by hand" in str(second.error)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"servers": 3}, "servers=3 needs as many workers, and there are 2"),
        ({"servers": 0}, 'servers is 0; it must be "all", "own", or a whole number'),
        ({"backup": 1, "mode": "async"}, "backup needs mode=sync, and the mode is async"),
        ({"push_every": 2}, "push_every and pull_every needs mode=async"),
        ({"max_staleness": -1, "mode": "bounded"}, "max_staleness is -1; it must be a whole number (at least 0)"),
        ({"softsync": 0, "mode": "async"}, "softsync is 0; it must be a whole number (at least 1), or None"),
        ({"overlap": True}, "overlap needs mode=async or bounded"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], words: str) -> None:
    assert words in Scene("parameter-server", 2, settings=settings).refusal()


def test_a_momentum_of_workers_is_that_of_sgd() -> None:
    scene = Scene("parameter-server", 2, make=torch.optim.Adam, momentum="worker")
    assert 'leave it at "server" for Adam' in scene.refusal()
