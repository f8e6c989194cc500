"""Orders of pipelines: what torch runs, each pass once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from quorate.core.errors import ConfigurationError
from quorate.sharding.stages.orders import SCHEDULES, Action, order, owner, peaks, refusal, stages_of


def layouts(*names: str) -> list[tuple[str, int, int, int]]:
    """Names, workers, stages a worker, micro-batches: those that are not refused."""
    return [
        (name, workers, chunks, microbatches)
        for name in names or tuple(SCHEDULES)
        for workers in (1, 2, 3, 4)
        for chunks in (1, 2, 3)
        for microbatches in sorted({1, workers, 2 * workers, 2 * workers + 1, 4 * workers})
        if not refusal(name, workers, chunks, microbatches)
    ]


@pytest.mark.parametrize(("name", "workers", "chunks", "microbatches"), layouts())
def test_each_pass_is_there_once_and_where_its_stage_is(
    name: str, workers: int, chunks: int, microbatches: int
) -> None:
    schedule = SCHEDULES[name]
    passes: dict[tuple[int, int], str] = {}
    for worker, actions in enumerate(order(name, workers, chunks, microbatches)):
        for stage, kind, microbatch in actions:
            assert owner(stage, workers, schedule.placement) == worker
            passes[stage, microbatch] = passes.get((stage, microbatch), "") + kind
    assert set(passes) == {(s, m) for s in range(workers * chunks) for m in range(microbatches)}
    assert set(passes.values()) <= ({"FB", "FIW"} if schedule.is_split else {"FB"})


def test_where_stages_are() -> None:
    assert [stages_of(worker, 3, 2, "loop") for worker in range(3)] == [(0, 3), (1, 4), (2, 5)]
    assert [stages_of(worker, 3, 2, "v") for worker in range(3)] == [(0, 5), (1, 4), (2, 3)]


def test_the_order_of_one_forward_one_backward() -> None:
    """Narayanan et al. 2021, figure 4, of two workers."""
    first, last = order("1f1b", 2, 1, 3)
    assert "".join(f"{kind}{microbatch}" for _, kind, microbatch in first) == "F0F1B0F2B1B2"
    assert "".join(f"{kind}{microbatch}" for _, kind, microbatch in last) == "F0B0F1B1F2B2"


class Recording:
    """A stage that has nothing to compute or send, and keeps what it was asked for."""

    def __init__(self, index: int, stages: int):
        self.stage_index, self.num_stages, self.is_last, self.has_backward = index, stages, False, True
        self.asked: list[Action] = []

    def forward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.asked.append(Action(self.stage_index, "F", microbatch))

    def backward_one_chunk(self, microbatch: int, *_: object, **__: object) -> None:
        self.asked.append(Action(self.stage_index, "B", microbatch))

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_ops"):
            return lambda *_: []
        return lambda *_, **__: None


@pytest.mark.parametrize(("name", "workers", "chunks", "microbatches"), layouts("gpipe", "1f1b"))
def test_schedules_of_one_stage_run_in_this_order_in_torch(
    monkeypatch: pytest.MonkeyPatch, name: str, workers: int, chunks: int, microbatches: int
) -> None:
    base = getattr(torch_schedules, SCHEDULES[name].in_torch)
    monkeypatch.setattr(base, "_initialize_stage", lambda *_: None)
    wanted = order(name, workers, chunks, microbatches)
    for worker in range(workers):
        stage = Recording(worker, workers)
        base(stage, microbatches, loss_fn=lambda *_: 0)._step_microbatches([()] * microbatches, [{}] * microbatches)
        assert tuple(stage.asked) == wanted[worker]


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if schedule.chunks != 1])
def test_others_are_what_torch_has_made_of_its_order(name: str) -> None:
    """A whole schedule of torch, messages and all, has the same passes in the same order."""
    workers, chunks, microbatches = 3, 2, 6
    stages = [
        SimpleNamespace(
            group_size=workers, group_rank=0, num_stages=workers * chunks, stage_index=index, is_last=False, submod=None
        )
        for index in range(chunks)
    ]
    made = getattr(torch_schedules, SCHEDULES[name].in_torch)(stages, microbatches)
    for worker, actions in enumerate(order(name, workers, chunks, microbatches)):
        in_torch = [
            (step.stage_index, step.computation_type.value, step.microbatch_index)
            for action in made.pipeline_order_with_comms[worker]
            for step in action.sub_actions or (action,)
            if step.computation_type.value in {"F", "B", "I", "W"}
        ]
        assert in_torch == list(actions)
        assert {stage for stage, _, _ in in_torch} == {
            stage for stage, place in made.stage_index_to_group_rank.items() if place == worker
        }


def test_how_much_is_held() -> None:
    """GPipe holds all micro-batches; 1F1B as many as there are workers from here on; ZBV as many stages as 1F1B."""
    assert peaks(order("gpipe", 4, 1, 8)) == (8, 8, 8, 8)
    assert peaks(order("1f1b", 4, 1, 8)) == (4, 3, 2, 1)
    assert peaks(order("zbv", 4, 2, 8)) == (8, 8, 8, 8), "halves of what a worker has under 1F1B"
    assert peaks(order("interleaved-1f1b", 4, 2, 8)) == (11, 9, 7, 5)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (("1f1b", 4, 1, 3), "1f1b needs a micro-batch for each of 4 stages, and there are 3"),
        (("gpipe", 2, 2, 4), "gpipe has 1 stage a worker, not 2"),
        (("interleaved-1f1b", 2, 1, 4), "interleaved-1f1b has 2 stages a worker or more, not 1"),
        (("interleaved-1f1b", 2, 2, 5), "interleaved-1f1b needs micro-batches in 2 equal rounds, and there are 5"),
        (("zbv", 2, 3, 4), "zbv has 2 stages a worker, not 3"),
        (("dualpipev", 2, 2, 3), "dualpipev needs a micro-batch for each of 4 stages, and there are 3"),
        (("gpipe", 0, 1, 4), "a pipeline has workers from 1 on, not 0"),
        (("pipedream", 2, 1, 4), 'there is no schedule "pipedream"; known: gpipe, 1f1b, .*'),
    ],
)
def test_what_is_refused(asked: tuple[str, int, int, int], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{reason}$"):
        order(*asked)


@pytest.mark.parametrize("name", [name for name, schedule in SCHEDULES.items() if schedule.chunks != 1])
def test_torch_refuses_what_is_refused_here(name: str) -> None:
    for workers, chunks, microbatches in ((2, 2, 3), (2, 2, 5), (4, 2, 7), (2, 3, 4), (3, 2, 6), (4, 3, 10)):
        stages = [
            SimpleNamespace(
                group_size=workers, group_rank=0, num_stages=workers * chunks, stage_index=0, is_last=False, submod=None
            )
        ] * chunks
        try:
            getattr(torch_schedules, SCHEDULES[name].in_torch)(stages, microbatches)
        except ValueError:
            assert refusal(name, workers, chunks, microbatches)
        else:
            assert not refusal(name, workers, chunks, microbatches)
