"""Signals while stores in object storage are read and written. They need obstore."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

from fastdata import LMDBDataset, Loader, RandomCrop
from kills import ORPHANS, disturb, end_of, forked, killed, lose, photos, two_epochs
from load_remote import Remote, remote, small_shards
from support import MAIN, PREP, children, downloaders, run, start, tree, until

SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
RATE = 500_000  # bytes a second, so that there is always a shard on its way
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
URL = "s3://bucket/{}.fds"
OPTIONS = ("--size", "24", "--shard-samples", "4", "--workers", "2")


@killed
def remote_loading(rng: Random, folder: Path) -> None:
    """The process that fetches, one that loads, or a worker gets a signal; the next one loads all, and leaves nothing."""
    local = LMDBDataset(small_shards(), crop=RandomCrop(24))
    expected = two_epochs(Loader(local, 4, shuffle=True, num_workers=0, seed=5, order="interleaved"))
    workers = rng.choice((0, 2))
    with remote(small_shards(), rate=RATE) as store:

        def make() -> Loader:
            return Loader(store.images(), 4, shuffle=True, num_workers=workers, seed=5)

        to_downloader = rng.random() < 0.7
        victims = (lambda pid: downloaders(store.cache)) if to_downloader else children
        lost = lose(rng, make, expected, victims, deadly=SIGNALS if to_downloader else SIGNALS[:3])
        assert not (lost and to_downloader), lost
        with forked(lambda say: [say(line) for epoch in two_epochs(make()) for line in epoch] and None) as (pid, lines):
            assert [line.rstrip("\n") for line in lines] == expected[0] + expected[1], "the next process gets other batches"
            end_of(pid)
        until(lambda: not left_in(store), ORPHANS)


def left_in(store: Remote) -> list[Any]:
    """The processes and files that are left of a store that nobody reads."""
    return [*downloaders(store.cache), *store.cache.glob("readers/*/*.*")]


def _written(rng: Random, folder: Path, *words: str | Path) -> None:
    """A command that writes a store to URL gets signals; given again, it completes the store."""
    with remote() as store:
        env = {**os.environ, **KEYS, "AWS_ENDPOINT_URL": store.endpoint, "TMPDIR": str(folder)}

        def command(name: str) -> list[str | Path]:
            return [word.format(name) if word is URL else word for word in words]

        def objects(name: str) -> dict[str, bytes | None]:
            return {path: data for path, data in tree(store.root / f"bucket/{name}.fds").items() if data is not None}

        began = time.monotonic()
        done = run(*command("whole"), env=env)
        seconds = time.monotonic() - began
        assert done.returncode == 0, done.stderr
        for _ in range(rng.choice((1, 1, 3))):
            disturb(start(*command("o"), env=env), rng, seconds)
            assert "manifest.json" not in objects("o") or objects("o") == objects("whole"), "a manifest without its store"
        left = {*folder.iterdir()}  # by runs that were killed
        done = run(*command("o"), env=env)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
        assert objects("o") == objects("whole"), "other objects"
        assert left >= {*folder.iterdir()}, "files are left"


@killed
def remote_publishing(rng: Random, folder: Path) -> None:
    _written(rng, folder, *MAIN, "publish", small_shards(), URL)


@killed
def remote_preparing(rng: Random, folder: Path) -> None:
    _written(rng, folder, *PREP, photos(), URL, *OPTIONS)
