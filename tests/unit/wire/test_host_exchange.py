"""The exchange of one slice between hosts, with messages that come in any order: sums, bytes, who is waited for."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from quorate.core.contracts import Done, Message, Work
from quorate.wire.boxes import Inbox, Waiting
from quorate.wire.exchange import sum_in_order
from quorate.wire.real.carried import Carried, bits_of
from quorate.wire.real.host_exchange import DIRECT_BYTES, Buffers, Exchange, Post, is_cut, most_bytes

SMALL, LARGE = 100, DIRECT_BYTES // 2 + 1000


class OnItsWay:
    """A message that has not gone out."""

    is_out = False

    def done(self) -> bool:
        return self.is_out

    def wait(self, timeout: float | None = None) -> None:
        raise AssertionError("nobody waits for what is sent")


class Network:
    """Hosts whose heads are ranks 10, 11, ...; messages arrive when they are let through."""

    def __init__(
        self, count: int, numel: int, operation: int = 7, narrow: torch.dtype | None = None, *, is_alone: bool = False
    ) -> None:
        """`is_alone`: a host has one worker, and what it brings becomes the sum where it lies."""
        self.narrow, self.is_alone = narrow, is_alone
        self.heads = [10 + host for host in range(count)]
        self.inboxes = {rank: Inbox() for rank in self.heads}
        self.under_way: list[tuple[int, int, str, Message]] = []
        self.sent = Counter[int]()
        draw = np.random.default_rng(count)
        scales = [10.0 ** (host % 3 - 1) for host in range(count)]
        self.own = [(draw.standard_normal(numel) * scale).astype(np.float32) for scale in scales]
        kind = np.dtype(np.float32) if narrow is None or not is_alone else bits_of(narrow)
        self.into = [np.zeros(numel, kind) for _ in self.heads]
        self.exchanges = [self.begun(host, operation + (host == 0 and operation < 0)) for host in range(count)]

    def begun(self, host: int, operation: int) -> Exchange:
        rank = self.heads[host]

        def send(message: Message, to: int, tag: str) -> Work[None]:
            self.under_way.append((rank, to, tag, message))  # not copied: it must not change while it is on its way
            self.sent[rank] += sum(x.numel() for x in message.tensors)
            return Done(None)

        def ask(source: int, tag: str) -> Waiting:
            return self.inboxes[rank].ask(source, tag)

        carried = Carried(np.dtype(np.float32), self.narrow)
        numel, itemsize, count = len(self.own[host]), carried.dtype.itemsize, len(self.heads)
        if self.is_alone and is_cut(numel * itemsize, count):
            own = self.into[host]
            buffer = Buffers().take(most_bytes(numel, itemsize, count))
        else:
            buffer = Buffers().take(numel * itemsize)
            own = buffer.of(numel, carried.dtype)
        carried.add([self.own[host]], own)
        return Exchange(Post(send, ask), "x", operation, self.heads, host, own, self.into[host], buffer, carried)

    def let_through(self, index: int) -> None:
        source, to, tag, message = self.under_way.pop(index)
        self.inboxes[to].put(source, tag, message)


@pytest.mark.parametrize("numel", [SMALL, LARGE])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("is_alone", [False, True])
def test_hosts_are_added_in_order_whatever_comes_first(count: int, numel: int, is_alone: bool) -> None:
    for seed in range(5):
        network, draw = Network(count, numel, is_alone=is_alone), random.Random(seed)
        is_there = [exchange.move() for exchange in network.exchanges]
        assert not any(is_there)
        while network.under_way:
            network.let_through(draw.randrange(len(network.under_way)))
            is_there = [exchange.move() for exchange in network.exchanges]
        assert all(is_there)
        total = network.own[0].copy()
        for x in network.own[1:]:
            total += x
        assert all(np.array_equal(x, total) for x in network.into)


def test_large_slices_are_cut_so_that_nobody_carries_more_than_its_share() -> None:
    count = 5
    network = Network(count, LARGE)
    while network.under_way:
        network.let_through(0)
        for exchange in network.exchanges:
            exchange.move()
    for sent in network.sent.values():
        assert sent / (4 * LARGE) == pytest.approx(2 * (count - 1) / count, rel=0.05)


def test_who_has_sent_nothing_is_missing_and_not_who_waits_for_it() -> None:
    network = Network(3, LARGE)
    network.under_way = [message for message in network.under_way if message[0] != network.heads[2]]
    while network.under_way:
        network.let_through(0)
        for exchange in network.exchanges:
            exchange.move()
    assert [network.exchanges[host].missing() for host in (0, 1)] == [[2], [2]]


def test_what_is_part_of_another_sum_is_not_added() -> None:
    network = Network(2, SMALL, operation=-1)  # host 0 means something else
    while network.under_way:
        network.let_through(0)
    assert not any(exchange.move() for exchange in network.exchanges)
    assert not any(x.any() for x in network.into)


def test_a_buffer_is_used_again_once_nobody_holds_it_and_all_has_gone_out() -> None:
    buffers, message = Buffers(), OnItsWay()
    first = buffers.take(1000)
    assert buffers.take(1000) is not first
    first.is_held = False
    sent: list[Any] = [message]
    first.sent.extend(sent)
    assert buffers.take(1000) is not first
    message.is_out = True
    assert buffers.take(10) is not first, "it is far too large"
    assert buffers.take(900) is first


@pytest.mark.parametrize("numel", [SMALL, LARGE])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_alone", [False, True])
def test_small_floats_travel_as_what_they_are(narrow: torch.dtype, count: int, numel: int, is_alone: bool) -> None:
    """Half of the bytes; added in float32, and rounded to the same bits everywhere."""
    network, wide = Network(count, numel, narrow=narrow, is_alone=is_alone), Network(count, numel)
    for exchanging in (network, wide):
        while exchanging.under_way:
            exchanging.let_through(0)
            for exchange in exchanging.exchanges:
                exchange.move()
    assert network.sent.total() * 2 == wide.sent.total()
    rounded = [torch.from_numpy(x).to(narrow) for x in network.own]
    expected = sum_in_order(rounded, range(count))
    for x in network.into:
        total = torch.from_numpy(x)
        assert torch.equal(total.view(narrow) if is_alone else total.to(narrow), expected)
