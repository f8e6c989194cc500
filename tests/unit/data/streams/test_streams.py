"""Streams: what is refused, reading by several processes, and places of streams that keep a state in their iterator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

import quorate
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.data.consumption import Consumed
from quorate.data.position import Dealt
from quorate.data.streams.dealing import DealtPlace
from quorate.data.streams.position import Begun, _pruned
from quorate.data.streams.reading import BEGIN, Place
from quorate.wire import current
from quorate.wire.current import Place as WorkerPlace
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined
from tests.support.streams import Numbers, Placed, Sharded


@pytest.fixture(autouse=True)
def alone() -> Iterator[WorkerPlace]:
    clock = SimpleNamespace(now=lambda: 0.0)
    nobody: frozenset[int] = frozenset()
    wire = SimpleNamespace(rank=0, size=1, clock=clock, is_newcomer=False, dead=nobody, joined=nobody, board=None)
    yield current.enter(cast(Wire, wire), thread_only=True)
    current.forget(thread_only=True)


def numbers_of(loader: Any) -> list[int]:
    return [number for _, numbers in loader for number in numbers.tolist()]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dataset": iter(Numbers(3))}, "empty after one epoch"),
        ({"shuffle": True}, "shuffle=True needs shuffle_buffer="),
        ({"shuffle": False, "shuffle_buffer": 4}, "contradict each other"),
        ({"shuffle_buffer": 1}, "shuffle_buffer must be a whole number"),
        ({"sampler": [0]}, "sampler= needs a dataset with a length"),
        ({"read": "all"}, "Known: each, one, own"),
        ({"read": "own", "share": "dynamic"}, "leaves the division to the stream"),
        ({"read": "one", "num_workers": 1}, "use num_workers=0"),
        ({"share": "dynamic", "num_workers": 1}, "use num_workers=0"),
        ({"num_workers": 1, "persistent_workers": True}, "leave out persistent_workers=True"),
        ({"dataset": [1, 2, 3], "read": "one"}, "read= is for streams"),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        quorate.loader(**{"dataset": Numbers(9), "batch_size": 2, **options})


def test_a_stream_has_the_length_that_it_says() -> None:
    loader = quorate.loader(Numbers(9), batch_size=2)
    with pytest.raises(ConfigurationError, match="has no length"):
        len(loader)
    assert len(list(loader)) == 5

    class Long(Numbers):
        def __len__(self) -> int:
            return self.count

    assert len(quorate.loader(Long(9), batch_size=2)) == 5


def test_a_generator_inside_is_noticed_in_the_second_epoch() -> None:
    class Once(IterableDataset[Any]):
        def __init__(self) -> None:
            self._numbers = (torch.tensor(number) for number in range(4))

        def __iter__(self) -> Iterator[Any]:
            return self._numbers

    loader = quorate.loader(Once(), batch_size=2)
    assert len(list(loader)) == 2
    with pytest.raises(ConfigurationError, match="can be read only once"):
        list(loader)


def test_other_content_on_another_worker_is_refused() -> None:
    class Other(Numbers):
        def __iter__(self) -> Iterator[Any]:
            return (torch.tensor(number + current.here().wire.rank) for number in range(9))

    def live(world: quorate.World) -> None:
        list(quorate.loader(Other(9), batch_size=2))

    with pytest.raises(ConfigurationError, match="is another one on rank"):
        VirtualWorld(2).run(joined(live))


@pytest.mark.parametrize("stream", [Placed(37), Sharded(37, 5)])
@pytest.mark.parametrize("options", [{}, {"shuffle_buffer": 8}])
def test_processes_divide_the_reading(stream: Any, options: dict[str, Any]) -> None:
    loader = quorate.loader(stream, batch_size=2, num_workers=2, **options)
    assert sorted(numbers_of(loader)) == list(range(37))


class ByProcess(Numbers):
    """Divides itself among the processes of a DataLoader, as the documentation of torch shows."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return islice(super().__iter__(), 0 if info is None else info.id, None, 1 if info is None else info.num_workers)


@pytest.mark.parametrize("read", ["each", "own"])
def test_a_stream_that_divides_itself_among_processes_loses_nothing(read: Any) -> None:
    loader = quorate.loader(ByProcess(37), batch_size=2, num_workers=2, read=read)
    assert sorted(numbers_of(loader)) == list(range(37))


@pytest.mark.parametrize(("stream", "most"), [(Placed, 4), (Numbers, 100)])
def test_a_stream_with_a_place_is_not_read_again(
    stream: type[Any], most: int, alone: WorkerPlace, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.context(Consumed).follow_steps()
    loader = quorate.loader(stream(40), batch_size=2)
    for step, _ in enumerate(loader, 1):
        alone.context(Consumed).stepped()
        if step == 19:
            break
    data = stream(40)
    again = quorate.loader(data, batch_size=2)
    again.load_state_dict(loader.state_dict())
    assert numbers_of(again) == [38, 39]
    assert data.reads <= most
    assert ("38 examples were read again" in capsys.readouterr().err) == (stream is Numbers)


def test_an_iterator_may_have_the_state() -> None:
    class Items:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Items:
            return self

        def __next__(self) -> int:
            if self.at == 7:
                raise StopIteration
            self.at += 1
            return self.at - 1

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return Items()

    loader = quorate.loader(Stream(), batch_size=2)
    iterator = iter(loader)
    assert next(iterator).tolist() == [0, 1]
    state = loader.state_dict()
    assert state["begun"]["0"]["place"][-1] == {"iterator": {"at": 2}}
    again = quorate.loader(Stream(), batch_size=2)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == [[2, 3], [4, 5], [6]]


def test_items_that_are_batches_are_returned_as_they_are() -> None:
    class Batches(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter([torch.zeros(3), torch.ones(2)])

    assert [batch.tolist() for batch in quorate.loader(Batches())] == [[0.0] * 3, [1.0] * 2]


def test_divisions_that_are_wholly_past_are_left_out() -> None:
    dealt = Dealt(share="static", size=2, batch_size=2, drop_last=False, consumed=(((0, 2),), ((0, 2),)))
    begin = DealtPlace(at=Place(part=0, mark=BEGIN), counts=(8,))
    pruned = _pruned(Begun(past=(dealt,), begin=begin, is_by_item=True))
    assert (pruned.past, pruned.begin) == ((), DealtPlace(at=Place(part=0, mark=BEGIN), counts=(0,)))
    further = Dealt(share="static", size=2, batch_size=2, drop_last=False, consumed=(((0, 2),), ((0, 3),)))
    assert _pruned(Begun(past=(further,), begin=begin, is_by_item=True)).past == (further,)
