"""The programs that prep_rates.py measures beside fastdata-prep. Needs no fastdata: MDSWriter's runs in an environment of its own.

    python benchmarks/prep_peers.py NAME LISTING SIZE WORKERS OUT     NAME: bare, lmdb or mds; LISTING: a file with a path a line

Each says on stderr how many images are done, once a second.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

QUALITY = 90
SAY_S = 1.0  # as often as prep_rates.py lets fastdata-prep
COMMIT = 1000  # records of a transaction in the plain LMDB loop

Array = np.ndarray[Any, np.dtype[Any]]


def shrink(image: Array, size: int) -> Array:
    """The short side becomes `size`."""
    h, w = image.shape[:2]
    side = min(h, w)
    filter_ = cv2.INTER_AREA if side > size else cv2.INTER_CUBIC
    return cv2.resize(image, (size * w // side, size * h // side), interpolation=filter_)


def bare(path: str, size: int) -> bytes:
    """Read, decode, resize, encode: the cv2 calls and nothing else."""
    image: Any = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    return cv2.imencode(".jpg", shrink(image, size), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def say(done: int) -> None:
    print(json.dumps({"done": done}), file=sys.stderr, flush=True)


def play_processes(paths: list[str], size: int, workers: int, out: Path, writer: Callable[[Path], Any] | None) -> None:
    """Processes that take the next image when they are done with one. `writer`: gives each one something to store records in."""
    place, done = multiprocessing.Value("q", 0), multiprocessing.Value("q", 0)
    processes = [
        multiprocessing.Process(target=_process, args=(paths, size, place, done, out / f"{k:03d}", writer)) for k in range(workers)
    ]
    for process in processes:
        process.start()
    said = time.monotonic()
    while any(process.exitcode is None for process in processes):
        processes[0].join(0.02) if processes[0].exitcode is None else time.sleep(0.02)
        if time.monotonic() - said >= SAY_S:
            said = time.monotonic()
            say(done.value)
    if any(process.exitcode for process in processes):
        sys.exit("a process failed")
    say(done.value)


def _process(paths: list[str], size: int, place: Any, done: Any, out: Path, writer: Callable[[Path], Any] | None) -> None:
    cv2.setNumThreads(1)
    sink = writer(out) if writer else None
    while True:
        with place.get_lock():
            k, place.value = place.value, place.value + 1
        if k >= len(paths):
            break
        record = bare(paths[k], size)
        if sink is not None:
            sink.write({"name": paths[k], "image": record})
        with done.get_lock():
            done.value += 1
    if sink is not None:
        sink.finish()


def play_lmdb(paths: list[str], size: int, workers: int, out: Path) -> None:
    """A pool does the cv2 work, this process puts the records into one LMDB. One fsync at the end, which is kind to it."""
    import lmdb

    env = lmdb.open(str(out / "plain.mdb"), subdir=False, map_size=1 << 36, sync=False)
    txn, done, said = env.begin(write=True), 0, time.monotonic()
    with multiprocessing.Pool(workers, cv2.setNumThreads, (1,)) as pool:
        for path, record in pool.imap_unordered(partial(_named, size=size), paths, chunksize=8):
            txn.put(path.encode(), record)
            done += 1
            if done % COMMIT == 0:
                txn.commit()
                txn = env.begin(write=True)
            if time.monotonic() - said >= SAY_S:
                said = time.monotonic()
                say(done)
    txn.commit()
    env.sync(True)
    env.close()
    say(done)


def _named(path: str, size: int) -> tuple[str, bytes]:
    return path, bare(path, size)


def play_mds(paths: list[str], size: int, workers: int, out: Path) -> None:
    """A writer for each process, as MDSWriter is fastest; then one index of all."""
    from streaming.base.util import merge_index  # type: ignore[import-not-found]

    play_processes(paths, size, workers, out, _mds_writer)
    merge_index(str(out), keep_local=True)


def _mds_writer(out: Path) -> Any:
    from streaming import MDSWriter  # type: ignore[import-not-found]

    return MDSWriter(out=str(out), columns={"name": "str", "image": "bytes"})


def play(name: str, listing: str, size: int, workers: int, out: str) -> None:
    """Be a contestant: the images are the lines of a file."""
    paths, folder = Path(listing).read_text().splitlines(), Path(out)
    folder.mkdir(parents=True)
    if name == "bare":
        play_processes(paths, size, workers, folder, None)
    else:
        {"lmdb": play_lmdb, "mds": play_mds}[name](paths, size, workers, folder)


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
