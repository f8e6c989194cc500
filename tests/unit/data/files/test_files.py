"""`quorate.files`: what is written into files of each kind comes out of them, by index, in order."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader, StackDataset

import quorate
from quorate.core.errors import BadFile, ConfigurationError
from quorate.data.files import dataset as datasets
from quorate.data.files import listing
from quorate.data.files.dataset import Files, RemoteFiles
from quorate.wire.virtual.world import VirtualWorld
from tests.support.joined import joined


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(data)
    archive.addfile(about, io.BytesIO(data))


def npy(folder: Path) -> None:
    for number in range(3):
        np.save(folder / f"x-{number}.npy", np.arange(4 * number, 4 * number + 4).reshape(2, 2))


def tokens(folder: Path) -> None:
    np.arange(9, dtype=np.uint16).tofile(folder / "a.bin")
    np.arange(100, 106, dtype=np.uint16).tofile(folder / "b.bin")


def safetensors(folder: Path) -> None:
    for number in range(2):
        save_file(
            {"x": torch.full((2, 3), float(number)), "y": torch.tensor([number, 7])}, folder / f"{number}.safetensors"
        )


def tar(folder: Path) -> None:
    for number in range(2):
        with tarfile.open(folder / f"{number}.tar", "w") as archive:
            for example in range(2):
                add(archive, f"d/{example}.cls", str(10 * number + example).encode())
                add(archive, f"d/{example}.txt", b"a text")
                add(archive, f"d/{example}.x.bytes", b"\x01\x02")


def images(folder: Path) -> None:
    from PIL import Image

    for name, color in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
        (folder / name).mkdir()
        for number in range(2):
            Image.new("RGB", (4, 3), color).save(folder / name / f"{number}.png")


def parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for number in range(2):
        table = pyarrow.table({"n": list(range(5 * number, 5 * number + 5)), "s": ["a"] * 5})
        pyarrow.parquet.write_table(table, folder / f"{number}.parquet", row_group_size=2)


MADE: dict[str, tuple[Callable[[Path], None], dict[str, Any], list[Any]]] = {
    "npy": (npy, {}, [torch.tensor([2 * n, 2 * n + 1]) for n in range(6)]),
    "tokens": (
        tokens,
        {"length": 3},
        [torch.arange(4), torch.arange(3, 7), torch.arange(100, 104)],
    ),
    "safetensors": (
        safetensors,
        {},
        [{"x": torch.full((3,), float(n)), "y": torch.tensor(y)} for n in range(2) for y in (n, 7)],
    ),
    "tar": (
        tar,
        {},
        [
            {"__key__": f"d/{e}", "cls": 10 * n + e, "txt": "a text", "x.bytes": b"\x01\x02"}
            for n in range(2)
            for e in range(2)
        ],
    ),
    "images": (
        images,
        {},
        [
            (torch.tensor(color, dtype=torch.uint8).view(3, 1, 1).expand(3, 3, 4), label)
            for label, color in enumerate([(255, 0, 0), (0, 255, 0)])
            for _ in range(2)
        ],
    ),
    "parquet": (parquet, {"columns": ("n",)}, [{"n": n} for n in range(10)]),
}


def same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, tuple):
        return all(same(x, y) for x, y in zip(first, second, strict=True))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[name], second[name]) for name in first)
    return bool(first == second)


@pytest.mark.parametrize("kind", MADE)
def test_what_was_written_is_read(kind: str, tmp_path: Path) -> None:
    write, options, wanted = MADE[kind]
    write(tmp_path)
    dataset = quorate.files(tmp_path, **options)
    assert len(dataset) == len(wanted)
    assert all(same(dataset[n], each) for n, each in enumerate(wanted))
    again = pickle.loads(pickle.dumps(dataset))  # as a process of a DataLoader gets it
    assert same(again[-1], wanted[-1]) and same(again[0], wanted[0])


@pytest.mark.parametrize("kind", MADE)
def test_a_damaged_file_is_named_or_left_out(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, options, wanted = MADE[kind]
    write(tmp_path)
    damaged = sorted(path for path in tmp_path.rglob("*") if path.is_file())[-1]
    damaged.write_bytes(damaged.read_bytes()[: -7 if kind == "tokens" else len(damaged.read_bytes()) // 2])
    if kind == "images":  # an image is looked at when it is read
        dataset = quorate.files(tmp_path, **options)
        with pytest.raises(BadFile, match=f"rank 0 cannot read {damaged}"):
            dataset[len(wanted) - 1]
        dataset = quorate.files(tmp_path, on_bad_file="skip", **options)
        assert same(dataset[len(wanted) - 1], wanted[0])
    else:
        with pytest.raises(ConfigurationError, match=f"rank 0 cannot read {damaged}"):
            quorate.files(tmp_path, **options)
        dataset = quorate.files(tmp_path, on_bad_file="skip", **options)
        assert 0 < len(dataset) < len(wanted)
        assert all(same(dataset[n], wanted[n]) for n in range(len(dataset)))
    assert str(damaged) in capsys.readouterr().err


def test_what_is_named_is_found(tmp_path: Path) -> None:
    npy(tmp_path)
    (tmp_path / "deep").mkdir()
    np.save(tmp_path / "deep" / "z.npy", np.zeros((1, 2)))
    (tmp_path / "notes.txt").write_text("no example")
    assert [len(quorate.files(where)) for where in (tmp_path, tmp_path / "*.npy", tmp_path / "**" / "*.npy")] == [
        7,
        6,
        7,
    ]
    assert len(quorate.files(str(tmp_path / "x-1.npy"))) == 2
    assert quorate.files([tmp_path / "deep" / "z.npy", tmp_path / "x-0.npy"]).names == ("deep/z.npy", "x-0.npy")


@pytest.mark.parametrize(
    ("where", "options", "sentence"),
    [
        ("nowhere/*.npy", {}, "there is no file ending in"),
        (".", {"kind": "tar"}, "there is no file of kind 'tar'"),
        (".", {"kind": "csv"}, 'unknown kind of files "csv"'),
        (".", {}, "files of several kinds: give kind=, one of npy, tokens"),
        ("x-0.npy", {"length": 3}, "files of kind 'npy' have no option 'length'; they have none"),
        ("a.bin", {}, "need length"),
        ("a.bin", {"length": 3, "dtype": "float32"}, "tokens are written as one of"),
        ("x-0.npy", {"on_bad_file": "ignore"}, 'unknown on_bad_file "ignore"'),
        ("x-0.npy", {"read": "two"}, 'unknown read "two"'),
        ("x-0.npy", {"transform": 3}, "transform must be a function"),
        ("b.bin", {"length": 300}, "hold no examples"),
    ],
)
def test_what_cannot_be_is_one_sentence(where: str, options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    npy(tmp_path)
    tokens(tmp_path)
    with pytest.raises(ConfigurationError, match=sentence):
        quorate.files(tmp_path / where, **options)


def test_a_file_is_copied_once_to_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far").mkdir()
    npy(tmp_path / "far")
    fetched: list[str] = []
    fetch = datasets.Cache._fetch

    def noting(self: Any, path: Path, copy: Path) -> None:
        fetched.append(path.name)
        fetch(self, path, copy)

    monkeypatch.setattr(datasets.Cache, "_fetch", noting)
    for _ in range(2):
        dataset = quorate.files(tmp_path / "far", cache=tmp_path / "near")
        assert [dataset[n].tolist() for n in (0, 5)] == [[0, 1], [10, 11]]
    assert fetched == ["x-0.npy", "x-2.npy"]
    np.save(tmp_path / "far" / "x-0.npy", np.full((2, 2), 5.0))  # another file now
    assert quorate.files(tmp_path / "far", cache=tmp_path / "near")[0].tolist() == [5.0, 5.0]


def test_where_there_is_no_room_files_are_read_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    npy(tmp_path)
    (tmp_path / "near").write_text("no folder")
    assert quorate.files(tmp_path / "*.npy", cache=tmp_path / "near")[0].tolist() == [0, 1]
    assert "is read where it is" in capsys.readouterr().err


def test_files_go_through_a_loader_and_beside_each_other(tmp_path: Path) -> None:
    npy(tmp_path)
    x = quorate.files(tmp_path, transform=lambda row: row.float())
    pairs = StackDataset(x, quorate.files(tmp_path))
    (a, b), *_ = DataLoader(pairs, batch_size=6)
    assert a.dtype == torch.float32 and torch.equal(a, b.float())


def in_world(size: int, live: Callable[[quorate.World], Any]) -> list[Any]:
    return VirtualWorld(size).run(joined(live))


def test_each_file_is_looked_at_by_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npy(tmp_path)
    looked: list[str] = []
    counted = listing._counted
    monkeypatch.setattr(listing, "_counted", lambda kind, path: looked.append(path.name) or counted(kind, path))
    assert in_world(2, lambda world: len(quorate.files(tmp_path))) == [6, 6]
    assert sorted(looked) == ["x-0.npy", "x-1.npy", "x-2.npy"]


def test_a_file_that_one_worker_does_not_have_is_named_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / str(rank) for rank in range(3)]
    for folder in folders:
        folder.mkdir()
        npy(folder)
    (folders[2] / "x-1.npy").unlink()

    def refused(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as caught:
            quorate.files(folders[world.rank])
        return str(caught.value)

    assert len(set(said := in_world(3, refused))) == 1
    assert said[0].startswith("the file x-1.npy is missing on rank 2;")
    left = in_world(3, lambda world: [x.tolist() for x in quorate.files(folders[world.rank], on_bad_file="skip")])
    assert left == [[[0, 1], [2, 3], [8, 9], [10, 11]]] * 3
    assert capsys.readouterr().err.count("missing on rank 2") == 1


@pytest.mark.parametrize("share", ["static", "dynamic"])
@pytest.mark.parametrize("kind", ["tar", "tokens"])
def test_a_loader_over_files_goes_on_at_the_example(kind: str, share: str, tmp_path: Path) -> None:
    """The examples that were not consumed are the ones that come next."""
    write, options, wanted = MADE[kind]
    write(tmp_path)
    dataset = quorate.files(tmp_path, **options)

    def key(example: Any) -> Any:
        return example["cls"] if kind == "tar" else int(example[0])

    def live(world: quorate.World) -> tuple[list[Any], list[Any]]:
        loader = quorate.loader(dataset, 1, share=share, collate_fn=lambda batch: [key(each) for each in batch])
        batches = iter(loader)
        first = next(batches)
        other = quorate.loader(dataset, 1, share=share, collate_fn=lambda batch: [key(each) for each in batch])
        other.load_state_dicts(world.gather(loader.state_dict()))
        return first, [each for batch in other for each in batch]

    ends = in_world(2, live)
    seen = [each for first, rest in ends for each in (*first, *rest)]
    assert set(seen) == {key(each) for each in wanted}
    if share == "dynamic" or len(wanted) % 2 == 0:
        assert len(seen) == len(wanted)


@pytest.mark.parametrize("kind", MADE)
def test_one_worker_reads_for_all(kind: str, tmp_path: Path) -> None:
    write, options, wanted = MADE[kind]
    (tmp_path / "1").mkdir()
    write(tmp_path / "1")

    def live(world: quorate.World) -> list[Any]:
        dataset = quorate.files(tmp_path / str(world.rank), read="one", **options)
        assert isinstance(dataset, Files if world.rank == 1 else RemoteFiles)
        loader = quorate.loader(dataset, 2, shuffle=False, collate_fn=lambda batch: batch)
        first = [each for batch in loader for each in batch]
        next(iter(loader))  # what was asked for ahead is not missed when it is left
        again = [each for batch in loader for each in batch]
        assert same(tuple(first), tuple(again)) and same(dataset[-1], wanted[-1])
        world.gather(0)
        return first

    ends = in_world(3, live)
    for rank, got in enumerate(ends):
        places = [(rank + 3 * n) % len(wanted) for n in range(len(got))]
        assert all(same(each, wanted[place]) for each, place in zip(got, places, strict=True))


def test_what_the_reader_cannot_read_is_named_where_it_was_asked_for(tmp_path: Path) -> None:
    images(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")

    def live(world: quorate.World) -> str:
        where = tmp_path if world.rank == 0 else tmp_path / "nothing"
        dataset = quorate.files(where, "images", read="one")
        said = ""
        if world.rank == 1:
            with pytest.raises(BadFile) as caught:
                dataset[1]
            said = str(caught.value)
            assert caught.value.ranks == (0,)
        world.gather(0)
        return said

    assert in_world(2, live)[1].startswith(f"rank 0 cannot read {tmp_path / 'cat' / '1.png'}")


def test_where_nobody_finds_any_file_all_say_so(tmp_path: Path) -> None:
    def live(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as caught:
            quorate.files(tmp_path, read="one")
        return str(caught.value)

    assert all(said.startswith("there is no file ending in") for said in in_world(2, live))


def test_what_comes_over_the_wire_comes_to_the_process_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    npy(tmp_path / "0")

    def live(world: quorate.World) -> None:
        dataset = quorate.files(tmp_path / str(world.rank), read="one")
        if world.rank == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(datasets, "get_worker_info", lambda: "a process of a DataLoader")
                with pytest.raises(ConfigurationError, match="use num_workers=0"):
                    dataset[0]
        world.gather(0)

    in_world(2, live)


OWN = [3, 2, 4]
"""Examples of each worker; those of worker r are from 10 r on."""


def own_files(folder: Path) -> None:
    for rank, examples in enumerate(OWN):
        (folder / str(rank)).mkdir()
        np.save(folder / str(rank) / "own.npy", np.arange(10 * rank, 10 * rank + examples))


@pytest.mark.parametrize(("drop_last", "passes"), [(False, 4), (True, 2)])
def test_every_worker_has_its_own_and_all_have_equally_many(drop_last: bool, passes: int, tmp_path: Path) -> None:
    own_files(tmp_path)

    def live(world: quorate.World) -> list[list[int]]:
        dataset = quorate.files(tmp_path / str(world.rank), read="own")
        assert len(dataset) == sum(OWN) and int(dataset[sum(OWN[: world.rank])]) == 10 * world.rank
        with pytest.raises(IndexError, match=f"rank {world.rank} has the examples from"):
            dataset[sum(OWN[: world.rank]) - 1 if world.rank else OWN[0]]
        loader = quorate.loader(dataset, 1, drop_last=drop_last)
        return [[int(each) for batch in loader for each in batch] for _ in range(3)]

    for rank, epochs in enumerate(in_world(3, live)):
        own_examples = set(range(10 * rank, 10 * rank + OWN[rank]))
        assert all(len(epoch) == passes and set(epoch) <= own_examples for epoch in epochs)
        assert set().union(*epochs) == own_examples
        assert drop_last or all(set(epoch) == own_examples for epoch in epochs)


def test_every_worker_goes_on_with_its_own(tmp_path: Path) -> None:
    own_files(tmp_path)
    kept: list[Any] = []

    def begin(world: quorate.World) -> list[int]:
        loader = quorate.loader(quorate.files(tmp_path / str(world.rank), read="own"), 1)
        batches = iter(loader)
        examples = [int(next(batches)), int(next(batches))]
        kept[:] = world.gather(loader.state_dict())
        return examples

    def go_on(world: quorate.World) -> list[int]:
        loader = quorate.loader(quorate.files(tmp_path / str(world.rank), read="own"), 1)
        loader.load_state_dicts(kept)
        return [int(each) for each in loader]

    def with_others(world: quorate.World) -> str:
        loader = quorate.loader(quorate.files(tmp_path / str(world.rank), read="own"), 2)
        with pytest.raises(ConfigurationError) as caught:
            loader.load_state_dicts(kept)
        return str(caught.value)

    first, then = in_world(3, begin), in_world(3, go_on)
    assert [len(rest) for rest in then] == [2, 2, 2]
    assert [len({*a, *b}) for a, b in zip(first, then, strict=True)] == OWN
    assert "go on with 3 workers, and the same batch_size" in in_world(3, with_others)[0]


def test_what_own_files_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    own_files(tmp_path)

    def without(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as caught:
            quorate.files(tmp_path / str(world.rank + 1), read="own")
        return str(caught.value)

    def shared(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as caught:
            quorate.loader(quorate.files(tmp_path / str(world.rank), read="own"), 1, share="dynamic")
        return str(caught.value)

    assert all(said.startswith("rank 2: there is no file ending in") for said in in_world(3, without))
    assert in_world(3, shared)[0] == 'share is "dynamic", but every worker has its own files here: leave it out'
    alone = quorate.files(tmp_path / "0", read="own")

    def late(world: quorate.World) -> str:
        with pytest.raises(ConfigurationError) as caught:
            quorate.loader(alone, 1)
        return str(caught.value)

    assert "after quorate.join()" in in_world(3, late)[0]


def test_classes_are_those_of_all(tmp_path: Path) -> None:
    images(tmp_path)
    (tmp_path / "0").mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "cat").rename(tmp_path / "0" / "cat")
    (tmp_path / "dog").rename(tmp_path / "1" / "dog")

    def live(world: quorate.World) -> int:
        return int(quorate.files(tmp_path / str(world.rank), read="own")[2 * world.rank][1])

    assert in_world(2, live) == [0, 1]
