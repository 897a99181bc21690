"""The loaders that several clients are given, and the stores that their processes read."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import fastdata
from client_ranks import loader, row
from fastdata import CenterCrop, LMDBDataset, Loader, RandomResizedCrop
from stores import CLASSES, COUNT, SIZES, folder, once, sources, store
from support import run

sys.path.append(str(Path(__file__).parents[1] / "scale"))
from faults import serving


@cache
def merged() -> Path:
    """The images of `stores.sources()`, class after class. It has a shard for each."""
    parts, classes = list[Path](), folder() / "classes.txt"
    classes.write_text("\n".join(CLASSES))
    for name in CLASSES:
        part = folder()
        (part / name).symlink_to(sources() / name)
        out = folder() / f"{name}.fds"
        parts.append(fastdata.prep(part, out, size=list(SIZES), codec="rgb", classes=classes, workers=1).out)
    return fastdata.merge(parts, folder() / "merged.fds")


@contextmanager
def placed(name: str) -> Iterator[tuple[str, Path, dict[str, str], dict[str, str]]]:
    """Yield where a store is, which local one holds the same, the environment of its readers, and options of a Loader that
    make the order of the local one the same."""
    if name == "remote":
        served = folder()
        fastdata.publish(merged(), f"file://{served}/photos.fds")
        with serving(served) as server:
            yield f"{server.url}/photos.fds", merged(), {"FASTDATA_CACHE": str(folder())}, {"order": "interleaved"}
            assert server.requests["photos.fds/64/shard-00002.mdb"], "it was read from here"
    else:
        local = merged() if name == "merged" else store()
        yield str(local), local, {}, {}


def train_loader(workers: int = 2, seed: int = 3, batch_size: int = 8) -> Loader:
    """42 images in a random order, with random crops and flips."""
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(24), hflip=0.5)
    return Loader(dataset, batch_size, shuffle=True, seed=seed, num_workers=workers)


def val_loader(workers: int = 0, batch_size: int = 16) -> Loader:
    """The same images in order, with nothing random."""
    return Loader(LMDBDataset(store(), size=64, crop=CenterCrop(24)), batch_size, num_workers=workers)


def launch(client: str, *arguments: Any, ranks: int = 1, env: dict[str, str] | None = None) -> None:
    """Run client_ranks.py, under torchrun if there are several ranks."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks] if ranks > 1 else []
    command += [Path(__file__).with_name("client_ranks.py"), client, *arguments]
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    done = run(sys.executable, *command, seconds=400, env={**own, "OMP_NUM_THREADS": "1", **(env or {})})
    assert done.returncode == 0, done.stderr[-4000:]


def check_training(
    seen: Sequence[Any], path: str | Path, batch_size: int, wrap: Callable[[Loader], Any] = iter, **options: Any
) -> None:
    """Each rank saw what a Loader of that rank delivers in two epochs, and all of them each row once an epoch."""
    for rank, rows in enumerate(seen):
        with loader(str(path), batch_size, rank=rank, world_size=len(seen), **options) as made:
            assert rows == [row(batch) for _ in range(2) for batch in wrap(made)]
    for epoch in range(2):
        assert once([ids[:valid] for rows in seen for ids, valid, at, *_ in rows if at == epoch], COUNT)


def flat(lists: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))
