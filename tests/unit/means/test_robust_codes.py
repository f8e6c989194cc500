"""Aggregation rules beside codecs: what comes is the rule on what the codes stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from quorate.aggregation import rules
from quorate.aggregation.rule import aggregated
from quorate.buckets.flat import layout_of
from quorate.codecs import codecs
from quorate.codecs.error_feedback import ERROR, ErrorFeedback
from quorate.core.codec import Codec, Draw, Memory, shapes_in
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.core.vectors import Flat, digest_of, header_in
from quorate.means.robust_codes import RobustCodes
from quorate.strategies import strategies
from quorate.train.reduced import with_reduction
from quorate.wire.metered import Meter, Metered
from quorate.wire.virtual.world import VirtualWorld
from tests.support.scene import Scene, Trainer

LAYOUT = layout_of(
    [("a", torch.zeros(12, 10)), ("b", torch.zeros(7)), ("c", torch.zeros(8, 16))],
    header=2,
    part_bytes=500,
    first_part_bytes=500,
    coded=lambda name, x: x.dim() > 1,
)
SIZE, SALT = 5, int(digest_of(LAYOUT)[:8], 16)
CASES = [
    ("krum", "top-k"),
    ("krum", "half"),
    ("geometric-median", "sign"),
    ("median", "random-k"),
    ("trimmed-mean", "qsgd"),
    ("centered-clipping", "natural"),
    ("median", "fp8"),
    ("centered-clipping", "threshold"),
    ("geometric-median", "terngrad"),
]


def codec_of(name: str) -> Codec:
    codec: Any = codecs.get(name)()
    return ErrorFeedback(codec) if codec.needs_feedback else codec


def drawn(rank: int, step: int, weight: float = 1.0) -> Flat:
    x = Flat.zeros(LAYOUT)
    for number, part in enumerate(x.parts):
        generator = torch.Generator().manual_seed(100 * step + 10 * rank + number)
        part.copy_(weight * (1 + torch.randn(part.shape, generator=generator)))
    header_in(x).copy_(torch.tensor([weight, float(rank)]))
    return x


def numbers_of(x: Flat) -> Tensor:
    return torch.cat([part.reshape(-1) for part in x.bare().parts])


@pytest.mark.parametrize(("rule", "codec"), CASES)
def test_it_is_the_rule_on_decoded_vectors(rule: str, codec: str) -> None:
    """With error feedback kept by hand, over three steps; the same bits on all workers."""

    def task(wire: Wire) -> list[Flat]:
        reducer = RobustCodes(LAYOUT, wire, codec_of(codec), rules.get(rule)(f=1), seed=7)
        return [reducer.start(drawn(wire.rank, step)).wait().clone() for step in range(3)]

    results = VirtualWorld(SIZE, timeout=30.0).run(task)
    shapes, expected_codec = shapes_in(LAYOUT), codec_of(codec)
    memories: dict[tuple[int, int], Memory] = {
        (rank, part): {name: torch.zeros(LAYOUT.parts[part].numel) for name in expected_codec.memories}
        for rank in range(SIZE)
        for part in shapes
    }
    centre = torch.zeros_like(numbers_of(results[0][0]))
    for step in range(3):
        rows = []
        for rank in range(SIZE):
            x = drawn(rank, step)
            for part, own in shapes.items():
                draw = Draw(seed=7 + SALT, round=step, rank=rank, part=part)
                code, memories[rank, part] = expected_codec.encode(x.parts[part], own, memories[rank, part], draw)
                x.parts[part].copy_(expected_codec.decode(code, own, draw))
            rows.append(numbers_of(x))
        wanted = aggregated(rules.get(rule)(f=1), torch.stack(rows), centre, Draw(seed=7, round=step))
        centre = numbers_of(results[0][step])
        torch.testing.assert_close(centre, wanted, rtol=1e-6, atol=1e-6)
        if rule == "krum":
            assert torch.equal(centre, wanted), "what is chosen keeps its bits"
        for own_results in results:
            assert all(map(torch.equal, own_results[step].parts, results[0][step].parts))
        assert header_in(results[0][step]).tolist() == [SIZE, sum(range(SIZE))]


def test_a_code_that_cannot_be_decoded_counts_as_not_finite() -> None:
    """Too short, too long, with a place outside its tensor, and of a vector that is not finite."""

    class Spoilt(RobustCodes):
        kind = "short"

        def _encoded(self, part: int, x: Tensor) -> Tensor:
            code = super()._encoded(part, x)
            if self.wire.rank != 4 or part != 0 or self.kind == "nan":
                return code
            if self.kind == "long":
                return torch.cat([code, code[:8]])
            return code[:-1] if self.kind == "short" else torch.full_like(code, 0x7F)

    for kind in ("short", "long", "outside", "nan"):

        def task(wire: Wire, kind: str = kind) -> tuple[Tensor, list[int]]:
            reducer = Spoilt(LAYOUT, wire, ErrorFeedback(codecs.get("top-k")(density=0.2)), rules.get("mean")(f=1), 7)
            reducer.kind = kind
            x = drawn(wire.rank, 0)
            if kind == "nan" and wire.rank == 4:
                x.parts[0][0] = torch.nan
            total = reducer.start(x).wait()
            return numbers_of(total), list(reducer.outcome.not_finite)

        for numbers, wrong in VirtualWorld(SIZE, timeout=30.0).run(task):
            assert torch.isfinite(numbers).all() and wrong == [4], kind


def test_a_worker_without_a_gradient_still_owes_what_it_had_left_out() -> None:
    def task(wire: Wire) -> bool:
        reducer = RobustCodes(LAYOUT, wire, ErrorFeedback(codecs.get("top-k")(density=0.1)), rules.get("krum")(), 7)
        reducer.start(drawn(wire.rank, 0)).wait()
        before = {name: x.clone() for name, x in reducer.state.memory[ERROR].items()}
        reducer.start(drawn(wire.rank, 1, weight=float(wire.rank != 2))).wait()
        after = reducer.state.memory[ERROR]
        return all(torch.equal(x, after[name]) for name, x in before.items())

    assert VirtualWorld(SIZE, timeout=30.0).run(task) == [False, False, True, False, False]


def test_one_part_formed_again_is_the_rule_on_that_part() -> None:
    def task(wire: Wire) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        error = ErrorFeedback(codecs.get("top-k")(density=0.2))
        reducer = RobustCodes(LAYOUT, wire, error, rules.get("mean")(f=0), 7)
        first = reducer.start(drawn(wire.rank, 0)).wait().clone()
        again = [reducer.again(part, x).wait() for part, x in enumerate(drawn(wire.rank, 0).parts)]
        return first.parts[0], again[0], first.parts[-1], again[-1]

    for first, again, last, last_again in VirtualWorld(SIZE, timeout=30.0).run(task):
        torch.testing.assert_close(first, again)
        torch.testing.assert_close(last, last_again)


@pytest.mark.parametrize("codec", ["top-k", "half", "sign"])
def test_bytes_are_those_of_its_formula(codec: str) -> None:
    def task(wire: Wire) -> tuple[int, int | None]:
        meter = Meter()
        reducer = RobustCodes(LAYOUT, Metered(wire, meter), codec_of(codec), rules.get("krum")(), 0)
        reducer.start(drawn(wire.rank, 0)).wait()
        return meter.total_out, reducer.wire_bytes(wire.size)

    assert all(sent == formula for sent, formula in VirtualWorld(SIZE, timeout=30.0).run(task))


def accuracy(strategy: str, **settings: Any) -> float:
    """On the digits of scikit-learn, in percent, after 40 steps."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)

    def loss(trainer: Trainer) -> Tensor:
        here = torch.randint(0, 1400, (32,), generator=torch.Generator().manual_seed(10 * trainer.step + trainer.rank))
        return nn.functional.cross_entropy(trainer.model(x[here]), y[here])

    def percent(trainer: Trainer) -> float:
        return 100 * float((trainer.model(x[1400:]).argmax(1) == y[1400:]).float().mean())

    return Scene(strategy, SIZE, model=(64, 32, 10), rate=0.5, steps=40, loss=loss, **settings).run(percent)[0]


@pytest.mark.parametrize(
    ("strategy", "rule", "codec"),
    [("robust", "krum", "top-k:density=0.1"), ("all-reduce", "geometric-median", "qsgd"), ("robust", "median", "half")],
)
def test_digits_are_learnt_under_attack(strategy: str, rule: str, codec: str) -> None:
    held = accuracy(strategy, attack="sign-flip", dense_below=1, reduce=rule, compress=codec)
    assert held > accuracy(strategy, attack="sign-flip", reduce=rule) - 6, held


def test_where_codes_do_not_come_to_all_it_is_refused() -> None:
    for strategy, more in (("quorum", {"wait_for": 5}), ("diloco", {})):
        with pytest.raises(ConfigurationError, match='reduce="krum" beside compress="half" cannot be combined with'):
            accuracy(strategy, reduce="krum", compress="half", **more)


def test_what_is_remembered_goes_on_from_a_state() -> None:
    """Another one that has taken over the state forms the same bits: error, draws and the rule's newest result."""

    def task(wire: Wire) -> tuple[Flat, Flat]:
        first, second = (
            RobustCodes(LAYOUT, wire, ErrorFeedback(codecs.get("qsgd")()), rules.get("centered-clipping")(f=1), 7)
            for _ in range(2)
        )
        for step in range(3):
            first.start(drawn(wire.rank, step)).wait()
        second.follows(first)
        second.state.sums.update(first.state.sums)
        wanted = first.start(drawn(wire.rank, 3)).wait().clone()
        return wanted, second.start(drawn(wire.rank, 3)).wait()

    for wanted, continued in VirtualWorld(SIZE, timeout=30.0).run(task):
        assert all(map(torch.equal, wanted.parts, continued.parts))


def test_robust_keeps_its_rule_beside_a_codec() -> None:
    """Without `reduce` it is the strategy's own; a mean there would bear nothing."""
    rule = with_reduction(strategies.get("robust"), {"compress": "half"}, "robust")[1].rule
    assert rule == rules.get("trimmed-mean")()
