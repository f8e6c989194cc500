"""Rows of tensors in the files of several shards: put together as any number of shards, or refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quorate.checkpoint.encoding import decoded, encoded
from quorate.checkpoint.pieces import Piece, joined, piece_from, piece_in, shape_of, with_rows
from quorate.checkpoint.schema import PlainState, WorkerKept, check
from quorate.core.axes import rows_of
from quorate.core.errors import CheckpointError


def shards_of(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    rows = [rows_of(len(x), count, shard) for shard in range(count)]
    return [with_rows(x[span.start : span.stop], Piece(span.start, len(x))) for span in rows]


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 12, 13])
def test_any_number_of_shards_from_any_other(rows: int) -> None:
    x = torch.arange(3 * rows).view(rows, 3)
    for old in (1, 2, 3, 4, 7):
        trees = [{"a": [piece], "b": old + number} for number, piece in enumerate(shards_of(x, old))]
        for new in (1, 2, 3, 5):
            new_trees = [joined(trees, new, shard) for shard in range(new)]
            assert torch.equal(torch.cat([tree["a"][0] for tree in new_trees]), x)
            if new > 1:
                assert [piece_in(tree["a"][0]) for tree in new_trees] == [
                    Piece(rows_of(rows, new, s).start, rows) for s in range(new)
                ]
                assert {shape_of(tree["a"][0]) for tree in new_trees} == {(rows, 3)}
            else:
                assert piece_in(new_trees[0]["a"][0]) is None
            assert [tree["b"] for tree in new_trees] == [old + (shard if old == new else 0) for shard in range(new)]


def test_numbers_without_rows_are_those_of_the_same_place_in_the_layout() -> None:
    """Along a tensor axis each worker has momenta of its own, and no shard."""
    trees = [{"a": shards_of(torch.arange(4), 2)[part], "b": part} for part in range(2)]
    for own in range(2):
        tree = joined(trees, 1, 0, own)
        assert tree["b"] == own and torch.equal(tree["a"], torch.arange(4))


def test_each_has_torchs_rows() -> None:
    for count in range(14):
        for shards in range(1, 6):
            wanted = [len(x) for x in torch.arange(count).chunk(shards)] if count else []
            lengths = [len(rows_of(count, shards, shard)) for shard in range(shards)]
            assert lengths == wanted + [0] * (shards - len(wanted))


X = torch.arange(6.0)


@pytest.mark.parametrize(
    "trees",
    [
        [with_rows(X[:3], Piece(0, 6)), with_rows(X[4:], Piece(4, 6))],
        [with_rows(X[:3], Piece(0, 6)), with_rows(X[2:], Piece(2, 6))],
        [with_rows(X[:3], Piece(0, 6)), with_rows(X[1:4], Piece(1, 6))],
        [with_rows(X[:3], Piece(0, 6)), with_rows(X[3:5], Piece(3, 6))],
        [with_rows(X[:3], Piece(0, 6)), with_rows(X[3:], Piece(3, 7))],
        [with_rows(X[:3], Piece(0, 6)), X[3:]],
        [with_rows(X[:3], Piece(0, 6)), 3],
        [{"a": with_rows(X[:3], Piece(0, 6))}, {}],
        [[with_rows(X[:3], Piece(0, 6))], []],
    ],
)
def test_files_that_do_not_belong_together_are_refused(trees: list[Any]) -> None:
    for shards, shard in ((1, 0), (2, 0), (3, 1)):
        with pytest.raises(CheckpointError, match="do not belong together"):
            joined(trees, shards, shard)


@pytest.mark.parametrize(
    "said",
    [[4, 6], [-1, 6], [0, 2], ["0", 6], [0, 6, 1], [0.0, 6], [True, 6], 3, "06", [0, 6, 1, 1, 0, 2],
     [0, 6, -2, 1, 0, 2], [0, 6, 0, 1, 2, 2], [0, 6, 0, 0, 0, 2]],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="rows|unpack"):
        with_rows(X[:3], piece_from(said))


@pytest.mark.parametrize("numbers", [[0, 6], [1, 4, -1, 1, 0, 2], [2, 8, 1, 3, 1, 4]])
def test_rows_are_written_as_they_were_read(numbers: list[int]) -> None:
    assert piece_from(numbers).as_json == numbers


def test_they_are_said_in_json() -> None:
    tensors: dict[str, torch.Tensor] = {}

    def put(name: str, x: torch.Tensor) -> str:
        tensors[name] = x
        return name

    assert encoded({"a": X}, "", put) == {"dict": [["a", {"tensor": "a"}]]}
    tree = decoded('{"dict": [["a", {"piece": ["a", 2, 9]}]]}', tensors, prefix="")
    assert piece_in(tree["a"]) == Piece(2, 9)
    for text in ('{"piece": ["a", 4, 9]}', '{"piece": ["b", 0, 9]}', '{"piece": ["a"]}', '{"piece": "a"}'):
        with pytest.raises(CheckpointError, match="cannot be read"):
            decoded(f'{{"dict": [["a", {text}]]}}', tensors, prefix="")


IN_SHARDS = ('{"dict":[["exp_avg",{"piece":["exp_avg",0,5]}]]}', '{"dict":[["exp_avg",{"piece":["exp_avg",3,5]}]]}')
IN_PARTS = tuple(f'{{"dict":[["exp_avg",{{"piece":["exp_avg",0,4,1,3,{part},2]}}]]}}' for part in range(2))
REPEATED = tuple(f'{{"dict":[["exp_avg",{{"piece":["exp_avg",0,4,-1,1,{part},2]}}]]}}' for part in range(2))


def test_files_that_older_versions_have_written_are_read() -> None:
    def read(texts: tuple[str, ...], numbers: list[torch.Tensor]) -> torch.Tensor:
        trees = [decoded(text, {"exp_avg": x}, prefix="") for text, x in zip(texts, numbers, strict=True)]
        whole: torch.Tensor = joined(trees, 1, 0)["exp_avg"]
        return whole

    x = torch.arange(48.0).view(4, 12)
    assert torch.equal(read(IN_SHARDS, [torch.arange(3.0), torch.arange(3.0, 5.0)]), torch.arange(5.0))
    parts = [x.view(4, 3, 2, 2)[:, :, part].reshape(4, 6) for part in range(2)]
    assert torch.equal(read(IN_PARTS, parts), x)
    assert torch.equal(read(REPEATED, [x, x]), x)


@pytest.mark.parametrize(
    ("changed", "place"),
    [
        ({"param_groups": [{"params": [0, 2]}]}, "its parameters are not numbered in order"),
        ({"param_groups": [{"params": [0, True]}]}, "param_groups.0.params.1: "),
        ({"param_groups": [{}]}, "param_groups.0.params: Field required"),
        ({"state": {2: {}}}, "it has state of a parameter 2"),
        ({"names": [["a"]]}, "it has not as many names as parameters"),
        ({"inner": {"base": {"state": {}, "param_groups": [{"params": [1]}]}}}, "inner.base: it does not hold what it"),
    ],
)
def test_an_optimizers_state_that_torch_cannot_have_written_is_refused(changed: dict[str, Any], place: str) -> None:
    kept = {"state": {1: {}}, "param_groups": [{"params": [0]}, {"params": [1], "lr": 0.1}], "names": [["a"], ["b"]]}
    check(PlainState, kept | {"inner": {"base": {"anything": 1}}}, "x")
    with pytest.raises(CheckpointError, match=f"^x does not hold what it should: (it: )?{place}"):
        check(PlainState, kept | changed, "x")


def test_a_loader_of_a_file_has_a_sound_position() -> None:
    worker: dict[str, Any] = {"optimizers": {}, "loaders": {}, "generators": {}, "extras": {}}
    check(WorkerKept, worker, "x")
    for loaders in ({"a": {}}, {"0": {"rank": 0}}):
        with pytest.raises(CheckpointError, match=r"^x does not hold what it should: loaders\."):
            check(WorkerKept, worker | {"loaders": loaders}, "x")
