"""--overwrite: the old store stays until the new one is whole, and readers get samples of one or the other."""

from __future__ import annotations

import fcntl
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import fastdata
from fastdata import LMDBDataset, RAMDataset
from fastdata.errors import PrepError, StoreError
from fastdata.store.store import verify
from stores import write_files
from support import tree

OLD, NEW, COUNT = 97, 98, 12
OPTIONS: dict[str, dict[str, Any]] = {
    "images": {"codec": "rgb", "shard_samples": 3},
    "text": {"tokenizer": "bytes", "end_token": "none"},
    "arrays": {"kind": "arrays"},
}


def _prepared(root: Path, kind: str, value: int) -> tuple[Path, Path]:
    """Inputs that hold one value, and their store."""
    pixels = {"images": np.full((24, 24, 3), value, np.uint8), "arrays": np.full((8, 8, 8), value, np.uint8)}
    ending = {"images": ".bmp", "text": ".txt", "arrays": ".npy"}[kind]
    source = write_files(root / str(value), {f"{value}-{k:02d}{ending}": pixels.get(kind, chr(value) * 40) for k in range(COUNT)})
    return source, fastdata.prep(source, root / f"{value}.fds", workers=1, **OPTIONS[kind]).out


def _values(dataset: Any) -> set[int]:
    """The values of all samples, without labels and what pads a row."""
    samples = (dataset[k] for k in range(len(dataset)))
    firsts = (sample[0] if isinstance(sample, tuple) else sample for sample in samples)
    return {int(value) for first in firsts for value in np.unique(np.asarray(first))} - {65535}


@pytest.mark.parametrize("kind", OPTIONS)
def test_who_has_the_old_store_open_gets_its_samples_or_an_error(kind: str, tmp_path: Path) -> None:
    (_, out), (source, expected) = (_prepared(tmp_path, kind, value) for value in (OLD, NEW))
    more: dict[str, Any] = {"block_size": 7} if kind == "text" else {}
    read, unread, held = fastdata.open(out, **more), fastdata.open(out, **more), RAMDataset(out, **more)
    assert _values(read) == _values(held) == {OLD}
    fastdata.prep(source, out, overwrite=True, workers=1, **OPTIONS[kind])
    assert tree(out) == tree(expected)
    assert _values(read) == _values(held) == {OLD}
    with pytest.raises(StoreError, match="was replaced while this dataset was in use; open the dataset again"):
        _values(unread)
    assert _values(fastdata.open(out, **more)) == {NEW}


class Pair(NamedTuple):
    """Inputs that hold NEW, their store, and a store that holds OLD."""

    new: Path
    new_store: Path
    old_store: Path
    options: dict[str, Any] = OPTIONS["images"]

    def copied(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.old_store, folder / "o.fds"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    root = tmp_path_factory.mktemp("images")
    return Pair(*_prepared(root, "images", NEW), _prepared(root, "images", OLD)[1])


_watchers: list[Callable[[], None]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("os.rename", "os.remove", "os.link", "os.rmdir", "os.mkdir") and _watchers:
        watcher = _watchers.pop()  # what it does is not watched
        watcher()
        _watchers.append(watcher)


sys.addaudithook(_audit)  # which cannot be removed


@contextmanager
def before_each_step(watcher: Callable[[], None]) -> Iterator[None]:
    """Call a function whenever this process is about to change a name in a folder."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.clear()


def test_at_any_step_there_is_one_whole_store_and_finishing_again_ends_alike(images: Pair, tmp_path: Path) -> None:
    """A copy of the folder before a step is what a process leaves that is killed there."""
    out, states = images.copied(tmp_path), tmp_path / "states"
    early = LMDBDataset(out)
    opened = list[tuple[Any, set[int]]]()

    def look() -> None:
        dataset = LMDBDataset(out)
        opened.append((LMDBDataset(out), _values(dataset)))
        with suppress(StoreError):
            assert {int(value) for value in early[len(opened) % COUNT][0].unique()} == {OLD}
        shutil.copytree(out, states / str(len(opened)))

    fastdata.prep_plan(images.new, out, overwrite=True, **images.options)
    fastdata.prep_run(out, workers=1, progress=False)
    assert _values(LMDBDataset(out)) == {OLD} and list(verify(out)) == []
    with before_each_step(look):
        assert fastdata.prep_finish(out).out == out
    expected = tree(images.new_store)
    assert tree(out) == expected
    seen = [values for _, values in opened]
    assert len(seen) > 30 and seen == sorted(seen, key=lambda values: values == {NEW}) and {OLD} in seen and {NEW} in seen
    for dataset, values in opened:
        with suppress(StoreError):
            assert _values(dataset) == values
    for state, values in zip(sorted(states.iterdir(), key=lambda path: int(path.name)), seen, strict=True):
        assert _values(LMDBDataset(state)) == values and list(verify(state)) == [], state
        fastdata.prep_finish(state)
        assert tree(state) == expected, state


def test_in_tasks_with_another_plan_in_between(images: Pair, tmp_path: Path) -> None:
    out, options = images.copied(tmp_path), images.options
    assert not fastdata.prep_plan(images.new, out, overwrite=True, **{**options, "shard_samples": 2}).finished
    fastdata.prep_run(out, task=0, of=2, workers=1, progress=False)
    assert not fastdata.prep_plan(images.new, out, overwrite=True, **options).finished
    assert fastdata.prep_run(out, task=0, of=2, workers=1, progress=False).made == 2
    with pytest.raises(PrepError, match="lacks 2 of 4 shards"):
        fastdata.prep_finish(out)
    with pytest.raises(PrepError, match="was made, or begun, with other options"):
        fastdata.prep(images.new, out, **images.options)
    kept = {path.name: path.stat().st_ino for path in (out / "work/next/full").iterdir()}
    assert len(kept) == 2 and _values(LMDBDataset(out)) == {OLD} and list(verify(out)) == []
    fastdata.prep_plan(images.new, out, overwrite=True, **options)
    summary = fastdata.prep(images.new, out, overwrite=True, **images.options)
    assert (summary.resumed, summary.out) == (6, out) and tree(out) == tree(images.new_store)
    assert kept.items() <= {path.name: path.stat().st_ino for path in (out / "full").iterdir()}.items()
    assert fastdata.prep_finish(out).kept == COUNT and fastdata.prep_run(out, progress=False).made == 0


def test_what_fails_leaves_the_old_store_as_it_was(images: Pair, tmp_path: Path) -> None:
    out, broken = images.copied(tmp_path), tmp_path / "broken"
    broken.mkdir()
    (broken / "0.png").write_bytes(b"no image")
    with pytest.raises(PrepError, match=r"0\.png"):
        fastdata.prep(broken, out, overwrite=True, **images.options)
    assert tree(out) == tree(images.old_store)
    with pytest.raises(PrepError):
        fastdata.prep(tmp_path / "nothing", out, overwrite=True, **images.options)
    assert tree(out) == tree(images.old_store)


def test_of_two_that_overwrite_one_is_refused(images: Pair, tmp_path: Path) -> None:
    out = images.copied(tmp_path)
    (out / "work").mkdir()
    with (out / "work/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for prepare in (fastdata.prep, fastdata.prep_plan):
            with pytest.raises(PrepError, match="another fastdata-prep is making"):
                prepare(images.new, out, overwrite=True, **images.options)
    shutil.rmtree(out / "work")
    assert tree(out) == tree(images.old_store)
