"""What ends a step or a training of shards: numbers that are not finite, a stop, a death, and workers that part."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import quorate
from quorate.core.errors import Diverged, Mismatch, NotFinite, PeerFailed
from quorate.core.local_tensor import local
from quorate.observe.stopping import INTERRUPTED, Stop
from quorate.wire import current
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.processes import outcomes_real_world, run_real_world
from tests.support.sampled import Few
from tests.support.scene import Scene, Trainer, pause
from tests.support.sharded_trainings import TOKENS, Model, batch, whole

STEPS, BAD = 4, 1
Bad = Literal["skip", "raise", "scaler"]
Ended = tuple[list[Tensor], list[float], bool]
"""The parameters, the scales, and whether the step with the bad gradient has changed nothing."""


def spoiled(ids: Tensor, model: Any) -> Tensor:
    """Tokens whose gradient is infinite in the last row of the embedding, and nowhere else: one shard has it."""
    ids = ids.clone()
    ids[-1, 0] = TOKENS - 1

    def overflow(module: object, inputs: tuple[Tensor], out: Tensor) -> None:
        hook.remove()
        out.register_hook(lambda gradient: gradient.masked_fill((inputs[0] == TOKENS - 1)[..., None], float("inf")))

    hook = model.tokens.register_forward_hook(overflow)
    return ids


def cross_entropy(each: int, trainer: Trainer) -> Tensor:
    """Of the batches of so many workers."""
    ids, targets = batch(trainer.step, range(each * trainer.rank, each * (trainer.rank + 1)))
    return F.cross_entropy(trainer.model(ids).float().flatten(0, 1), targets.flatten())


def trainer_of(world: Any, strategy: str = "all-reduce", *, shards: int | None = None, **chosen: Any) -> Trainer:
    """A model in so many shards, or in as many as there are workers (None), before its first step; 0: it is whole."""

    def model() -> Any:
        if shards == 0:
            return Model()
        return quorate.parallelize(Model(), world.mesh(shards=shards or world.size), precision=precision)

    precision = chosen.pop("precision", None)
    fields: dict[str, Any] = {"model": model, "rate": 0.1, "loss": partial(cross_entropy, 1), **chosen}
    return Scene(strategy, **fields).trainer(world)


def train(bad: Bad, strategy: str, world: Any, each: int, size: int, *, shards: bool) -> Ended:
    """The last of all workers has one bad gradient; `each` workers' batches on each."""
    policy: Any = "warn" if bad == "scaler" else bad
    trainer = trainer_of(world, strategy, shards=2 * shards, heavy=0.9, settings={"on_nonfinite": policy})
    model, optimizer = trainer.model, trainer.optimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=bad == "scaler")
    scales, before, stayed = [], list[Tensor](), False
    for step in range(STEPS):
        optimizer.zero_grad()
        ids, targets = batch(step, range(each * world.rank, each * (world.rank + 1)))
        ids = spoiled(ids, model) if step == BAD and each * (world.rank + 1) == size else ids
        scaler.scale(F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        now = [whole(p) for p in model.parameters()]
        stayed = stayed or (step == BAD and all(map(torch.equal, now, before)))
        before = now
    optimizer.finish()
    return [whole(p) for p in model.parameters()], scales, stayed


def several(cases: Sequence[tuple[Bad, str]], size: int, world: Any) -> list[Ended]:
    return [train(bad, strategy, world, 1, size, shards=True) for bad, strategy in cases]


def test_a_step_is_left_out_by_all_pieces_alike(few: Few) -> None:
    cases: list[tuple[Bad, str]] = few([("scaler", "all-reduce"), ("skip", "all-reduce"), ("skip", "d-psgd")])
    found = run_real_world(4, partial(several, cases, 4), 100.0)
    for number, (bad, strategy) in enumerate(cases):
        ends = [one[number] for one in found]
        if strategy == "all-reduce":
            assert all(stayed for _, _, stayed in ends), bad
        if bad == "scaler":
            assert all(scales == [8.0, 4.0, 4.0, 4.0] for _, scales, _ in ends)
        replicas = VirtualWorld(2).run(joined(partial(train, bad, strategy, each=2, size=4, shards=False)))
        far = [max(map(furthest, end, replicas[0][0])) for end, _, _ in ends]
        assert max(far) < 2e-6, (bad, strategy, far)


def furthest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


def test_one_bad_gradient_ends_all_where_that_was_asked_for() -> None:
    ends = outcomes_real_world(4, partial(train, "raise", "all-reduce", each=1, size=4, shards=True), 100.0)
    assert any(isinstance(end.error, NotFinite) and end.error.ranks == (2, 3) for end in ends), ends
    for end in ends:  # one that is still exchanging pieces may hear of it from one that has ended already
        assert isinstance(end.error, NotFinite | PeerFailed), end
        assert "replica 1 (ranks 2 and 3) brought a " in end.error_message


def stopped(strategy: str, asked: Sequence[int | None], world: Any) -> tuple[Any, int, float]:
    """The exit code, the last step and the sum of the parameters of a worker that is asked to leave in the middle of
    its step number `asked[rank]`; None: it is not."""

    def loss(trainer: Trainer) -> Tensor:
        error = cross_entropy(1, trainer)
        if trainer.step == asked[world.rank]:
            current.here().context(Stop).ask(INTERRUPTED)
        return error

    trainer = trainer_of(world, strategy, shards=2, loss=loss)
    with pytest.raises(SystemExit) as stop:
        trainer.train(1000)
    return stop.value.code, trainer.step, sum(float(whole(p).double().sum()) for p in trainer.model.parameters())


@pytest.mark.parametrize(
    ("strategy", "asked", "last"),
    [("all-reduce", [None, None, None, 2], 3), ("local-sgd", [None, 1, None, None], 8), ("d-psgd", [3, 2, 2, 3], 3)],
)
def test_all_leave_after_the_same_step(strategy: str, asked: list[int | None], last: int) -> None:
    """Under gossip no exchange has everyone, and all are asked, as `quorate run` does; a replica leaves as one, and
    another may be a step behind it."""
    outcomes = outcomes_real_world(4, partial(stopped, strategy, asked), 60.0)
    assert {outcome.exit_code for outcome in outcomes} == {130}, outcomes
    ends = [outcome.result for outcome in outcomes if outcome.result]
    steps = [step for _, step, _ in ends]
    assert [code for code, _, _ in ends] == [130] * 4
    assert len({total for _, _, total in ends}) == 1, ends
    assert steps[0] == steps[1] and steps[2] == steps[3], ends
    assert set(steps) <= ({last - 1, last} if strategy == "d-psgd" else {last}), ends


def killed(when: str, world: Any) -> None:
    """Rank 1 is killed in its sixth step, and others wait for its pieces."""

    def loss(trainer: Trainer) -> Tensor:
        dies = trainer.step == 5 and trainer.rank == 1
        if dies and when == "forward":
            trainer.model.blocks[1].register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        error = cross_entropy(1, trainer)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return error

    trainer_of(world, shards=2, loss=loss).train(100_000)


@pytest.mark.parametrize(("size", "when"), [(2, "forward"), (4, "backward")])
def test_the_others_end_when_a_worker_is_killed(size: int, when: str) -> None:
    ends = outcomes_real_world(size, partial(killed, when), 60.0)
    assert ends[1].exit_code == -signal.SIGKILL
    for end in ends[:1] + ends[2:]:
        assert isinstance(end.error, PeerFailed) and end.error.ranks == (1,), end
        assert re.fullmatch(
            r"rank 1 \(replica 0, shard 1; host \S+\) was killed by signal 9 \(SIGKILL\)", end.error_message
        )


def parts(how: str, world: Any) -> None:
    """Rank 0 ends, or evaluates, before rank 1 does."""
    trainer = trainer_of(world).train(2 + world.rank)
    trainer.finish() if how == "the end of training" else pause(trainer)


@pytest.mark.parametrize("how", ["the end of training", "a pause of training"])
def test_workers_of_a_replica_that_part_learn_of_it_at_once(how: str) -> None:
    for end in outcomes_real_world(2, partial(parts, how), 40.0):
        assert isinstance(end.error, Mismatch), end
        assert f"rank 0 (replica 0, shard 0) {how}, rank 1 (replica 0, shard 1) all_gather of " in end.error_message


def parted(world: Any) -> None:
    """The script of rank 3 writes numbers of its own into its piece."""

    def write(trainer: Trainer) -> None:
        if trainer.rank == 3:
            local(trainer.model.head.weight).add_(1.0)

    trainer_of(world, shards=2, rate=0.0, after=write, compare_every=2).train(3)


def test_the_pieces_that_have_parted_are_named_by_their_ranks_in_the_world() -> None:
    ends = [end for end in outcomes_real_world(4, parted, 40.0) if isinstance(end.error, Diverged)]
    assert ends
    for end in ends:
        assert isinstance(end.error, Diverged) and end.error.ranks == (1, 3)
        assert (
            "the replicas of ranks 1 (replica 0, shard 1) and 3 (replica 1, shard 1) differ from " in end.error_message
        )


def precise(precision: Any, world: Any) -> tuple[list[float], set[torch.dtype]]:
    """Losses, and dtypes of what stays; inside the dtype of what is calculated is looked at."""
    trainer = trainer_of(world, make=partial(torch.optim.AdamW, lr=3e-3), precision=precision)
    inside = list[torch.dtype]()
    trainer.model.blocks[0].mix.register_forward_hook(lambda module, _, out: inside.append(out.dtype))
    trainer.train(8)
    assert set(inside) == {torch.float32 if precision is None else getattr(torch, precision)}
    stays = [x for state in trainer.optimizer.state.values() for x in state.values()]
    trainer.finish()
    return trainer.losses, {x.dtype for p in trainer.model.parameters() for x in (p, p.grad, *stays)}


def precisions(world: Any) -> dict[str | None, tuple[list[float], set[torch.dtype]]]:
    return {each: precise(each, world) for each in (None, "bfloat16", "float16")}


def test_calculated_in_16_bits_and_kept_in_32() -> None:
    for told in run_real_world(2, precisions, 60.0):
        for losses, dtypes in told.values():
            torch.testing.assert_close(losses, told[None][0], rtol=0.02, atol=0.0)
            assert dtypes == {torch.float32}


def compiled(backend: str, world: Any) -> tuple[list[Tensor], list[Tensor]]:
    ends = []
    for compiles in (False, True):
        trainer = trainer_of(world)
        model = trainer.model
        trainer.model = torch.compile(model, backend=backend) if compiles else model
        trainer.train(3).finish()
        ends.append([whole(p) for p in model.parameters()])
    return ends[0], ends[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_model_is_trained_alike(backend: str) -> None:
    for plain, other in run_real_world(2, partial(compiled, backend), 110.0):
        assert max(map(furthest, plain, other)) < 2e-6
