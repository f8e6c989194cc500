"""Sums by pieces: the bits of the leader's own sum, whoever adds, dies in a piece or comes too late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.core.errors import ConfigurationError
from quorate.core.fields import Header
from quorate.core.vectors import Flat, Layout, Part, empty_vector
from quorate.rounds import piecewise_sums
from quorate.rounds.gathering import sum_of
from quorate.rounds.piecewise_sums import PiecewiseSums
from quorate.wire.virtual.wire import VirtualWire

CPU = torch.device("cpu")
PIECE = 64
ODD = 5 * PIECE + 7


BESIDE = list[threading.Thread]()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(piecewise_sums, "PIECE", PIECE)
    monkeypatch.setattr(piecewise_sums, "LEAST_BYTES", 0)
    yield
    while BESIDE:
        BESIDE.pop().join(20.0)


class Lending:
    """The memory of one host, where all tensors can be lent but those of bfloat16."""

    rank, size = 0, 4

    def __init__(self) -> None:
        self.lent: list[Tensor] = []

    def host_of(self, rank: int) -> int:
        return 3 * (rank == 3)

    def empty(self, numel: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(numel, dtype=dtype)

    def lend(self, x: Tensor) -> dict[str, Any] | None:
        self.lent.append(x)
        return {"place": len(self.lent) - 1}

    def borrow(self, loan: Header) -> Tensor:
        return self.lent[loan["place"]].view(torch.uint8)


class Host:
    """A leader, and two workers of its host that wait; `hears` is what becomes of a message to one of them."""

    def __init__(self, hears: Callable[[PiecewiseSums, Header], object] = PiecewiseSums.help, threads: int = 1) -> None:
        self.wire, self.asked = Lending(), list[int]()
        self.leader, *self.others = [
            PiecewiseSums(self.wire, self.send, empty_vector, threads)  # type: ignore[arg-type]
            for _ in range(3)
        ]
        self._hears = hears

    def send(self, to: int, header: Header, vector: Flat | None) -> None:
        self.asked.append(to)
        self._hears(self.others[to - 1], header)

    def sum_of(self, vectors: list[Flat]) -> Flat:
        total = self.leader.add_with(lambda: [1, 2, 3], vectors)
        assert total is not None
        return total


def drawn(count: int, *parts: tuple[int, torch.dtype]) -> list[Flat]:
    layout = Layout((), tuple(Part(numel, dtype, CPU) for numel, dtype in parts), 0)
    generator = torch.Generator().manual_seed(count)
    return [
        Flat([torch.randn(numel, generator=generator).to(dtype) for numel, dtype in parts], layout)
        for _ in range(count)
    ]


def equal(one: Flat | None, other: Flat | None) -> bool:
    assert one is not None
    assert other is not None
    return all(torch.equal(x, y) for x, y in zip(one.parts, other.parts, strict=True))


def never(other: PiecewiseSums, header: Header) -> None:
    """A worker that is stopped, or busy: the message waits."""


def beside(other: PiecewiseSums, header: Header) -> None:
    BESIDE.append(threading.Thread(target=other.help, args=(header,)))
    BESIDE[-1].start()


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("hears", [PiecewiseSums.help, never, beside])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_are_those_of_the_leader_alone(count: int, hears: Any, threads: int) -> None:
    host = Host(hears, threads)
    for numel in (1, PIECE, ODD, 3 * ODD):
        vectors = drawn(count, (numel, torch.float32), (ODD, torch.float64), (3, torch.bfloat16))
        assert equal(host.sum_of(vectors), sum_of(vectors))
    assert host.asked == [1, 2] * 4, "worker 3 is on another host"


def test_vectors_of_many_pieces_have_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(piecewise_sums, "_MOST_PIECES", 4)
    vectors = drawn(3, (20 * ODD, torch.float32))
    assert equal(Host(beside).sum_of(vectors), sum_of(vectors))


def test_a_worker_that_dies_in_a_piece_leaves_it_to_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(*_: object) -> None:
        raise InterruptedError

    def dies(other: PiecewiseSums, header: Header) -> None:
        with monkeypatch.context() as death:
            death.setattr(piecewise_sums._Sum, "_add", ended)
            with pytest.raises(InterruptedError):
                other.help(header)

    host = Host(dies)
    vectors = drawn(4, (ODD, torch.float32))
    assert equal(host.sum_of(vectors), sum_of(vectors))
    begun = host.leader._table[1 : 1 + 6]  # type: ignore[index]
    assert (begun == 1).sum() == 6


def test_a_worker_that_goes_on_too_late_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has begun a piece, and reads the vectors after they have been given back and written anew."""
    read, may_read, has_begun = piecewise_sums._Sum._add, threading.Event(), threading.Event()

    def stops(self: Any, piece: int, scratch: Any) -> None:
        if threading.current_thread() in BESIDE:
            has_begun.set()
            assert may_read.wait(20.0)
        read(self, piece, scratch)

    def hears(other: PiecewiseSums, header: Header) -> None:
        beside(other, header)
        assert has_begun.wait(20.0)

    monkeypatch.setattr(piecewise_sums._Sum, "_add", stops)
    vectors = drawn(3, (ODD, torch.float32))
    right = sum_of(vectors)
    host = Host(hears)
    total = host.sum_of(vectors)
    assert equal(total, right)
    for vector in vectors:
        vector.mul_(0.0)
    following = drawn(2, (ODD, torch.float32))
    host._hears = never
    following_total = host.sum_of(following)
    may_read.set()
    for thread in BESIDE:
        thread.join(20.0)
    assert equal(total, right)
    assert equal(following_total, sum_of(following))


def test_marks_of_an_earlier_sum_do_not_count() -> None:
    host = Host(never)
    first, second = drawn(2, (ODD, torch.float32)), drawn(3, (ODD, torch.float32))
    host.sum_of(first)

    def begins_all(other: PiecewiseSums, header: Header) -> None:
        host.wire.lent[header["table"]["place"]][1:7] = header["number"]

    host._hears = begins_all
    assert equal(host.sum_of(second), sum_of(second))


def test_small_sums_ask_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = drawn(2, (ODD, torch.float32))
    monkeypatch.setattr(piecewise_sums, "LEAST_BYTES", 8 * ODD + 1)
    host = Host()
    assert equal(host.sum_of(vectors), sum_of(vectors))
    assert (host.asked, host.wire.lent) == ([], [])


def test_one_vector_is_its_own_sum() -> None:
    (vector,) = drawn(1, (ODD, torch.float32))
    assert Host().leader.add_with(list, [vector]) is vector
    assert Host().leader.add_with(list, []) is None


def test_a_worker_that_does_not_reach_the_memory_adds_nothing() -> None:
    host = Host()

    def unreachable(loan: Mapping[str, Any]) -> Tensor:
        raise ConfigurationError("another user's")

    host.wire.borrow = unreachable  # type: ignore[method-assign]
    vectors = drawn(2, (ODD, torch.float32))
    assert equal(host.sum_of(vectors), sum_of(vectors))


def test_virtual_workers_lend_nothing() -> None:
    assert VirtualWire.lend(None, torch.zeros(1)) is None  # type: ignore[arg-type]
