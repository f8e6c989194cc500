"""Values of the board: their bytes, which workers of one run exchange, and back."""

from __future__ import annotations

import pytest

from quorate.checkpoint.folder import WrittenPart
from quorate.checkpoint.loading import Choice
from quorate.core.fields import Fields
from quorate.data.same_data import Sample
from quorate.gossip.exchanges import Announcements
from quorate.launch.run.requests import Report, UnderWay, Whereabouts
from quorate.launch.worker.gangs import Gang
from quorate.observe.ends import FirstEnd, StopRequest
from quorate.observe.local_changes import Values
from quorate.rounds.messages import Lease
from quorate.train.relayout import Announcement
from quorate.wire.failure import FailedRound, FailureReport

PLACE = Whereabouts(["a.py:1 in f"], "a.py:1 in f", None, 2.5, [], [3], {"other": "b.py:2 in g"})
WAITS = Whereabouts([], "", UnderWay("barrier", [0, 1], 1.5), 2.5, ["main #1 barrier"], [], {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            FailureReport(2, "h", "was killed", "replica 1, shard 0", "died", []),
            '{"rank": 2, "host": "h", "reason": "was killed", "coordinates": "replica 1, shard 0", '
            '"kind": "died", "ranks": []}',
        ),
        (FailedRound("quorum", 17), '{"strategy": "quorum", "round": 17}'),
        (Lease(3, 1), '{"term": 3, "leads": 1}'),
        (StopRequest(1, "enough"), '{"rank": 1, "reason": "enough"}'),
        (FirstEnd(1, "2", 30, True), '{"rank": 1, "name": "2", "steps": 30, "had_more": true}'),
        (Values([{"lr": 0.1}]), '{"options": [{"lr": 0.1}]}'),
        (
            Values([], [1], {"momentum of 0": 2}, [3], False),
            '{"options": [], "parameters": [1], "state": {"momentum of 0": 2}, "gradient": [3], "edited": false}',
        ),
        (Announcement(0, 7, "a is frozen"), '{"rank": 0, "step": 7, "words": "a is frozen"}'),
        (Announcements({"0": 4}), '{"said": {"0": 4}, "begins": null}'),
        (Choice("step-00000200"), '{"name": "step-00000200", "sentences": [], "refused": [], "error": null}'),
        (
            WrittenPart({"a": {"bytes": 3}}, None),
            '{"files": {"a": {"bytes": 3}}, "shared": null, "keep": null, "best": null}',
        ),
        (
            Sample(0, 10, {"seed": 1}, {"0": [1, [[0.5]]]}),
            '{"rank": 0, "examples": 10, "choices": {"seed": 1}, "items": {"0": [1, [[0.5]]]}}',
        ),
        (Gang("w", {"1": "v"}), '{"name": "w", "words": {"1": "v"}}'),
        (Report(2, "all wait"), '{"rank": 2, "text": "all wait"}'),
        (
            PLACE,
            '{"stack": ["a.py:1 in f"], "script": "a.py:1 in f", "waits": null, "now": 2.5, "recent": [], '
            '"steps": [3], "threads": {"other": "b.py:2 in g"}}',
        ),
        (
            WAITS,
            '{"stack": [], "script": "", "waits": {"for": "barrier", "ranks": [0, 1], "since": 1.5}, "now": 2.5, '
            '"recent": ["main #1 barrier"], "steps": [], "threads": {}}',
        ),
    ],
)
def test_the_bytes_of_a_value(value: Fields, text: str) -> None:
    assert value.to_bytes() == text.encode()
    assert type(value).from_bytes(text.encode()) == value
