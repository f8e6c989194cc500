"""A script of a test: it trains on a stream of a library, stops in the middle, and continues when it is resumed.

Words: the library, the number of steps (0: to the end), a file for what this run computes, and options of the loader.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import quorate

COUNT = 37


def numbers(library: str, size: int) -> Any:
    """Return a stream of 0 … 36, and the batch size for it."""
    if library in ("datasets", "datasets of one shard", "datasets mixed", "datasets by node"):
        import datasets
        from datasets.distributed import split_dataset_by_node

        shards = 1 if library == "datasets of one shard" else 4
        stream = datasets.Dataset.from_dict({"x": list(range(COUNT))}).to_iterable_dataset(num_shards=shards)
        if library == "datasets mixed":
            stream = stream.shuffle(seed=1, buffer_size=5)
        if library == "datasets by node":
            stream = split_dataset_by_node(stream, rank=0, world_size=size)
        return stream.map(lambda example: {"x": example["x"]}), 2
    if library == "webdataset":
        import webdataset

        files = [str(Path(f"part-{part}.tar").resolve()) for part in range(4)]
        stream = webdataset.WebDataset(files, shardshuffle=False, nodesplitter=webdataset.split_by_node)
        return stream.decode().to_tuple("cls").map(lambda example: {"x": int(example[0])}), 2
    if library == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader([{"x": number} for number in range(COUNT)], batch_size=2, num_workers=1), None
    if library == "nodes":
        from torchdata import nodes

        return nodes.Loader(nodes.IterableWrapper([{"x": number} for number in range(COUNT)])), 2
    return mosaic().StreamingDataset(local="mds", batch_size=2, shuffle=False), 2


def mosaic() -> Any:
    """Return MosaicML's package, with the operators of the torchvision that it imports declared before."""
    import_module("tests.support.library_scripts.operators")
    return import_module("streaming")


def write_archives() -> None:
    """Write the numbers in four archives."""
    for part in range(4):
        with tarfile.open(f"part-{part}.tar", "w") as archive:
            for number in range(part, COUNT, 4):
                content = str(number).encode()
                member = tarfile.TarInfo(f"{number:03d}.cls")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_shards() -> None:
    """Write the numbers in shards of MosaicML streaming."""
    with mosaic().MDSWriter(out="mds", columns={"x": "int"}, size_limit=160) as writer:
        for number in range(COUNT):
            writer.write({"x": number})


def batches(loader: Any, steps: int) -> Iterator[Any]:
    """Yield so many batches, or all of them."""
    for place, batch in enumerate(loader, 1):
        yield batch
        if place == steps:
            return


def main() -> None:
    """Train, and save at the end."""
    library, steps, name, options = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    world = quorate.join()
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = quorate.distribute(torch.optim.SGD(model.parameters(), lr=1e-4), model)
    stream, batch_size = numbers(library, world.size)
    loader = quorate.loader(stream, batch_size, **options)
    quorate.load()
    seen: list[int] = []
    for batch in batches(loader, steps):
        model(batch["x"].float().unsqueeze(1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += batch["x"].tolist()
    if steps:
        quorate.save(best=0.0)  # under rounds, too, after the last step of every worker
    optimizer.finish()
    Path(f"{name}-{world.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
