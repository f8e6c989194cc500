"""Trainings along the axes of a mesh on GPUs: bytes of tensors that go by messages, and the order of collectives."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest

from quorate.core.contracts import Message
from quorate.wire.real.mailbox import Mailbox
from tests.support.on_gpu import run_on_gpu
from tests.support.second_device import process_group

T = TypeVar("T")
_OWN = re.compile(
    r"/rounds|/neighbours|/headers|uint8|scatter from 0$|(all_gather|broadcast from 0) (torch\.)?int64|within.*float64"
)
"""Messages of strategies between replicas, which send vectors of the hosts' memory; texts, counts and decisions."""


def run_counted(size: int, task: Callable[[Any], T], timeout: float = 100.0, **_: Any) -> list[T]:
    """As `run_on_gpu` by NCCL, or what stands in. No tensor of an axis may go by messages, and no GPU wait for ever."""
    found = run_on_gpu(size, partial(_counted, task), timeout, gpus="nccl", has_data=True)
    total = Counter[str]()
    for _, sent, _ in found:
        total += sent
    assert not total, f"bytes of tensors by messages, by channel: {dict(total)}"
    assert process_group.differences([log for _, _, log in found]) == []
    return [result for result, _, _ in found]


def _counted(task: Callable[[Any], T], world: Any) -> tuple[T, Counter[str], list[process_group.Call]]:
    sent = Counter[str]()
    send: Any = Mailbox.send

    def counted(mailbox: Mailbox, message: Message, to: int, tag: str, *more: Any) -> Any:
        nbytes = sum(x.nbytes for x in message.tensors)
        operation = message.header.get("operation", "")
        if nbytes and "/mesh/" in tag and not _OWN.search(f"{tag} {operation}"):
            sent[f"{re.sub(r'[0-9,]+', '#', tag)} {operation}"] += nbytes
        return send(mailbox, message, to, tag, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mailbox, "send", counted)
        result = task(world)
    return result, sent, list(process_group.LOG)
