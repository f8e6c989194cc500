"""The collectives of Horovod's API, against what its documentation says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import quorate.horovod as hvd
from quorate.core.errors import ConfigurationError, WireTimeout
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined

SIZE = 3


def on_workers(task: Callable[[int], Any], size: int = SIZE) -> list[Any]:
    """What `task(rank)` returns on each virtual worker, in Horovod's world."""

    def live(world: Any) -> Any:
        hvd.init()
        return task(world.rank)

    return VirtualWorld(size).run(joined(live))


@pytest.mark.parametrize(
    ("op", "value"),
    [(hvd.Average, 2.0), (hvd.Sum, 6.0), (hvd.Min, 1.0), (hvd.Max, 3.0), (hvd.Product, 6.0), (hvd.Adasum, None)],
)
def test_a_reduction_is_over_all_workers(op: Any, value: float | None) -> None:
    def task(rank: int) -> list[float]:
        x = torch.full((2, 2), float(rank + 1))
        reduced = hvd.allreduce(x, op=op)
        assert x.tolist() == [[rank + 1.0] * 2] * 2
        return reduced.flatten().tolist()

    results = on_workers(task)
    assert results[0] == results[1] == results[2]
    assert results[0] == ([value] * 4 if value is not None else results[0])
    if value is None:  # parallel gradients are averaged, the farther the length the more: between the least and the sum
        assert 1.0 < results[0][0] < 6.0


def test_factors_scale_before_and_after() -> None:
    def task(rank: int) -> float:
        x = torch.tensor(float(rank + 1))
        return hvd.allreduce(x, op=hvd.Sum, prescale_factor=2.0, postscale_factor=0.25).item()

    assert on_workers(task) == [3.0] * SIZE


def test_the_older_argument_still_works() -> None:
    assert on_workers(lambda rank: hvd.allreduce(torch.tensor([1.0]), average=False).item()) == [3.0] * SIZE
    with pytest.raises(ConfigurationError, match="average and op say the same"):
        on_workers(lambda rank: hvd.allreduce(torch.tensor([1.0]), average=False, op=hvd.Sum))


def test_means_of_integers_are_rounded_towards_zero() -> None:
    assert on_workers(lambda rank: hvd.allreduce(torch.tensor([rank, -rank - 2])).tolist()) == [[1, -3]] * SIZE


def test_numbers_may_travel_in_16_bits() -> None:
    def task(rank: int) -> tuple[float, torch.dtype]:
        x = hvd.allreduce(torch.tensor([1 / 3]), compression=hvd.Compression.fp16)
        return x.item(), x.dtype

    assert on_workers(task) == [(torch.tensor(1 / 3).half().item(), torch.float32)] * SIZE


def test_in_place_and_grouped_forms() -> None:
    def task(rank: int) -> list[Any]:
        x, y = torch.tensor([float(rank)]), torch.tensor([2.0 * rank])
        assert hvd.allreduce_(x) is x
        results = hvd.grouped_allreduce([x, y], op=hvd.Sum)
        written = hvd.grouped_allreduce_([y, y.clone()], op=hvd.Max)
        assert written[0] is y
        return [x.item(), *(z.item() for z in results), y.item()]

    assert on_workers(task) == [[1.0, 3.0, 6.0, 4.0]] * SIZE


def test_names_match_collectives_begun_in_another_order() -> None:
    def task(rank: int) -> list[float]:
        names = ["a", "b"] if rank % 2 else ["b", "a"]
        handles = {name: hvd.allreduce_async(torch.tensor([float(name == "a")]), name=name) for name in names}
        results = [hvd.synchronize(handles[name]).item() for name in ("a", "b")]
        assert all(hvd.poll(handle) for handle in handles.values())
        return results

    assert on_workers(task) == [[1.0, 0.0]] * SIZE


def test_gathered_rows_may_differ_in_number() -> None:
    def task(rank: int) -> list[list[int]]:
        return hvd.allgather(torch.full((rank, 2), rank)).tolist()

    assert on_workers(task) == [[[1, 1], [2, 2], [2, 2]]] * SIZE


def test_broadcasts_copy_one_worker() -> None:
    def task(rank: int) -> list[float]:
        x = torch.tensor([float(rank), 5.0])
        copied = hvd.broadcast(x, root_rank=2)
        assert x[0] == rank
        hvd.broadcast_(x, root_rank=1)
        return [*copied.tolist(), *x.tolist()]

    assert on_workers(task) == [[2.0, 5.0, 1.0, 5.0]] * SIZE
    with pytest.raises(ConfigurationError, match="root_rank=3"):
        on_workers(lambda rank: hvd.broadcast(torch.ones(1), root_rank=3))


def test_rows_are_exchanged() -> None:
    def task(rank: int) -> Any:
        even = hvd.alltoall(torch.arange(3) + 10 * rank).tolist()
        rows, counts = hvd.alltoall(torch.full((rank + 1,), rank), splits=[0, 0, rank + 1])
        return even, rows.tolist(), counts.tolist()

    results = on_workers(task)
    assert [even for even, _, _ in results] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert results[2][1:] == ([0, 1, 1, 2, 2, 2], [1, 2, 3])
    assert results[0][1:] == ([], [0, 0, 0])
    with pytest.raises(ConfigurationError, match="which 3 workers do not divide"):
        on_workers(lambda rank: hvd.alltoall(torch.ones(4)))


def test_rows_are_reduced_and_divided() -> None:
    def task(rank: int) -> list[float]:
        return hvd.reducescatter(torch.arange(4.0) * (rank + 1), op=hvd.Sum).tolist()

    assert on_workers(task) == [[0.0, 6.0], [12.0], [18.0]]


GRADIENTS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "mean": (lambda x: hvd.allreduce(x), 2.0),  # the mean of the weights 1, 2, 3 of the workers' losses
    "sum": (lambda x: hvd.allreduce(x, op=hvd.Sum), 6.0),
    "gather": (lambda x: hvd.allgather(x), 6.0),
    "broadcast": (lambda x: hvd.broadcast(x, 0), 6.0),
    "exchange": (lambda x: hvd.alltoall(x), None),
    "scatter": (lambda x: hvd.reducescatter(x, op=hvd.Sum), None),
}  # type: ignore[dict-item]


@pytest.mark.parametrize("name", list(GRADIENTS))
def test_gradients_go_the_way_back(name: str) -> None:
    function, total = GRADIENTS[name]

    def task(rank: int) -> list[float]:
        x = torch.ones(3, requires_grad=True)
        (function(x).sum() * (rank + 1)).backward()
        assert x.grad is not None
        return x.grad.tolist()

    results = on_workers(task)
    if total is None:
        assert results == [[1.0, 2.0, 3.0]] * SIZE
    elif name == "broadcast":
        assert results == [[6.0] * 3, [0.0] * 3, [0.0] * 3]
    else:
        assert results == [[total] * 3] * SIZE


def test_process_sets() -> None:
    def task(rank: int) -> Any:
        pair = hvd.add_process_set([0, 2])
        assert pair.included() == (rank != 1)
        result = None
        if pair.included():
            x = torch.tensor([float(rank)])
            result = [
                hvd.allreduce(x, op=hvd.Sum, process_set=pair).item(),
                *hvd.allgather(x, process_set=pair).tolist(),
            ]
            result += [hvd.broadcast(x, 2, process_set=pair).item(), pair.rank(), pair.size()]
            hvd.barrier(process_set=pair)
        hvd.barrier()
        return result

    assert on_workers(task) == [[2.0, 0.0, 2.0, 2.0, 0, 2], None, [2.0, 0.0, 2.0, 2.0, 1, 2]]

    def outside(rank: int) -> None:
        pair = hvd.add_process_set([0, 2])
        if rank == 1:
            hvd.allreduce(torch.ones(1), process_set=pair)

    with pytest.raises(ConfigurationError, match="rank 1, which is not in"):
        on_workers(outside)
    with pytest.raises(ConfigurationError, match="not registered"):
        on_workers(lambda rank: hvd.allreduce(torch.ones(1), process_set=hvd.ProcessSet([0])))
    with pytest.raises(ConfigurationError, match="impossible"):
        on_workers(lambda rank: hvd.add_process_set([0, 7]))


def test_counts_of_workers_and_hosts() -> None:
    def task(rank: int) -> list[Any]:
        return [hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]

    assert on_workers(task) == [[rank, 3, rank, 3, 0, 1] for rank in range(3)]


def test_before_init_everything_says_so() -> None:
    assert not hvd.is_initialized()
    for call in (hvd.rank, hvd.size, hvd.local_rank, lambda: hvd.allreduce(torch.ones(1)), hvd.barrier):
        with pytest.raises(ConfigurationError, match=r"call hvd.init\(\) first"):
            call()


def test_a_wait_names_the_call_of_the_script_and_who_is_late() -> None:
    def live(world: Any) -> None:
        hvd.init()
        if world.rank == 1:
            world.wire.clock.sleep(100.0)
        hvd.allreduce(torch.ones(1))

    with pytest.raises(WireTimeout, match=r"rank 0 waited 5 s for rank 1 in hvd.allreduce\(\)"):
        VirtualWorld(2, timeout=5.0).run(joined(live))


def test_what_is_missing_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="start_timeline: run `quorate trace RUN`"):
        hvd.start_timeline("file")
    with pytest.raises(ConfigurationError, match="sparse_as_dense"):
        _ = hvd.sparse_allreduce_async
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hvd.nothing
