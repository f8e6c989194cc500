"""The headers of messages between the workers of a replica, as they are on the connections."""

from __future__ import annotations

import json

import pytest

from quorate.core.fields import Fields
from quorate.sharding.by_fsdp import StepCalls
from quorate.sharding.collectives import Unused
from quorate.sharding.stages.between import OutputFields, PassFields

MESSAGES: list[tuple[Fields, str]] = [
    (PassFields(True, False), '{"learns": true, "is_there": false}'),
    (OutputFields([True], [([2, 3], "float32")]), '{"learns": [true], "likes": [[[2, 3], "float32"]]}'),
    (Unused([1, 4]), '{"unused": [1, 4]}'),
    (StepCalls(["all_gather of 0"]), '{"calls": ["all_gather of 0"]}'),
]


@pytest.mark.parametrize(("message", "text"), MESSAGES, ids=[type(message).__name__ for message, _ in MESSAGES])
def test_the_keys_are_those_of_earlier_versions(message: Fields, text: str) -> None:
    assert json.dumps(message.header()) == text
    assert json.dumps(type(message).read(json.loads(text)).header()) == text


def test_an_empty_header_has_no_list() -> None:
    assert StepCalls.read({}).calls is None
    assert Unused.read({"operation": "reduce_scatter"}).unused == ()
