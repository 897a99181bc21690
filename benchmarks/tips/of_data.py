"""Tips on data: memory, sizes, tokens, tables and files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from measuring import LeftOut, Repeat, Setting, Sides, same_rows, tip
from torch.utils.data import DataLoader, Dataset

import fastdata
from fastdata import CenterCrop, LMDBDataset, Loader, RAMDataset, TableDataset, TokenDataset
from fastdata.images.records import StoreImages

CROP = 224


def forget(paths: Sequence[Path]) -> None:
    """Drop files from the page cache, so that reading them is reading the disk."""
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read_from_disk() -> int:
    """Return the bytes that this process has read from storage so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def check_cold(paths: Sequence[Path]) -> str:
    """Raise LeftOut unless files that are dropped from the page cache are really read from the disk again."""
    os.sync()
    forget(paths)
    before = read_from_disk()
    size = sum(len(path.read_bytes()) for path in paths)
    if read_from_disk() - before < size / 2:
        raise LeftOut("the page cache could not be emptied here")
    return "the files are read from the disk"


def rgb(path: Path) -> Any:
    return cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)


def order(count: int, take: int) -> list[int]:
    return np.random.default_rng(0).permutation(count)[:take].tolist()


def disk_bytes(path: Path) -> float:
    return float(sum(file.stat().st_size for file in path.rglob("*.mdb")))


@tip(baseline="files on the disk, not in the page cache", tip="RAMDataset(files)", unit="images", where="host")
def ram(setting: Setting) -> Iterator[Sides]:
    files = setting.files[:100]
    disk, memory = (RAMDataset(files, max_bytes=most) for most in (0, None))  # the same, but for where the bytes are

    def check() -> str:
        same_rows(disk[3][0], memory[3][0])
        same_rows(memory[3][0].permute(1, 2, 0), rgb(files[3]))
        return f"equal pixels, as cv2's; {check_cold(files)}"

    yield Sides(
        Repeat(setting, lambda: [disk[k] for k in range(len(files))], len(files), before=lambda: forget(files)),
        Repeat(setting, lambda: [memory[k] for k in range(len(files))], len(files)),
        check,
    )


@tip(baseline="RAMDataset: JPEG in memory", tip="RAMDataset(decoded=True): pixels in memory", unit="images", where="host")
def pixels(setting: Setting) -> Iterator[Sides]:
    path = setting.store("photos-256", size=256)
    sides = [RAMDataset(path, decoded=decoded, crop=CenterCrop(CROP)) for decoded in (False, True)]
    rows = order(len(sides[0]), 64)

    def check() -> str:
        same_rows(sides[0][5][0], sides[1][5][0])
        return "equal pixels"

    images = StoreImages(path, 256)
    heights, widths = images.sides(np.arange(len(images)))
    stored = float(sum(len(images.get(k)) for k in range(len(images))))
    memory = {"memory": (stored, float(3 * (heights * widths).sum()))}
    yield Sides(*(Repeat(setting, lambda d=d: [d[k] for k in rows], len(rows)) for d in sides), check, memory)


@tip(
    baseline="2048 x 1536 JPEG, read and resized to 512 by cv2",
    tip="LMDBDataset of a store of --size 512",
    unit="images",
    where="host",
)
def resize(setting: Setting) -> Iterator[Sides]:
    folder = setting.folder("large")
    for k in range(count := setting.some(24, 2)):
        parts = [
            [cv2.resize(cv2.imread(str(setting.files[(k + 3 * i + j) % len(setting.files)])), (512, 384)) for j in range(4)]
            for i in range(4)
        ]
        cv2.imwrite(str(folder / f"{k:02d}.jpg"), np.vstack([np.hstack(row) for row in parts]), [cv2.IMWRITE_JPEG_QUALITY, 90])
    files = sorted(folder.iterdir())
    dataset = LMDBDataset(fastdata.prep(folder, setting.work / "large.fds", size=512).out)

    def online(file: Path) -> Any:
        image = rgb(file)
        short = min(image.shape[:2])
        height, width = (512 * side // short for side in image.shape[:2])
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)

    def check() -> str:
        mine, stored = online(files[0]), dataset[0][0].permute(1, 2, 0).numpy()
        assert mine.shape == stored.shape and np.abs(mine.mean((0, 1)) - stored.mean((0, 1))).max() < 2
        return "equal sizes and mean colours"

    size = {"bytes": (float(sum(file.stat().st_size for file in files)), disk_bytes(setting.work / "large.fds"))}
    yield Sides(
        Repeat(setting, lambda: [online(file) for file in files], count),
        Repeat(setting, lambda: [dataset[k] for k in range(count)], count),
        check,
        size,
    )


@tip(baseline="JPEG in a store", tip="--codec rgb", unit="images", where="host")
def raw_pixels(setting: Setting) -> Iterator[Sides]:
    stores = [setting.store("photos-256", size=256), setting.store("raw-256", size=256, codec="rgb")]
    sides = [LMDBDataset(path, crop=CenterCrop(CROP)) for path in stores]
    rows = order(len(sides[0]), 64)
    size = [disk_bytes(path) for path in stores]
    yield Sides(
        *(Repeat(setting, lambda d=d: [d[k] for k in rows], len(rows)) for d in sides), amounts={"bytes": (size[0], size[1])}
    )


@tip(baseline="a store in colour", tip="a store made with --gray", unit="images", where="host")
def gray(setting: Setting) -> Iterator[Sides]:
    stores = [setting.store("photos-256", size=256), setting.store("gray-256", size=256, gray=True)]
    sides = [LMDBDataset(path, crop=CenterCrop(CROP)) for path in stores]
    rows = order(len(sides[0]), 64)

    def check() -> str:
        assert sides[1][0][0].shape == (1, CROP, CROP)
        colour = cv2.cvtColor(sides[0][0][0].permute(1, 2, 0).numpy(), cv2.COLOR_RGB2GRAY)
        assert np.abs(colour.astype(int) - sides[1][0][0][0].numpy()).mean() < 4
        return "grey values within 4 codes on average"

    size = {"bytes": (disk_bytes(stores[0]), disk_bytes(stores[1]))}
    yield Sides(*(Repeat(setting, lambda d=d: [d[k] for k in rows], len(rows)) for d in sides), check, size)


@tip(
    baseline="each batch tokenized when it is needed (tokenizers)",
    tip="TokenDataset of tokens made by --train-bpe",
    unit="tokens",
    where="host",
)
def tokenize(setting: Setting) -> Iterator[Sides]:
    if find_spec("tokenizers") is None:
        raise LeftOut("needs pip install tokenizers")
    import tokenizers

    rng = np.random.default_rng(0)
    words = ["".join(chr(97 + letter) for letter in rng.integers(0, 26, rng.integers(2, 9))) for _ in range(2000)]
    folder = setting.folder("text")
    lines = [" ".join(words[k] for k in np.minimum(rng.zipf(1.3, 300), 2000) - 1) for _ in range(setting.some(500, 100))]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    path = fastdata.prep(folder, setting.work / "text.fds", train_bpe=1000, split_lines=True).out
    encode = tokenizers.Tokenizer.from_file(str(next(path.rglob("tokenizer.json")))).encode_batch
    block, rows = 256, 16
    dataset = TokenDataset(path, block_size=block)
    batch = [lines[k] for k in order(len(lines), rows)]

    def online() -> torch.Tensor:
        return torch.tensor([one.ids[: block + 1] for one in encode(batch)])

    def check() -> str:
        stored = TokenDataset(path, block_size=64, mode="document")[0][0]
        same_rows(encode([lines[0]])[0].ids[:64], stored[:64])
        return "equal tokens"

    with Loader(dataset, rows, shuffle=True) as loader:
        batches = iter(())

        def stored() -> Any:
            nonlocal batches
            if (found := next(batches, None)) is None:
                batches = iter(loader)
                found = next(batches)
            return found

        yield Sides(Repeat(setting, online, rows * (block + 1)), Repeat(setting, stored, rows * (block + 1)), check)


@tip(baseline="DataLoader over rows of a DataFrame", tip="Loader(TableDataset)", unit="rows", where="host")
def tables(setting: Setting) -> Iterator[Sides]:
    if find_spec("pandas") is None or find_spec("pyarrow") is None:
        raise LeftOut("needs pip install pandas pyarrow")
    import pandas as pd

    rng, count = np.random.default_rng(0), setting.some(200_000, 4000)
    columns = {f"x{k}": rng.integers(0, 200, count) / (8 if k % 2 else 1) for k in range(8)}
    frame = pd.DataFrame(columns | {"label": rng.integers(0, 3, count)})
    dataset = TableDataset(frame, target="label")

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> Any:
            row = frame.iloc[index]
            return {name: torch.as_tensor(row[name]) for name in columns}, int(row["label"])

    def check() -> str:
        (by_hand, label), (stored, target) = Rows()[7], dataset[7]
        assert all(float(by_hand[name]) == float(stored[name]) for name in columns)
        assert label == int(target)
        return "equal values"

    with Loader(dataset, 1024, shuffle=True, num_workers=0) as loader:
        rows = DataLoader(Rows(), 1024, sampler=order(count, 2048))
        yield Sides(Repeat(setting, lambda: list(rows), 2048), Repeat(setting, lambda: list(loader), count), check)


@tip(baseline="small files, not in the page cache", tip="one LMDB store, not in the page cache", unit="reads", where="host")
def lmdb(setting: Setting) -> Iterator[Sides]:
    folder, count = setting.folder("small") / "one", setting.some(3000, 60)
    folder.mkdir()
    tiles = [cv2.imencode(".jpg", cv2.resize(cv2.imread(str(file)), (64, 64)))[1].tobytes() for file in setting.files[:50]]
    for k in range(count):
        (folder / f"{k:05d}.jpg").write_bytes(tiles[k % len(tiles)])
    files = sorted(folder.iterdir())
    path = fastdata.prep(folder.parent, setting.work / "small.fds", codec="original").out
    shards, rows = list(path.rglob("*.mdb")), order(count, count)

    def read_store() -> int:
        images = StoreImages(path, None)  # opened anew: what is mapped stays in the page cache
        return sum(len(bytes(images.get(k))) for k in rows)

    def check() -> str:
        assert read_store() == sum(file.stat().st_size for file in files)
        return f"equal bytes; {check_cold([*files, *shards])}"

    yield Sides(
        Repeat(setting, lambda: [files[k].read_bytes() for k in rows], count, before=lambda: forget(files)),
        Repeat(setting, read_store, count, before=lambda: forget(shards)),
        check,
    )
