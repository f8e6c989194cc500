"""Gradients that are not finite, replicas that part, and requests to leave: what all workers make of them alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import quorate
from quorate.core.errors import ConfigurationError, Diverged, NotFinite, Stopped
from quorate.observe.digests import digest
from quorate.observe.finite import is_finite, seems_finite
from quorate.observe.stopping import INTERRUPTED, RETRY, Stop
from quorate.wire import current
from tests.support.scene import Hook, Scene, Trainer, nothing, ones, squares, virtual, zeros

STRATEGIES = ["all-reduce", "quorum"]


def scene(size: int, in_hook: Hook = nothing, **settings: Any) -> Scene:
    """Workers that keep what their training raised: see `seen`."""

    def begin(trainer: Trainer) -> None:
        current.here().context(Stop).before = [lambda: trainer.seen.append("saved")]
        trainer.optimizer.register_step_post_hook(lambda *_: in_hook(trainer))

    fields: dict[str, Any] = {"model": (4, 3, 1), "rate": 0.1, "seed": 3, "loss": squares, **settings}
    return Scene(size=size, begin=begin, **{"strategy": "all-reduce", **fields})


@dataclass
class Seen:
    """The training of one worker."""

    steps: int
    saved: int
    error: BaseException | None
    numbers: torch.Tensor


def seen(trainer: Trainer) -> Seen:
    error: BaseException | None = None
    try:
        trainer.train(trainer.scene.steps)
        current.here().leave()
    except (NotFinite, Diverged, Stopped) as raised:
        error = raised
        current.here().leaving.clear()
    return Seen(trainer.step, len(trainer.seen), error, trainer.parameters)


def run(size: int, seed: int = 0, **settings: Any) -> list[Seen]:
    return scene(size, world={"seed": seed}, **{"steps": 12, **settings}).act(seen)


def spoils(rank: int, at: int, value: float) -> dict[str, Hook]:
    """One worker's gradient is not finite in one step; seen by a hook, as it would be in a model."""

    def spoil(trainer: Trainer) -> None:
        if trainer.rank == rank and trainer.step == at:
            weight = next(trainer.model[2].parameters())
            handle: Any = weight.register_hook(lambda grad: (handle.remove(), grad * value)[1])

    return {"before": spoil}


# -- gradients that are not finite


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_all_raise_alike_and_name_who_brought_it(size: int, strategy: str, value: float) -> None:
    seen = run(size, strategy=strategy, on_nonfinite="raise", **spoils(size - 1, 5, value))
    errors = [worker.error for worker in seen]
    assert all(isinstance(error, NotFinite) and error.ranks == (size - 1,) for error in errors), errors
    sentence = str(errors[0])
    assert sentence.startswith(f"rank {size - 1} (host ")
    assert f" brought a gradient that is not finite to round {seen[0].steps + 1} of {strategy}" in sentence
    assert str(errors[size - 1]).endswith("first in 2.weight")
    assert all(torch.isfinite(worker.numbers).all() for worker in seen), "it was not applied"
    assert all(torch.equal(worker.numbers, seen[0].numbers) for worker in seen) or strategy == "quorum"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_its_update_can_be_left_out_by_all(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = run(3, strategy=strategy, on_nonfinite="skip", **spoils(1, 5, float("nan")))
    assert [worker.steps for worker in seen] == [12, 12, 12]
    assert all(torch.isfinite(worker.numbers).all() and torch.equal(worker.numbers, seen[0].numbers) for worker in seen)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2, "rank 0 says it, and who has done it"
    assert all("rank 1 (host virtual) brought a gradient that is not finite" in line for line in said)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_is_told_and_counts_unless_told_otherwise(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    seen = run(2, strategy=strategy, **spoils(1, 11, float("inf")))
    assert "rank 1 (host virtual) brought a gradient" in capsys.readouterr().err
    assert not any(torch.isfinite(worker.numbers).all() for worker in seen)
    run(2, strategy=strategy, on_nonfinite="ignore", **spoils(1, 11, float("inf")))
    assert capsys.readouterr().err == ""


def test_an_unknown_answer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match='on_nonfinite="stop" is unknown; known: ignore, raise, skip, warn'):
        run(1, on_nonfinite="stop")
    with pytest.raises(ConfigurationError, match="compare_every is -1; it must be a number of rounds, or 0 for never"):
        run(1, compare_every=-1)


def test_numbers_whose_sum_overflows_are_finite() -> None:
    assert is_finite([torch.full((3,), 3e38)])
    assert is_finite([torch.zeros(0), torch.ones(2, dtype=torch.complex64)])
    for bad in (float("nan"), float("inf"), -float("inf")):
        assert not is_finite([torch.ones(3), torch.tensor([0.0, bad])])
    assert not is_finite([torch.tensor([float("inf"), -float("inf")])])


def test_of_what_is_large_a_sample_is_looked_at() -> None:
    x = torch.ones(300_001)
    assert seems_finite([x, torch.zeros(0), torch.ones(5)])
    assert not seems_finite([x * float("nan")])
    assert not seems_finite([x, torch.tensor([1.0, float("inf")])])
    for place in (0, -1):
        spoilt = x.clone()
        spoilt[place] = float("inf")
        assert not seems_finite([spoilt])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_who_is_to_answer_for_it_looks_at_every_number(strategy: str) -> None:
    def script(trainer: Trainer) -> str:
        model = trainer.model
        ones(trainer).backward()
        try:
            for _ in range(2):
                if trainer.rank == 1:
                    model.weight.grad[201, 7] = float("inf")
                if strategy == "all-reduce":
                    model(torch.zeros(1, 400)).sum().backward()
                trainer.optimizer.step()
        except NotFinite as error:
            current.here().leaving.clear()
            return str(error.ranks)
        return "unseen"

    assert Scene(strategy, 2, model=zeros(400, 400), on_nonfinite="raise").act(script) == ["(1,)", "(1,)"]


# -- replicas that part


def parts(rank: int, at: int) -> dict[str, Hook]:
    """One worker changes one parameter by one bit, on its own."""

    def change(trainer: Trainer) -> None:
        if trainer.rank == rank and trainer.step == at:
            with torch.no_grad():
                bias = trainer.model[0].bias
                bias[1] = torch.nextafter(bias[1], torch.tensor(10.0))

    return {"in_hook": change}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("odd", [0, 2])
def test_the_replica_that_has_parted_is_named_with_the_parameter(strategy: str, odd: int) -> None:
    errors = [worker.error for worker in run(3, strategy=strategy, compare_every=4, steps=30, **parts(odd, 5))]
    raised = [error for error in errors if isinstance(error, Diverged)]
    assert len(raised) == 3, errors
    for error in raised:
        assert error.ranks == (odd,)
        assert f"the replica of rank {odd} (host virtual) has parted from the others by round 8" in str(error)
        assert f"of {strategy}, first in 0.bias" in str(error)


def test_of_two_replicas_neither_is_the_right_one() -> None:
    (error,) = {str(worker.error) for worker in run(2, compare_every=4, **parts(1, 5))}
    assert error.startswith("the replicas of ranks 0 and 1 differ from each other by round 8 of all-reduce")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_end_of_a_training_is_compared_too(strategy: str) -> None:
    raised = [worker.error for worker in run(3, strategy=strategy, **parts(1, 5)) if worker.error is not None]
    assert raised
    assert all(isinstance(error, Diverged) and error.ranks == (1,) for error in raised)
    assert all(worker.error is None for worker in run(3, strategy=strategy, compare_every=0, **parts(1, 5)))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("size", [1, 2, 5])
def test_equal_replicas_are_left_alone(strategy: str, size: int) -> None:
    assert all(worker.error is None for worker in run(size, strategy=strategy, compare_every=1))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str
)
def test_a_digest_sees_every_bit_and_no_layout(dtype: torch.dtype) -> None:
    x = torch.randn(4, 6).to(dtype)
    assert digest(x) == digest(x.clone().t().contiguous().t())
    other = x.clone()
    other.view(torch.uint8).reshape(-1)[7] ^= 1
    assert digest(x) != digest(other)


# -- requests to leave


def asks(rank: int, at: int, status: int) -> dict[str, Hook]:
    """One worker is asked to leave while it computes."""

    def ask(trainer: Trainer) -> None:
        if trainer.rank == rank and trainer.step == at:
            current.here().context(Stop).ask(status)

    return {"between": ask}


@pytest.mark.parametrize("status", [INTERRUPTED, RETRY])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("at", [0, 4])
def test_one_is_asked_and_all_leave_after_the_same_step(size: int, status: int, at: int) -> None:
    for rank in range(size):
        seen = run(size, seed=rank, **asks(rank, at, status))
        assert [worker.error.code for worker in seen if isinstance(worker.error, Stopped)] == [status] * size
        assert {worker.steps for worker in seen} == {at + 2}, "the exchange of the next step tells it"
        assert all(worker.saved == 1 and torch.equal(worker.numbers, seen[0].numbers) for worker in seen)


@pytest.mark.seeds(2, 5)
def test_under_rounds_all_that_are_asked_settle(seed: int) -> None:
    def ask(trainer: Trainer) -> None:
        if trainer.step == (3, 5, 4)[trainer.rank]:
            current.here().context(Stop).ask(RETRY)

    workers = run(3, seed=seed, strategy="eager-solo", between=ask)
    assert [worker.error.code for worker in workers if isinstance(worker.error, Stopped)] == [RETRY] * 3
    assert all(worker.saved == 1 and torch.equal(worker.numbers, workers[0].numbers) for worker in workers)


def test_who_was_told_to_make_room_is_to_be_started_again() -> None:
    def ask(trainer: Trainer) -> None:
        if trainer.step == 3 and trainer.rank < 2:
            current.here().context(Stop).ask((INTERRUPTED, RETRY)[trainer.rank])

    codes = {worker.error.code for worker in run(3, between=ask) if isinstance(worker.error, Stopped)}
    assert codes <= {INTERRUPTED, RETRY}


@pytest.mark.parametrize("critic", [1, 3])
def test_several_optimizers_leave_together(critic: int) -> None:
    def task(world: quorate.World) -> tuple[int, int, object]:
        both = [Scene(model=(3, 1), loss=ones).trainer(world) for _ in range(2)]
        code: object = "went on"
        try:
            for iteration in range(40):
                for which in [0] * critic + [1]:
                    if (iteration, which, world.rank) == (4, 0, 1):
                        current.here().context(Stop).ask(RETRY)
                    both[which].make_step()
        except Stopped as error:
            code = error.code
            current.here().leaving.clear()
        return both[0].step, both[1].step, code

    ends = virtual(3, task)
    assert len(set(ends)) == 1, "all at the same place"
    assert ends[0][2] == RETRY
    if critic == 1:
        assert ends[0][:2] == (5, 5), "after a whole iteration"
