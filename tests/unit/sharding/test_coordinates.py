"""The coordinates of a worker in a mesh, and the groups that it reaches from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from quorate.core.axes import Axes, axes_for, axes_from_text
from quorate.core.contracts import Wire
from quorate.core.errors import ConfigurationError
from quorate.sharding.mesh import coordinates_in
from quorate.wire.virtual.world import VirtualWorld


@dataclass
class Mesh:
    """The part of torch's mesh that is used; making one of those needs real processes."""

    mesh: torch.Tensor
    mesh_dim_names: tuple[str, ...] | None

    def __getitem__(self, axis: str) -> str:
        return axis


def ranks(*shape: int) -> torch.Tensor:
    return torch.arange(torch.tensor(shape).prod().item()).view(shape)


def coordinates_of(mesh: Any, size: int) -> list[tuple[Axes, int, int, list[int], list[int], Any]]:
    """Each worker's axes, replica and shard, the ranks across and within, and the ranks of each replica."""

    def task(wire: Wire) -> tuple[Axes, int, int, list[int], list[int], Any]:
        coordinates = coordinates_in(mesh, wire)
        own_rank = torch.tensor([wire.rank])
        across, within = (
            torch.cat(group.all_gather(own_rank).wait()).tolist() for group in (coordinates.across, coordinates.within)
        )
        return coordinates.axes, coordinates.replica, coordinates.shard, across, within, coordinates.workers

    return VirtualWorld(size).run(task)


def test_two_replicas_of_three_shards() -> None:
    every_coordinates = coordinates_of(Mesh(ranks(2, 3), ("replicas", "shards")), 6)
    assert every_coordinates[4] == (Axes(2, 3), 1, 1, [1, 4], [3, 4, 5], [[0, 1, 2], [3, 4, 5]])
    assert [coordinates[1:3] for coordinates in every_coordinates] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


def test_a_mesh_of_the_axes_the_other_way_round() -> None:
    every_coordinates = coordinates_of(Mesh(ranks(2, 2), ("shards", "replicas")), 4)
    assert every_coordinates[1] == (Axes(2, 2), 1, 0, [0, 1], [1, 3], [[0, 2], [1, 3]])


def test_a_mesh_of_shards_alone() -> None:
    assert coordinates_of(Mesh(ranks(3), ("shards",)), 3)[2] == (Axes(1, 3), 0, 2, [2], [0, 1, 2], [[0, 1, 2]])


def test_ranks_in_an_order_of_the_scripts_own() -> None:
    every_coordinates = coordinates_of(Mesh(torch.tensor([[0, 2], [1, 3]]), ("replicas", "shards")), 4)
    assert every_coordinates[2] == (Axes(2, 2), 0, 1, [2, 3], [0, 2], [[0, 2], [1, 3]])


def test_a_third_axis() -> None:
    def task(wire: Wire) -> tuple[Any, ...]:
        coordinates = coordinates_in(Mesh(ranks(2, 3, 2), ("replicas", "shards", "tensor")), wire)  # type: ignore[arg-type]
        own_rank = torch.tensor([wire.rank])
        groups = (coordinates.across, coordinates.within, coordinates.beside, coordinates.together)
        return (
            coordinates.replica,
            coordinates.shard,
            coordinates.part,
            [torch.cat(g.all_gather(own_rank).wait()).tolist() for g in groups],
        )

    every_coordinates = VirtualWorld(12).run(task)
    assert every_coordinates[9] == (1, 1, 1, [[3, 9], [6, 7, 8, 9, 10, 11], [7, 9, 11], [8, 9]])
    assert {coordinates[:3] for coordinates in every_coordinates} == {
        (r, s, t) for r in range(2) for s in range(3) for t in range(2)
    }


@pytest.mark.parametrize(
    ("asked", "axes"),
    [
        ((None, None, 2), Axes(4, 1, 2)),
        ((2, None, 2), Axes(2, 2, 2)),
        ((None, 2, 2), Axes(2, 2, 2)),
        ((2, None, None), Axes(2, 4)),
        ((2, 2, 2), Axes(2, 2, 2)),
    ],
)
def test_what_is_left_out_is_found(asked: tuple[int | None, int | None, int | None], axes: Axes) -> None:
    assert axes_for(8, *asked) == axes_from_text(axes.in_words, 8) == axes


def test_a_product_that_is_not_the_number_of_workers() -> None:
    with pytest.raises(ConfigurationError, match="8 workers cannot be laid out as replicas=2,tensor=3; replicas times"):
        axes_for(8, 2, None, 3)


@pytest.mark.parametrize(
    ("mesh", "words"),
    [
        (Mesh(ranks(2), ("replicas",)), "the mesh has the axes replicas; quorate.parallelize takes one of replicas"),
        (Mesh(ranks(2, 1), ("shards", "lines")), "the mesh has the axes shards, lines;"),
        (Mesh(ranks(2), None), "the mesh has the axes without names;"),
        (Mesh(ranks(3), ("shards",)), "the mesh has 3 workers, and this run 2; it must have all of them"),
    ],
)
def test_other_meshes_are_refused(mesh: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        coordinates_of(mesh, 2)
    assert words in str(refused.value)
