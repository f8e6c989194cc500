"""A model of what was timed in a script."""

from __future__ import annotations

from typing import Any

import pytest

from quorate.planning.measured import model_from

SPREAD = [1.0, 1.0, 1.0 + 0.1 / (2 * 0.5**0.5 - 1)]
"""Its quantile of 0.5 ** 0.5 is 1.1."""


def size(numbers: int, block: str) -> dict[str, Any]:
    """In float32, used in 16 bits, under Adam."""
    return {
        "numbers": numbers, "rows": numbers, "bytes": 4 * numbers, "gathered_bytes": 2 * numbers, "is_trained": True,
        "kept_like": 8 * numbers, "kept_apart": 4, "block": block,
    }  # fmt: skip


TOLD: dict[str, Any] = {
    "model": "Net",
    "memory": {"sizes": [size(10, ""), size(100, "a"), size(100, "b"), size(30, "")], "buffers": 0, "activations": 0},
    "activations": {"a": 80, "b": 80, "": 40},
    "cuts": {
        "2": {"": 30, "a": 50, "b": 100},
        "3": "a.query has 8 heads of 16, which 3 workers cannot share evenly; take another number",
    },
    "times": {
        "examples": 4, "blocks": {"a": [8.0, 16.0], "b": [8.0, 16.0]}, "rest": [4.0, 8.0], "fixed": [0.25, 0.5],
        "update": 2.4, "outside": 0.5, "outputs": {"a": 40, "b": 40}, "steps": 4,
    },
}  # fmt: skip


def test_blocks() -> None:
    """Parameters before the first block lie with it, those after the last with that one, and their seconds too."""
    model = model_from(TOLD, None, 3)
    first, last = model.blocks
    assert (first.numbers, last.numbers, model.numbers) == (110, 130, 240)
    assert (first.forward, first.backward, first.weight, first.fixed) == (1.5, 1.0, 1.0, (2.0, 8.0))
    assert (last.forward, last.backward, last.weight, last.fixed) == (2.25, 1.5, 1.5, (3.0, 12.0))
    assert (first.saved, last.saved, first.output, first.sums) == (20, 30, 10, 20)
    assert first.cut == pytest.approx(50 / 110) and last.cut == 1
    assert last.saved_cut == pytest.approx(24 / 34)


def test_numbers_and_seconds_for_each() -> None:
    model = model_from(TOLD, None, 3)
    assert (model.batch, model.bytes_each, model.gathered_each, model.kept_each) == (12, 4, 2, 8)
    assert (model.update, model.outside) == (2.4 / 240, 0.5)
    assert model_from(TOLD, 20, 3).batch == 20


def test_which_tensor_axes_can_be() -> None:
    model = model_from(TOLD, None, 3)
    assert model.known_tensors == (1, 2) and model.can_be_cut
    assert model.refused == {3: "a.query has 8 heads of 16, which 3 workers cannot share evenly"}
    assert not model_from({**TOLD, "cuts": {"2": {"": 0, "a": 0}}}, None, 3).can_be_cut


def test_a_model_without_blocks_is_one() -> None:
    times = {**TOLD["times"], "blocks": {}, "outputs": {}}
    measurements = {**TOLD, "times": times, "memory": {"sizes": [size(10, ""), size(30, "")]}, "activations": {"": 40}}
    (only,) = model_from(measurements, None, 2).blocks
    assert (only.name, only.numbers, only.saved) == ("all of it", 40, 10)
    assert only.forward * 4 + only.fixed[0] == 4.0


def test_what_two_workers_take_in_shards() -> None:
    """Alone: 20 s forward and 40 backward, half a second outside. A gather takes 3 s more, and a reduction 4."""
    times = {**TOLD["times"], "pieces": {"shards": {"outside": 1.5, "model": 22.0, "backward": 47.0}}}
    model = model_from({**TOLD, "times": times}, None, 3)
    assert (model.gathering, model.reducing) == (pytest.approx(3 / 240), pytest.approx(4 / 240))
    assert model.blocks[0].seconds_cut is None
    unknown = model_from({**TOLD, "times": {**TOLD["times"], "copied": 0.5}}, None, 3)
    assert (unknown.gathering, unknown.reducing) == (2 * 0.5 * 2, 2 * 0.5 * 4), "by copies, twice"


def test_what_two_workers_take_on_a_tensor_axis() -> None:
    """Forward, 10 of 15 s for examples are divided; backward, all of 20, and nothing is quicker than half."""
    tensor = {"outside": 0.5, "model": 16.0, "backward": 12.0, "fixed": [6 / 16, 4 / 12]}
    model = model_from({**TOLD, "times": {**TOLD["times"], "pieces": {"tensor": tensor}}}, None, 3)
    first, last = model.blocks
    assert first.seconds_cut == last.seconds_cut == (pytest.approx(10 / 15), 1)
    assert first.fixed_on(1) == first.fixed == (2.0, 8.0)
    assert first.fixed_on(2) == (pytest.approx(6 * 8 / 20), pytest.approx(4 * 16 / 40))
    assert last.fixed_on(4) == (pytest.approx(6 * 12 / 20), pytest.approx(4 * 24 / 40))
    assert first.passes(2)[0] == pytest.approx(1.5 * 2 / 3)


def test_a_tensor_axis_may_be_slower_than_one_worker() -> None:
    tensor = {"outside": 0.5, "model": 30.0, "backward": 40.0, "fixed": [0.0, 0.5]}
    model = model_from({**TOLD, "times": {**TOLD["times"], "pieces": {"tensor": tensor}}}, None, 3)
    assert model.blocks[0].seconds_cut == (0, 0)
    assert sum(block.fixed_on(2)[0] for block in model.blocks) == pytest.approx(30 - 15)


def test_what_the_processor_did_of_it() -> None:
    """Half of it was waiting; alone the processor works for four fifths of a step, by which its seconds are divided."""
    shards = {"outside": 1.5, "model": 22.0, "backward": 47.0}
    worked = {"outside": 0.8 * 1.0, "model": 0.8 * 21.0, "backward": 0.8 * 43.5}
    times = {**TOLD["times"], "processor": 0.8, "pieces": {"shards": {**shards, "processor": worked}}}
    model = model_from({**TOLD, "times": times}, None, 3)
    assert (model.gathering, model.reducing) == (pytest.approx(3 / 240), pytest.approx(4 / 240))
    other = model.by_processor
    assert other is not None and other.by_processor is None
    assert (other.gathering, other.reducing) == (pytest.approx(1.5 / 240), pytest.approx(2 / 240))
    assert model_from(TOLD, None, 3).by_processor is None


def test_how_much_longer_a_crowd_takes() -> None:
    assert model_from(TOLD, None, 3).crowding == 1.0
    assert model_from({**TOLD, "times": {**TOLD["times"], "crowding": 1.3}}, None, 3).crowding == 1.3
