"""`compress="auto"`: what is chosen, by equations and in virtual worlds with networks of known speed."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import pytest
import torch

from quorate.buckets.flat import layout_of
from quorate.core.contracts import Wire
from quorate.core.vectors import Flat
from quorate.means.auto_codec import AutoCodec, AutoCodecSettings
from quorate.means.codec_choice import PAIRS, Cost, best_codecs, choices, end_of, gain
from quorate.wire.virtual.network import Network
from quorate.wire.virtual.world import VirtualWorld
from tests.support.scene import Scene, net

LAYOUT = layout_of(
    [("a", torch.zeros(80, 60)), ("bias", torch.zeros(7)), ("b", torch.zeros(50, 70)), ("c", torch.zeros(64, 64))],
    header=2,
    part_bytes=18_000,
    first_part_bytes=18_000,
    coded=lambda name, x: x.dim() > 1,
)
CODED = [number for number, part in enumerate(LAYOUT.parts) if part.coded]
SLOW, FAST = Network(latency=1e-5, bandwidth=1e6), Network(latency=1e-6, bandwidth=1e15)


def drawn(*seeds: int) -> Flat:
    draw = torch.Generator().manual_seed(hash(seeds) % 2**31)
    return Flat([torch.randn(p.numel, generator=draw) for p in LAYOUT.parts], LAYOUT)


def sums(
    wire: Wire, steps: int, constant: bool = False, between: Any = None, **settings: Any
) -> tuple[AutoCodec, list[Flat], list[tuple[dict[str, str], str]]]:
    """Return the reducer after `steps` sums, the sums, and what it has noted; inputs are those of `drawn`."""
    reducer, notes, totals = AutoCodec(LAYOUT, wire, AutoCodecSettings(**settings), seed=5), [], []
    reducer.choice_notes.append(lambda codecs, why: notes.append((dict(codecs), why)))
    for step in range(steps):
        x = drawn(wire.rank, 0 if constant else step)
        wire.clock.sleep(0.001)
        totals.append(reducer.start(x).wait().clone())
        if between is not None:
            between(step, reducer)
    return reducer, totals, notes


def together(size: int, network: Network, *of: Any, **settings: Any) -> list[Any]:
    return VirtualWorld(size, network=network, timeout=30.0).run(lambda wire: sums(wire, *of, **settings))


# -- the equations


def test_the_wire_of_one_part_overlaps_with_what_is_computed_and_encoded_after_it() -> None:
    costs = [Cost(0.0, 3.0, 1.0), Cost(0.0, 1.0, 0.5)]
    assert end_of([0.0, 2.0], costs) == 4.5, "part 0 leaves at 0 and is there at 3; part 1 at 4"
    assert end_of([0.0, 9.0], costs) == 10.5, "part 0 is decoded once the backward pass is over"
    assert end_of([0.0, 9.0], [Cost(2.0, 3.0, 1.0), costs[1]]) == 12.5, "encoding delays what comes after it"
    assert end_of([], []) == 0.0


@pytest.mark.seeds(1, 20)
def test_the_choice_is_the_best_of_all_for_few_parts(seed: int) -> None:
    draw = random.Random(seed)
    count, names = draw.randint(1, 4), ["none", "half", "top-k"]
    ready = sorted(draw.random() for _ in range(count))
    costs = [{name: Cost(draw.random() / 9, draw.random(), draw.random() / 9) for name in names} for _ in range(count)]

    def end(choice: Any) -> float:
        return end_of(ready, [of_part[name] for of_part, name in zip(costs, choice, strict=True)])

    shortest = min(map(end, itertools.product(names, repeat=count)))
    assert end(best_codecs(ready, costs)) <= 1.05 * shortest, "single changes find it, or nearly"
    for choice in choices(ready, costs, "none"):
        assert end(choice) < end(["none"] * count)


def test_a_codec_that_saves_only_while_nobody_waits_is_not_chosen() -> None:
    """The first part is on the wire long before the last one is ready: to write it smaller would gain nothing."""
    of_part = {"none": Cost(0.0, 1.0, 0.0), "half": Cost(0.1, 0.5, 0.1)}
    assert best_codecs([0.0, 5.0], [of_part, of_part]) == ["none", "half"]
    assert choices([0.0, 5.0], [of_part, {"none": of_part["none"]}], "none") == []


def test_a_gain_needs_more_than_chance() -> None:
    assert gain([1.0] * PAIRS, [0.5] * PAIRS).low == pytest.approx(2.0)
    noisy = gain([1.0, 1.2, 0.9, 1.1, 1.0, 0.8], [1.0, 0.9, 1.1, 0.9, 1.0, 0.95])
    assert noisy.low < 1 < noisy.high


# -- in virtual worlds


def test_on_a_fast_network_sums_stay_dense() -> None:
    for reducer, totals, notes in together(3, FAST, 6):
        assert set(reducer.state.codecs) == {"none"}
        assert notes == [(dict.fromkeys(map(str, CODED), "none"), "no codec is expected to shorten a step")]
        wanted = [sum(drawn(rank, 5).parts[n] for rank in range(3)) for n in range(len(LAYOUT.parts))]
        for part, total in zip(wanted, totals[5].parts, strict=True):
            torch.testing.assert_close(part, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_on_a_slow_network_the_codec_of_fewest_bytes_is_chosen_by_all_alike(size: int) -> None:
    """In a virtual world encoding takes no time."""
    results = together(size, SLOW, 40, candidates=("half", "top-k:density=0.1", "qsgd"), agreement=-1.0)
    for reducer, totals, notes in results:
        assert set(reducer.state.codecs) == {"top-k:density=0.1"}
        assert notes == results[0][2] and "times" in notes[-1][1] and "as fast as with dense sums" in notes[-1][1]
        for total, other in zip(totals, results[0][1], strict=True):
            assert all(map(torch.equal, total.parts, other.parts))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "candidates",
    [("top-k:density=0.1",), ("one-bit",), ("power-sgd:rank=2,start=0,min_rate=1.5",), ("half", "qsgd")],
)
def test_whatever_is_tried_and_taken_back_errors_and_results_add_up_to_the_inputs(
    size: int, candidates: tuple[str, ...]
) -> None:
    steps = 40
    results = together(size, SLOW, steps, candidates=candidates, agreement=-1.0)
    for index, segment in enumerate(LAYOUT.segments):
        wanted = sum(drawn(rank, step).segment(index).double() for rank in range(size) for step in range(steps))
        received = sum(x.segment(index).double() for x in results[0][1])
        memories = [reducer.state for reducer, _, _ in results]
        left = sum((s.errors.segment(index) + s.owned.segment(index)).double() for s in memories)
        close = 1e-3 if "half" not in candidates else 2.0  # which loses a rounding
        torch.testing.assert_close(received + left, wanted, rtol=close, atol=close)
        assert segment.name != "bias" or not left.any()
    if size > 1 and "half" not in candidates:
        assert set(results[0][0].state.codecs) != {"none"}


def test_a_codec_that_does_not_agree_with_dense_sums_is_taken_back_and_the_next_one_tried() -> None:
    """Here gradients are noise around nothing: top-k of a hundredth sends hardly any of a window in time."""
    settings = {"candidates": ("top-k:density=0.01", "half"), "agreement": 0.9, "window": 4, "every": 100}
    for reducer, _, notes in together(2, SLOW, 70, **settings):
        assert set(reducer.state.codecs) == {"half"}
        assert set(reducer.state.barred) == {f"{part}:top-k:density=0.01" for part in CODED}
        assert any("chosen again: the cosine of sums and dense sums over 4 steps is 0." in why for _, why in notes)


def test_a_choice_that_does_not_pay_in_steps_is_taken_back() -> None:
    """Something that measurements of single sums have not shown makes sums with the codec slow."""

    def task(wire: Wire) -> tuple[AutoCodec, list[tuple[dict[str, str], str]]]:
        def slower(step: int, reducer: AutoCodec) -> None:
            if step == 0:
                reducer.start = partial(started, reducer, reducer.start)  # type: ignore[method-assign]

        def started(reducer: AutoCodec, start: Any, x: Flat) -> Any:
            work = start(x)
            if "half" in reducer._plan:
                wire.clock.sleep(0.15)
            return work

        reducer, _, notes = sums(wire, 40, between=slower, candidates=("half",))
        return reducer, notes

    for reducer, notes in VirtualWorld(2, network=SLOW, timeout=30.0).run(task):
        assert set(reducer.state.codecs) == {"none"}
        assert "a step with codecs is only 0." in notes[-1][1]


def test_a_codec_that_agrees_is_kept() -> None:
    for reducer, _, notes in together(2, SLOW, 60, candidates=("top-k:density=0.3",), window=16, agreement=0.8):
        assert set(reducer.state.codecs) == {"top-k:density=0.3"} and len(notes) == 1


def test_codecs_are_measured_again_where_the_wire_has_changed() -> None:
    def faster(step: int, reducer: AutoCodec) -> None:
        if step == 30:
            reducer._wire_seconds *= 3.0

    settings = {"candidates": ("half",), "window": 4, "every": 20, "agreement": 0.5}
    for _, _, notes in together(2, SLOW, 70, between=faster, **settings):
        reasons = [why for _, why in notes]
        assert any("codecs are measured again: a dense part takes" in why for why in reasons)
        assert "as fast as with dense sums" in reasons[-1]


def test_a_gradient_that_is_not_finite_leaves_no_trace_in_the_errors() -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        reducer = AutoCodec(LAYOUT, wire, AutoCodecSettings(candidates=("top-k:density=0.1",), agreement=-1.0), seed=5)
        for step in range(40):
            x = drawn(wire.rank, step)
            if step == 35 and wire.rank == 1:
                x.segment(0).view(-1)[3] = torch.inf
            total = reducer.start(x).wait()
            if step == 35:
                bad = total.clone()
        return bad, reducer.state.errors

    for bad, errors in VirtualWorld(2, network=SLOW, timeout=30.0).run(task):
        assert not bad.segment(0).isfinite().all() and all(part.isfinite().all() for part in errors.parts)


def test_a_sum_that_is_retracted_leaves_the_errors() -> None:
    def task(wire: Wire) -> tuple[Flat, Flat]:
        reducer, _, _ = sums(wire, 40, candidates=("top-k:density=0.1",), agreement=-1.0)
        before = reducer.state.errors.clone()
        reducer.start(Flat.zeros(LAYOUT)).wait()
        reducer.retract()
        return before, reducer.state.errors

    for before, after in VirtualWorld(2, network=SLOW, timeout=30.0).run(task):
        assert all(map(torch.equal, before.parts, after.parts)) and any(part.any() for part in after.parts)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"candidates": ("dgc",)}, '"dgc" is no candidate of compress="auto"'),
        ({"candidates": ("threshold:at=1.0,of=absolute",)}, '"threshold:at=1.0,of=absolute" is no candidate'),
        ({"candidates": ("power-sgd",)}, '"power-sgd" is no candidate'),
        ({"candidates": ("auto",)}, '"auto" is no candidate'),
        ({"candidates": ("tip-k",)}, 'unknown codec "tip-k"'),
        ({"agreement": 1.5}, "agreement is 1.5; it must be a cosine"),
        ({"window": 9, "every": 9}, "window is 9 and every 9"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        AutoCodecSettings(**settings)


@pytest.mark.parametrize("call", [20, 60, 80])
def test_survivors_of_a_death_go_on_with_dense_sums(call: int) -> None:
    """While codecs are measured, while choices take turns, and under a codec."""
    settings = {"compress": "auto", "candidates": ("top-k:density=0.1",), "dense_below": 1, "agreement": -1.0}
    scene = Scene(
        "all-reduce",
        3,
        model=lambda: net(6, 40, 3),
        steps=40,
        loss=lambda t: (t.model(x := t.draw()) - x[:, :3]).square().mean(),
        deaths={1: call},
        on_death="continue",
        settings=settings,
        world={"network": SLOW, "timeout": 30.0},
    )
    first, other = scene.survivors().values()
    assert torch.equal(first.parameters, other.parameters) and first.step == 40
    reducer = first.worker.means.reducer.of
    x = drawn(0)
    assert set(reducer.state.codecs) == {"none"}
    assert all(a is b for a, b in zip(reducer.message(x), x.parts, strict=True))
