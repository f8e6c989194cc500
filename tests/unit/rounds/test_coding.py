"""What codecs leave out of contributions to rounds: what came, what waits and what is left are what was produced."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.core.codec import Codec
from quorate.core.vectors import Flat, empty_vector, nbytes_of
from quorate.rounds.buffer import Snapshot
from quorate.rounds.coding import Coding, sparse_read, sparse_written
from quorate.rounds.pending import PendingGradients
from quorate.rounds.terms import Agreed

LAYOUT = layout_of(
    [("a", torch.zeros(20, 3)), ("b", torch.zeros(3)), ("c", torch.zeros(3, 40))],
    header=2,
    part_bytes=200,
    first_part_bytes=200,
    coded=lambda name, x: x.dim() > 1,
)
NAMES = [name for name in codecs.names() if not codecs.get(name).memories]


def drawn(seed: int) -> Flat:
    draw = torch.Generator().manual_seed(seed)
    return Flat([torch.randn(p.numel, generator=draw) for p in LAYOUT.parts], LAYOUT)


def coding(name: str) -> Coding:
    codec: Codec = codecs.get(name)()
    return Coding(codec, LAYOUT, 3, 1, feeds_back=True)


def total(vectors: list[Flat]) -> list[Tensor]:
    return [sum((x.parts[part].double() for x in vectors), torch.zeros(1)) for part in range(len(LAYOUT.parts))]


def errors(one: Coding) -> list[Tensor]:
    if one.error is None:
        return [torch.zeros(1).double()] * len(LAYOUT.parts)
    return [*(x.double() for x in one.error.parts[:-1]), torch.zeros(1).double()]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.seeds(3, 12)
def test_nothing_is_lost_whatever_becomes_of_rounds(name: str, seed: int) -> None:
    """Contributions come, rounds take them, or go by without them and give them back, in any order."""
    draw = random.Random(seed)
    pending = PendingGradients(Agreed(size=3, max_staleness=1000))
    pending.coding = coding(name)
    produced, taken, open_ones = list[Flat](), list[Flat](), list[Snapshot]()
    version = 0
    for number in range(1, 25):
        for _ in range(draw.choice([0, 1, 1, 2])):
            x = drawn(1000 * seed + len(produced))
            produced.append(x.clone())
            pending.add(x, 1.0, version, 0.0, None)
        open_ones.append(pending.take(number))
        version = draw.choice([version, number])
        while open_ones and draw.random() < 0.6:
            one = open_ones.pop(draw.randrange(len(open_ones)))
            if draw.random() < 0.4:
                pending.give_back(one)
            elif one.vector is not None:
                taken.append(one.vector)
    for one in open_ones:
        pending.give_back(one)
    waits = [entry.vector for entry in pending.entries]
    for wanted, came, waiting, left in zip(
        total(produced), total(taken), total(waits), errors(pending.coding), strict=True
    ):
        torch.testing.assert_close(came + waiting + left, wanted, rtol=1e-4, atol=1e-3)
    whole = pending.take(25, is_pause=True)
    if whole.vector is not None:
        assert pending.coding.error is None
        for wanted, came, last in zip(total(produced), total(taken), total([whole.vector]), strict=True):
            torch.testing.assert_close(came + last, wanted, rtol=1e-4, atol=1e-3)


def test_what_a_checkpoint_keeps_is_as_it_was_after_its_round() -> None:
    """What was given to rounds behind it waits again, and is not left out."""
    pending = PendingGradients(Agreed(size=3))
    pending.coding = coding("top-k")
    snapshots: dict[int, Any] = {}
    for number in range(1, 6):
        pending.add(drawn(number), 1.0, number - 1, 0.0, None)
        snapshots[number] = pending.take(number)
    kept = pending.kept(snapshots, 2)
    assert kept.error is not None and len(kept.entries) == 3
    for part in (0, 1):
        given = snapshots[1].vector.parts[part] + snapshots[2].vector.parts[part]
        left = drawn(1).parts[part] + drawn(2).parts[part] - given
        torch.testing.assert_close(kept.error.parts[part], left, rtol=1e-4, atol=1e-4)
    again = PendingGradients(Agreed(size=3))
    again.coding = coding("top-k")
    again.restore(kept)
    assert again.coding.error is kept.error


def test_what_came_back_leaves_the_error_as_it_was_to_the_bit() -> None:
    """So what is given next is what it would have been had the round not asked, unless something was given since."""
    asked, never = PendingGradients(Agreed(size=3)), PendingGradients(Agreed(size=3))
    for one in (asked, never):
        one.coding = coding("top-k")
        one.add(drawn(1), 1.0, 0, 0.0, None)
        one.take(1)
        one.add(drawn(2), 1.0, 1, 0.0, None)
    two = asked.take(2)
    asked.add(drawn(3), 1.0, 2, 0.0, None)
    three = asked.take(3, is_pause=True)
    for snapshot in (three, two):
        asked.give_back(snapshot)
    never.add(drawn(3), 1.0, 2, 0.0, None)
    given = [one.take(4).vector for one in (asked, never)]
    assert given[0] is not None and given[1] is not None
    assert all(torch.equal(a, b) for a, b in zip(given[0].parts, given[1].parts, strict=True))
    assert asked.coding is not None and never.coding is not None
    assert all(torch.equal(a, b) for a, b in zip(errors(asked.coding), errors(never.coding), strict=True))


def test_small_tensors_and_the_header_are_exact_and_what_is_not_finite_is_given_as_it_is() -> None:
    one = coding("top-k")
    x = drawn(1)
    given = one.encode(x, 1, empty_vector).vector
    assert torch.equal(given.parts[2], x.parts[2]) and not torch.equal(given.parts[0], x.parts[0])
    assert one.error is not None
    before = one.error.clone()
    x.parts[0][3] = torch.inf
    again = one.encode(x, 2, empty_vector)
    assert again.vector is x and again.code is None
    assert all(torch.equal(a, b) for a, b in zip(before.parts, one.error.parts, strict=True))


@pytest.mark.parametrize("name", ["half", "top-k", "random-k", "sign", "qsgd", "blocks", "natural", "one-bit"])
def test_a_code_says_what_is_given_to_the_bit(name: str) -> None:
    """To whoever has it, and knows who has given it to which round; and it is as long as is foretold."""
    own = Coding(codecs.get(name)(), LAYOUT, 7, 2, feeds_back=False)
    made = own.encode(drawn(1), 5, empty_vector)
    given, code = made.vector, made.code
    other = Coding(codecs.get(name)(), LAYOUT, 7, 0, feeds_back=False).codes
    assert code is not None and code.layout is own.codes.layout(LAYOUT)
    for x, foretold in zip(code.parts, code.layout.parts, strict=True):
        assert (x.numel(), x.dtype) == (foretold.numel, foretold.dtype)
    found = other.decoded(code, LAYOUT, 5, 2, empty_vector)
    assert all(torch.equal(a, b) for a, b in zip(found.parts, given.parts, strict=True))
    assert nbytes_of(code) < nbytes_of(given)


def test_codes_whose_length_depends_on_the_numbers_have_none() -> None:
    one = Coding(codecs.get("threshold")(), LAYOUT, 0, 0, feeds_back=True)
    assert one.codes.layout(LAYOUT) is None and one.encode(drawn(1), 1, empty_vector).code is None


def test_without_feedback_nothing_is_remembered() -> None:
    one = Coding(codecs.get("half")(), LAYOUT, 0, 0, feeds_back=False)
    x = drawn(1)
    given = one.encode(x, 1, empty_vector)
    assert one.error is None and one.undone(given, None) is None


def test_layers_that_stay_keep_what_was_left_out() -> None:
    one = coding("top-k")
    one.encode(drawn(1), 1, empty_vector)
    assert one.error is not None
    old = one.error.segment(2).clone()
    one.lay_out(
        layout_of([("c", torch.zeros(3, 40)), ("d", torch.zeros(9, 9))], header=2, coded=lambda name, x: x.dim() > 1)
    )
    assert torch.equal(one.error.segment(0), old) and not one.error.segment(1).any()


@pytest.mark.parametrize("zeros", [0, 1500, 1999, 2000])
def test_what_is_mostly_zeros_is_a_short_message_and_the_same_bits(zeros: int) -> None:
    layout = layout_of([("a", torch.zeros(2000)), ("b", torch.zeros(3))], part_bytes=8000, first_part_bytes=12)
    x = Flat([torch.randn(p.numel) for p in layout.parts], layout)
    for part in x.parts:
        if part.numel() == 2000:
            part[torch.randperm(2000)[:zeros]] = 0.0
    tensors, are_sparse = sparse_written(x)
    assert any(are_sparse) == (zeros >= 1500)
    nbytes = sum(one.nbytes for one in tensors)
    assert nbytes == (8 * (2000 - zeros) if any(are_sparse) else 8000) + 12
    again = sparse_read(tensors, are_sparse, layout, empty_vector)
    assert all(torch.equal(a, b) for a, b in zip(again.parts, x.parts, strict=True))
