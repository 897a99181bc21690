"""prep: make a plan, run the shards that are not finished yet, and turn them into a store."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from fastdata.machine import available_cores
from fastdata.prepare.build_plan import build_plan, check_positive
from fastdata.prepare.folder import claimed, is_stored, writing
from fastdata.prepare.plan import Work
from fastdata.prepare.progress import check_mode
from fastdata.prepare.ray_engine import run_on_ray
from fastdata.prepare.replacing import is_settled
from fastdata.prepare.run import Engine, run_shards
from fastdata.prepare.splits import plan_stores
from fastdata.prepare.summary import Summary
from fastdata.prepare.tasks import describe, lay_plan, make_all, plan_tasks
from fastdata.prepare.upload import check_storage, opened, place_of, refuse_overwrite
from fastdata.remote.url import Storage
from fastdata.sources.python import share
from fastdata.sources.urls import reading_urls
from fastdata.store.files import PLAN, WORK

__all__ = ["prep"]

ENGINES = "local", "ray"


def prep(
    source: Any,
    out: str | os.PathLike[str] | None = None,
    *,
    limit: int | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    timeout: float = 60.0,
    progress: str = "off",
    engine: str = "local",
    storage: Storage | None = None,
    **options: Any,
) -> Summary:
    r"""Make a store of images, arrays or text. After an interruption, the same call continues the run.

    Of a source with splits, such as a folder with train/ and val/ or a table with a column `split`, it makes a store for each, with
    the classes of train: photos-train.fds and photos-val.fds. The summary is that of train; its `splits` has all by name.

    Args:
        source: the inputs.
            Images: a folder (one folder per class, or flat); a table of paths and labels; archives (WebDataset tars, Parquet,
            .arrow, MDS, LitData), several as "shards-{000..099}.tar"; or a Python sequence, or "module:function", which returns
            one: of arrays or tensors (uint8 or uint16, [H, W] or [H, W, 3]), Pillow images, bytes or paths of image files, of
            (image, label) pairs or dicts of these, such as a dataset of torchvision or of Hugging Face; or a DataFrame of paths.
            What `module:function` returns, and what pickles to less than 64 MB, is read by each worker; any other sequence by
            this process, in threads, an item at a time. A run that goes on notices another length, other labels, and other
            contents of 1,000 items.
            Arrays: a folder, a table of paths, or one file: .npy, .npz, NIfTI.
            Text (with tokenizer or train_bpe): a folder or a file of .txt (one document each), .jsonl or .parquet; .txt and .jsonl
            also as .gz or .zst.
        out: the store to make: a folder, or a URL of object storage, such as s3://bucket/photos.fds; None: the source's name +
            ".fds", in the current folder.
        limit: prepare only this many images or arrays, evenly spaced; or the first documents.
        workers: number of processes; None: one per core.
        overwrite: replace the store that is there, once the new one is whole; until then the disk holds both. An unfinished store
            with other options or inputs is removed first. Not for a URL.
        timeout: seconds after which an input is considered to hang its decoder.
        progress: "auto", "plain", "json" or "off".
        engine: what runs the workers: "local", this machine, or "ray", the Ray cluster that RAY_ADDRESS names, else a new one on
            this machine; its nodes share the disk of OUT, or OUT is a URL.
        storage: if OUT is a URL, options of the client: endpoint, region, anonymous and others; what is missing comes from the
            environment.
        kind: "images", "arrays" or "tokens"; None: follows from the options and files.
        options: the options of the kind, see below.

    Raises:
        PrepError: the run cannot start or continue. Finished shards are kept.
        StoreError: the store cannot be written, for example because the disk is full. Finished shards are kept.
        TypeError: there is no such option.
        ValueError: an argument is wrong.
    """
    check_positive(workers=workers, timeout=timeout)
    check_mode(progress)
    if engine not in ENGINES:
        raise ValueError(f"--engine is {engine}, but must be one of {', '.join(ENGINES)}")
    if engine == "ray" and not isinstance(source, str | os.PathLike):
        raise ValueError(f"source is a {type(source).__name__}, which the nodes of Ray cannot read: give it as 'module:function'")
    check_storage(storage, source, out)
    refuse_overwrite(out, overwrite)
    with share(source, out, options.pop("labels", None)) as (path, labels), reading_urls(storage), ExitStack() as stack:

        def plan(source: Any, out: Any, **options: Any) -> Work:
            remote = stack.enter_context(opened(place_of(out), storage))
            return build_plan(source, out, remote, storage, limit=limit, **options)

        def make(work: Work) -> Summary:
            started = time.monotonic()
            with writing(work.place):
                if not overwrite and is_stored(work) and not (work.out / WORK / PLAN).exists() and is_settled(work.out):
                    return _already(work)
                with _laid(work, overwrite, share=engine == "ray") as laid:
                    if laid is None:
                        return _already(work)
                    run: Engine
                    if engine == "ray":
                        run = partial(run_on_ray, work=laid, workers=workers, timeout_s=timeout)
                    else:
                        run = partial(run_shards, work=laid, workers=workers or available_cores(), timeout_s=timeout)
                    return make_all(laid, run, progress, started)

        made = {name: make(work) for name, work in plan_stores(plan, path, out, {**options, "labels": labels}).items()}
        first = next(iter(made.values()))
        return first if "" in made else replace(first, splits=made)


@contextmanager
def _laid(work: Work, overwrite: bool, *, share: bool) -> Iterator[Work | None]:
    """Write the plan into OUT, and keep OUT claimed, for this process alone or for tasks too. The value is that of `lay_plan`."""
    if share:
        laid = plan_tasks(work, overwrite)
        with claimed(work.out, share=True):
            yield laid
    else:
        with claimed(work.out):
            yield lay_plan(work, overwrite)


def _already(work: Work) -> Summary:
    """Describe a store that was finished before this run."""
    return describe(work.out, work.remote, work, None, 0.0, ())
