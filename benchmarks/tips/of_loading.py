"""Tips on loading: workers, memory, what travels to the device, and how."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import cv2
import numpy as np
import torch
from measuring import LeftOut, Repeat, Setting, Sides, same_rows, tip
from torch import nn
from torch.utils.data import DataLoader, Dataset

from fastdata import Augment, GPUNormalize, LMDBDataset, Loader, Prefetcher, RandomResizedCrop
from fastdata.bench.harness import tree
from fastdata.bench.loaders import Start, Workload, our_loader, random_box, streamed
from fastdata.images.records import StoreImages
from fastdata.loader.fetch import quiet_worker
from fastdata.system.machine import available_cores
from fastdata.system.torch_private import end_kept_workers

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def task(setting: Setting) -> Workload:
    return Workload(str(setting.store("photos-256", size=256)), 256, 224, setting.some(32, 8))


class ByHand(Dataset[tuple[torch.Tensor, int]]):
    """A hand-written dataset of JPEGs: decodes with cv2, crops and flips at random, and returns a tensor [C, H, W]."""

    def __init__(self, work: Workload) -> None:
        self.records, self.crop = StoreImages(work.path, work.size), work.crop

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = cv2.imdecode(np.frombuffer(self.records.get(index), np.uint8), cv2.IMREAD_COLOR_RGB)
        top, left, h, w = random_box(*image.shape[:2])
        image = cv2.resize(image[top : top + h, left : left + w], (self.crop, self.crop))
        image = image[:, ::-1] if random.random() < 0.5 else image
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), int(self.records.targets[index])


def by_hand(work: Workload, workers: int, ahead: int = 2) -> Start:
    """Return torch's DataLoader over the hand-written dataset, used as its manual recommends."""
    make = partial(DataLoader[Any], ByHand(work), work.batch_size, shuffle=True, num_workers=workers)
    if workers:
        make = partial(make, prefetch_factor=ahead, persistent_workers=True, worker_init_fn=quiet_worker)
    return partial(streamed, make)


def pss() -> float:
    return float(sum(process.memory_full_info().pss for process in tree()))


@tip(baseline="DataLoader and cv2, num_workers=0", tip="DataLoader and cv2, a worker for each core", unit="images", where="host")
def workers(setting: Setting) -> Iterator[Sides]:
    work = task(setting)
    with by_hand(work, 0)() as one, by_hand(work, available_cores())() as many:
        yield Sides(one, many, longer=2)


@tip(baseline="DataLoader and cv2, a worker for each core", tip="four workers for each core", unit="images", where="host")
def too_many_workers(setting: Setting) -> Iterator[Sides]:
    work, before = task(setting), pss()
    with by_hand(work, available_cores())() as few:
        of_few = pss()
        with by_hand(work, 4 * available_cores())() as many:
            memory = {"memory": (of_few - before, pss() - of_few)}
            yield Sides(few, many, amounts=memory, longer=2)


@tip(baseline="DataLoader and cv2, prefetch_factor=2", tip="prefetch_factor=8", unit="images", where="host")
def prefetch(setting: Setting) -> Iterator[Sides]:
    short, long = (by_hand(task(setting), available_cores(), ahead) for ahead in (2, 8))
    with short() as few, long() as many:
        yield Sides(few, many, amounts={"batches in memory": (2.0, 8.0)}, longer=2)


@tip(
    baseline="DataLoader and cv2, a worker for each core",
    tip="Loader, which decodes only what the crop needs",
    unit="images",
    where="host",
)
def loading(setting: Setting) -> Iterator[Sides]:
    work, count = task(setting), available_cores()
    with by_hand(work, count)() as theirs, our_loader(work, work.dataset(), count)() as ours:
        yield Sides(theirs, ours, longer=2)


class Floats(Dataset[Any]):
    """Samples as ToTensor and Normalize make them, or as they are stored."""

    def __init__(self, images: torch.Tensor, *, floats: bool) -> None:
        self.images, self.floats = images, floats
        self.mean, self.std = (torch.tensor(numbers)[:, None, None] for numbers in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        image = self.images[index]
        return image.float().div(255).sub_(self.mean).div_(self.std) if self.floats else image


@tip(baseline="workers hand over normalized float32", tip="workers hand over uint8; GPUNormalize on the device", unit="images")
def uint8(setting: Setting) -> Iterator[Sides]:
    count, rows = available_cores(), setting.some(64, 8)
    images = torch.randint(0, 256, (8 * rows, 3, 224, 224), dtype=torch.uint8)
    normalize = GPUNormalize(MEAN, STD).to(setting.device)
    loaders = [
        DataLoader(Floats(images, floats=floats), rows, num_workers=count, persistent_workers=True) for floats in (True, False)
    ]

    def one_pass(batches: Any, floats: bool) -> torch.Tensor:
        for batch in batches:
            batch = batch.to(setting.device)
            batch = batch if floats else normalize(batch)
        return batch

    def check() -> str:
        mine, ours = one_pass(loaders[0], True), one_pass(loaders[1], False)
        assert torch.allclose(mine, ours, atol=1e-5)
        return "floats that differ by 1e-5 at most"

    try:
        yield Sides(
            Repeat(setting, lambda: one_pass(loaders[0], True), len(images)),
            Repeat(setting, lambda: one_pass(loaders[1], False), len(images)),
            check,
            {"bytes": (4.0 * images[:rows].numel(), 1.0 * images[:rows].numel())},
        )
    finally:
        for one in loaders:
            end_kept_workers(one)


@tip(baseline="random rows of other lengths, padded", tip="rows of like length together (batch_sampler=)", unit="rows")
def bucketing(setting: Setting) -> Iterator[Sides]:
    rng, rows = np.random.default_rng(0), 16
    lengths = np.clip(rng.lognormal(4, 0.7, setting.some(256, 32)), 8, 512).astype(int)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).to(setting.device)
    shuffled = rng.permutation(len(lengths)).reshape(-1, rows)
    grouped = np.argsort(lengths, kind="stable").reshape(-1, rows)

    def one_pass(batches: Any) -> None:
        for batch in batches:
            width = int(lengths[batch].max())
            padding = torch.arange(width)[None] >= torch.from_numpy(lengths[batch])[:, None]
            out = layer(torch.zeros(rows, width, 64, device=setting.device), src_key_padding_mask=padding.to(setting.device))
            out.sum().backward()

    def check() -> str:
        same_rows(np.sort(shuffled, axis=None), np.sort(grouped, axis=None))
        return "the same rows"

    cells = [float(sum(rows * lengths[batch].max() for batch in batches)) for batches in (shuffled, grouped)]
    yield Sides(
        *(Repeat(setting, lambda b=batches: one_pass(b), len(lengths)) for batches in (shuffled, grouped)),
        check,
        {"tokens with padding": (cells[0], cells[1])},
    )


def list_lightly(batches: Any) -> None:
    """Run through batches and keep none."""
    for _ in batches:
        pass


@tip(
    baseline="noise and brightness for each image, by numpy in this process",
    tip="Augment on the batch, on the device",
    unit="images",
    where="gpu",
)
def augment(setting: Setting) -> Iterator[Sides]:
    if find_spec("kornia") is None:
        raise LeftOut("needs pip install '.[augment]'")
    import kornia

    rows = setting.some(64, 8, 256)
    images = torch.randint(0, 256, (rows, 3, 224, 224), dtype=torch.uint8, device=setting.device)
    on_host = list(images.cpu().permute(0, 2, 3, 1).numpy())
    on_device = Augment(kornia.augmentation.RandomBrightness((0.7, 1.3), p=1.0))
    ids = list(range(rows))

    def by_hand() -> torch.Tensor:
        made = [np.clip(image * np.float32(random.uniform(0.7, 1.3)), 0, 255).astype(np.uint8) for image in on_host]
        return torch.from_numpy(np.stack(made)).to(setting.device)

    def check() -> str:
        assert on_device(images, ids=ids, epoch=0).shape == images.shape
        return "shapes"

    yield Sides(Repeat(setting, by_hand, rows), Repeat(setting, lambda: on_device(images, ids=ids, epoch=0), rows), check)


# On a GPU only


@tip(baseline="tensor.to(device) from ordinary memory", tip="from pinned memory, non_blocking=True", unit="copies", where="gpu")
def pinning(setting: Setting) -> Iterator[Sides]:
    ordinary = torch.randint(0, 256, (256, 3, 224, 224), dtype=torch.uint8)
    pinned = ordinary.pin_memory() if setting.cuda else ordinary
    yield Sides(
        Repeat(setting, lambda: ordinary.to(setting.device)),
        Repeat(setting, lambda: pinned.to(setting.device, non_blocking=True)),
        lambda: same_rows(ordinary.to(setting.device).cpu(), pinned.to(setting.device).cpu()) or "equal bytes",
    )


@tip(baseline="batch.to(device) in the loop", tip="Prefetcher", unit="batches", where="gpu")
def prefetcher(setting: Setting) -> Iterator[Sides]:
    host = [torch.randint(0, 256, (setting.some(64, 2), 3, 224, 224), dtype=torch.uint8) for _ in range(8)]
    model = nn.Sequential(GPUNormalize(MEAN, STD), nn.Conv2d(3, 64, 7, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 2)).to(setting.device)

    def plain() -> torch.Tensor:
        return sum(model(batch.to(setting.device)).detach().mean() for batch in host)  # type: ignore[return-value]

    def ahead() -> torch.Tensor:
        return sum(model(batch).detach().mean() for batch in Prefetcher(host, setting.device))  # type: ignore[return-value]

    def check() -> str:
        assert torch.allclose(plain(), ahead(), rtol=1e-4)
        return "equal results"

    yield Sides(Repeat(setting, plain, len(host)), Repeat(setting, ahead, len(host)), check)


@tip(baseline="Loader(device=...)", tip='Loader(device=..., backend="dali")', unit="images", where="gpu")
def dali(setting: Setting) -> Iterator[Sides]:
    if find_spec("nvidia") is None or find_spec("nvidia.dali") is None:
        raise LeftOut("needs pip install '.[dali]'")
    dataset = LMDBDataset(setting.store("photos-256", size=256), crop=RandomResizedCrop(224), hflip=0.5)
    options = {"shuffle": True, "device": setting.device if setting.cuda else None}
    with Loader(dataset, 64, **options) as ours, Loader(dataset, 64, backend="dali", **options) as theirs:
        yield Sides(*(Repeat(setting, lambda b=b: list_lightly(b), len(dataset)) for b in (ours, theirs)))
