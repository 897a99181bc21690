"""`fastdata doctor`: what is measured for a path, and for the names of a user's functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.data.opening import described, open
from fastdata.diagnosis.diagnosis import Diagnosis
from fastdata.diagnosis.doctor import TOTAL_S, doctor
from fastdata.diagnosis.files import subject_of_files
from fastdata.diagnosis.subject import Ours, Subject, subject_of
from fastdata.diagnosis.theirs import failures_named
from fastdata.diagnosis.training import load
from fastdata.errors import StoreError
from fastdata.images.crops import RandomResizedCrop
from fastdata.images.records import StoreImages
from fastdata.loader.loader import Loader
from fastdata.machine import available_cores
from fastdata.store.files import is_store
from fastdata.store.format import read_current

__all__ = ["examine"]

CROP, BATCH = 224, 64  # defaults; less if the images are smaller, or fewer


def examine(
    path: str | None, *, loader: str | None = None, model: str | None = None, seconds: float = TOTAL_S, **options: int | None
) -> Diagnosis:
    """Diagnose a store, a SOURCE of images, or a user's loader; see `fastdata doctor --help`.

    Raises:
        ValueError: an option is wrong, or belongs to another subject, or a function returns something else.
        StoreError: the store holds no images.
        FastDataError: a function fails, or what it returns does.
    """
    with failures_named("--loader", loader):
        subject = _find_subject(path, loader, **options)
    with failures_named("--model", model):
        step = None if model is None else load(model, "--model")
    with failures_named("--loader", loader, model):
        return doctor(subject, step, seconds=seconds)


def _find_subject(path: str | None, loader: str | None = None, **options: int | None) -> Subject:
    """Return what a path or the name of a function means."""
    given = {name: value for name, value in options.items() if value is not None}
    if loader is not None:
        if given:
            option = f"--{next(iter(given)).replace('_', '-')}"
            raise ValueError(f"{option} is about a loader that doctor makes, but --loader {loader} makes its own: leave it out")
        return subject_of(load(loader, "--loader"))
    if path is None:
        raise ValueError("there is nothing to measure: give a store, a folder of images, or --loader MODULE:FUNCTION")
    batch, workers = given.get("batch_size", BATCH), given.get("workers", available_cores())
    if not is_store(Path(path)):
        if "size" in given:
            raise ValueError(f"--size is about a store, which has stored sizes, but {path} is not one: leave it out")
        return subject_of_files(path, given.get("crop", CROP), batch, workers)
    return Ours(Loader(_dataset(path, given), batch, shuffle=True, num_workers=workers))


def _dataset(path: str | os.PathLike[str], given: dict[str, int]) -> Any:
    manifest = read_current(Path(path))[1]
    if manifest.kind != "images":
        raise StoreError(f"doctor makes a loader for stores of images only, not {described(path, manifest)}: give --loader")
    images = StoreImages(path, given.get("size"))
    if not len(images):
        raise StoreError(f"{path} has no images to measure with")
    side = int(np.median(np.minimum(*images.sides(np.arange(len(images))))))
    crop = given.get("crop") or min(CROP, side)
    return open(path, size=given.get("size"), crop=RandomResizedCrop(crop), hflip=0.5)
