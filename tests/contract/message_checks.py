"""What messages, board, spawned tasks and clock must do, on any wire of any size."""

from __future__ import annotations

import pytest
import torch

from quorate.core.contracts import Message, Wire
from quorate.core.errors import ConfigurationError, WireTimeout


def check_identity(wire: Wire) -> bytes:
    assert 0 <= wire.rank < wire.size
    assert sorted(int(x) for x in wire.all_gather(torch.tensor(wire.rank)).wait()) == list(range(wire.size))
    return f"{wire.size} {wire.timeout} {wire.name}".encode()


def check_first_in_first_out(wire: Wire) -> bytes:
    count = 4 if wire.size > 16 else 10
    for k in range(count):
        for peer in range(wire.size):
            wire.send(Message((torch.tensor([wire.rank, k]),), {"k": k}), peer, "fifo")
    for peer in range(wire.size):
        for k in range(count):
            sender, message = wire.receive(peer, "fifo").wait()
            assert sender == peer
            assert message.header == {"k": k}
            assert message.tensors[0].tolist() == [peer, k]
    return b""


def check_urgent_messages_overtake_others_at_most(wire: Wire) -> bytes:
    for peer in range(wire.size):
        wire.send(Message((torch.zeros(1 << 14),), {"k": 0}), peer, "urgent or not")
        for k in ("first", "second"):
            wire.send(Message((), {"k": k}, urgent=True), peer, "urgent or not")
        wire.send(Message((), {"k": 1}), peer, "urgent or not")
    for peer in range(wire.size):
        seen = [wire.receive(peer, "urgent or not").wait()[1].header["k"] for _ in range(4)]
        assert [k for k in seen if k in (0, 1)] == [0, 1]
        assert [k for k in seen if k not in (0, 1)] == ["first", "second"]
    return b""


def check_receive_before_send(wire: Wire) -> bytes:
    source, target = (wire.rank - 1) % wire.size, (wire.rank + 1) % wire.size
    receives = [wire.receive(source, "early") for _ in range(3)]
    for k in range(3):
        wire.send(Message((), {"k": k}), target, "early")
    assert [work.wait()[1].header["k"] for work in reversed(receives)] == [2, 1, 0]
    assert all(work.done() for work in receives)
    return b""


def check_tags_do_not_mix(wire: Wire) -> bytes:
    target, source = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    for tag in ("b", "a", "a/b"):
        wire.send(Message((), {"tag": tag}), target, tag)
    for tag in ("a/b", "a", "b"):
        assert wire.receive(source, tag).wait()[1].header == {"tag": tag}
    return b""


def check_channels_do_not_mix(wire: Wire) -> bytes:
    target, source = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    left, right = wire.channel("left"), wire.channel("right")
    left.send(Message((), {"way": "left"}), target, "t")
    right.send(Message((), {"way": "right"}), target, "t")
    wire.send(Message((), {"way": "root"}), target, "t")
    assert wire.receive(source, "t").wait()[1].header == {"way": "root"}
    assert right.receive(source, "t").wait()[1].header == {"way": "right"}
    assert left.receive(source, "t").wait()[1].header == {"way": "left"}
    return b""


def check_receive_from_anyone(wire: Wire) -> bytes:
    for k in range(2):
        for peer in range(wire.size):
            wire.send(Message((), {"k": k}), peer, "any")
    seen: dict[int, list[int]] = {}
    for _ in range(2 * wire.size):
        sender, message = wire.receive(None, "any").wait()
        seen.setdefault(sender, []).append(message.header["k"])
    assert seen == {rank: [0, 1] for rank in range(wire.size)}
    return b""


def check_a_message_to_oneself_is_a_copy(wire: Wire) -> bytes:
    x = torch.arange(4.0)
    wire.send(Message((x,)), wire.rank, "self").wait()
    x.zero_()
    _, message = wire.receive(wire.rank, "self").wait()
    assert message.tensors[0].tolist() == [0, 1, 2, 3]
    return b""


def check_the_sender_may_write_once_its_work_is_done(wire: Wire) -> bytes:
    target, source = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    x = torch.full((1000,), float(wire.rank))
    work = wire.send(Message((x,)), target, "reuse")
    receive = wire.receive(source, "reuse")
    work.wait()
    x.fill_(-1)
    assert receive.wait()[1].tensors[0].eq(source).all()
    return b""


LARGE = 40_000
"""Elements that go through shared memory where there is some."""


def check_large_messages_are_private_unless_shared(wire: Wire) -> bytes:
    target, source = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    x = wire.empty(LARGE, torch.float32).fill_(wire.rank)
    work = wire.send(Message((x,)), target, "large")
    receive = wire.receive(source, "large")
    work.wait()
    x.fill_(-1)
    theirs = receive.wait()[1].tensors[0]
    assert theirs.eq(source).all()
    theirs.fill_(-2)
    wire.barrier().wait()
    assert x.eq(-1).all()
    return b""


def check_shared_messages(wire: Wire) -> bytes:
    rounds = []
    for number in range(6):
        mine = wire.empty(LARGE, torch.float32)
        mine.copy_(torch.arange(LARGE) + 100.0 * wire.rank + number)
        pieces = (mine[:100], mine.view(100, -1)[7:], torch.full((LARGE,), number, dtype=torch.float64), mine)
        for peer in range(wire.size):
            wire.send(Message(pieces, {"number": number}, shared=True), peer, "shared")
        rounds.append(mine)
    for number in range(6):
        for peer in range(wire.size):
            _, message = wire.receive(peer, "shared").wait()
            expected = torch.arange(LARGE) + 100.0 * peer + number
            first, second, third, whole = message.tensors
            assert message.header == {"number": number}
            assert first.equal(expected[:100])
            assert second.equal(expected.view(100, -1)[7:])
            assert third.eq(number).all()
            assert whole.equal(expected)
    assert all(x[0] == 100 * wire.rank + number for number, x in enumerate(rounds))
    return b""


def check_what_a_message_can_hold(wire: Wire) -> bytes:
    tensors = (
        torch.tensor(3, dtype=torch.int16),
        torch.empty(0, 4),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.tensor([True, False]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float64, requires_grad=True),
        torch.ones(2).to(torch.float8_e4m3fn),
    )
    header = {"text": "ä", "none": None, "list": [1, 2.5, [True]], "map": {"a": {"b": []}}}
    target, source = (wire.rank + 1) % wire.size, (wire.rank - 1) % wire.size
    wire.send(Message(tensors, header), target, "rich")
    wire.send(Message(), target, "rich")
    _, rich = wire.receive(source, "rich").wait()
    _, empty = wire.receive(source, "rich").wait()
    assert rich.header == header
    for found, sent in zip(rich.tensors, tensors, strict=True):
        assert (found.dtype, found.shape, found.requires_grad) == (sent.dtype, sent.shape, False)
        assert found.float().equal(sent.detach().float())
    assert (empty.tensors, dict(empty.header)) == ((), {})
    return b""


def check_launching_waits_for_nobody_once_connected(wire: Wire) -> bytes:
    channel = wire.channel("connected")
    channel.connect(torch.device("cpu"))
    channel.all_reduce(torch.ones(3)).wait()
    if wire.rank == 0:
        work = channel.all_reduce(torch.ones(3))
        for peer in range(1, wire.size):
            wire.send(Message(), peer, "launched")
    else:
        wire.receive(0, "launched").wait()
        work = channel.all_reduce(torch.ones(3))
    assert work.wait().eq(wire.size).all()
    return b""


def check_receives_that_time_out(wire: Wire) -> bytes:
    with pytest.raises(WireTimeout) as caught:
        wire.receive((wire.rank + 1) % wire.size, "never").wait(timeout=0.05)
    assert caught.value.ranks == ((wire.rank + 1) % wire.size,)
    with pytest.raises(WireTimeout):
        wire.receive(None, "never at all").wait(timeout=0.05)
    late = wire.receive(wire.rank, "late")
    with pytest.raises(WireTimeout):
        late.wait(timeout=0.02)
    wire.send(Message((), {"it": "came"}), wire.rank, "late")
    assert late.wait()[1].header == {"it": "came"}, "a wait that timed out may be repeated"
    return b""


def check_board(wire: Wire) -> bytes:
    board = wire.board
    mine = f"check/{wire.rank}"
    assert board.get(mine) is None
    board.set(mine, b"")
    assert board.get(mine) == b""
    board.set(mine, b"\x00one")
    assert board.get(mine) == b"\x00one"
    assert not board.swap(mine, None, b"two")
    assert not board.swap(mine, b"", b"two")
    assert board.swap(mine, b"\x00one", b"two")
    assert board.get(mine) == b"two"
    board.wait([f"check/{r}" for r in range(wire.size)])
    wire.barrier().wait()
    with pytest.raises(WireTimeout, match="check/never"):
        board.wait([mine, "check/never"], timeout=0.05)
    wire.barrier().wait()
    if wire.rank == 0:
        board.delete("check/")
    wire.barrier().wait()
    assert board.get(mine) is None
    assert board.swap(mine, None, b"new")
    assert board.get(mine) == b"new"
    return b""


def check_one_swap_wins(wire: Wire) -> bytes:
    for turn in range(5):
        wire.barrier().wait()
        if wire.board.swap(f"race/{turn}", None, str(wire.rank).encode()):
            wire.board.add(f"race winners/{turn}")
        wire.barrier().wait()
        assert wire.board.add(f"race winners/{turn}", 0) == 1
    won = wire.board.get("race/0")
    assert won is not None
    return won


def check_swaps_lose_no_update(wire: Wire) -> bytes:
    rounds = 10 if wire.size <= 5 else 2
    for _ in range(rounds):
        while True:
            before = wire.board.get("tally")
            wire.clock.pause()
            if wire.board.swap("tally", before, str(int(before or b"0") + 1).encode()):
                break
    wire.barrier().wait()
    assert wire.board.get("tally") == str(rounds * wire.size).encode()
    return b""


def check_add(wire: Wire) -> bytes:
    numbers = [wire.board.add("numbers") for _ in range(3)]
    assert numbers == sorted(set(numbers))
    wire.barrier().wait()
    assert wire.board.add("numbers", 0) == 3 * wire.size
    wire.barrier().wait()
    wire.board.add("numbers", -3)
    wire.barrier().wait()
    assert wire.board.add("numbers", 0) == 0
    return b""


def check_board_waits_until_written(wire: Wire) -> bytes:
    if wire.rank == wire.size - 1:
        wire.clock.sleep(0.05)
        wire.board.set("first half", b"1")
        wire.clock.sleep(0.05)
        wire.board.set("second half", b"2")
    wire.board.wait(["second half", "first half"])
    assert wire.board.get("second half") == b"2"
    return b""


def check_spawned_task_has_an_order_of_its_own(wire: Wire) -> bytes:
    found: list[float] = []

    def beside(own: Wire) -> None:
        assert (own.rank, own.size) == (wire.rank, wire.size)
        found.extend(own.all_reduce(torch.tensor([float(k)])).wait().item() for k in range(5))

    work = wire.spawn(beside, "beside")
    for k in range(10, 15):
        assert wire.all_reduce(torch.tensor([k])).wait().item() == k * wire.size
    assert work.wait() is None
    assert work.done()
    assert found == [k * wire.size for k in range(5)]
    return b""


def check_spawned_answers(wire: Wire) -> bytes:
    def answer(own: Wire) -> None:
        for _ in range(own.size):
            sender, message = own.receive(None, "question").wait()
            own.send(Message((), {"answer": message.header["number"] + 1}), sender, "answer")
        for peer in range(own.size):
            assert own.receive(peer, "answer").wait()[1].header == {"answer": peer * 10 + own.rank + 1}

    def ask(own: Wire) -> None:
        for peer in range(own.size):
            own.send(Message((), {"number": peer * 10 + own.rank}), peer, "question")
        answer(own)

    assert wire.spawn(ask, "answers").wait() is None
    return b""


def check_spawned_task_that_raises(wire: Wire) -> bytes:
    def fail(own: Wire) -> None:
        own.barrier().wait()
        raise LookupError(f"rank {own.rank} of {own.size}")

    work = wire.spawn(fail, "failing")
    for _ in range(2):
        with pytest.raises(LookupError, match=f"rank {wire.rank} of {wire.size}"):
            work.wait()
    assert work.done()
    wire.barrier().wait()
    return b""


def check_clock(wire: Wire) -> bytes:
    before = wire.clock.now()
    wire.clock.sleep(0.02)
    assert wire.clock.now() - before >= 0.0199
    wire.clock.pause()
    wire.clock.compute(0.5)
    wire.clock.compute(0.5)
    assert wire.clock.now() >= before
    return b""


def check_wrong_arguments(wire: Wire) -> bytes:
    with pytest.raises((ConfigurationError, ValueError)):
        wire.send(Message(), wire.size, "nobody")
    with pytest.raises((ConfigurationError, ValueError)):
        wire.all_to_all([torch.zeros(1)] * (wire.size + 1))
    return b""
