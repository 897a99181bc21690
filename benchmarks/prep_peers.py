"""The programs that prep_rates.py measures beside fastdata-prep, which they do not import.

python benchmarks/prep_peers.py NAME LISTING SIZE WORKERS OUT     NAME: bare or lmdb; LISTING: a file with a path a line
"""

from __future__ import annotations

import multiprocessing
import sys
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

QUALITY = 90
COMMIT = 1000  # records of a transaction

Array = np.ndarray[Any, np.dtype[Any]]


def shrink(image: Array, size: int) -> Array:
    """The short side becomes `size`."""
    h, w = image.shape[:2]
    side = min(h, w)
    filter_ = cv2.INTER_AREA if side > size else cv2.INTER_CUBIC
    return cv2.resize(image, (size * w // side, size * h // side), interpolation=filter_)


def encode(path: str, size: int) -> bytes:
    """Read, decode, resize, encode: the cv2 calls and nothing else."""
    image: Any = cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR)
    return cv2.imencode(".jpg", shrink(image, size), [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1].tobytes()


def encode_only(path: str, size: int) -> int:
    return len(encode(path, size))


def encode_named(path: str, size: int) -> tuple[str, bytes]:
    return path, encode(path, size)


def write_lmdb(records: Any, out: str) -> None:
    """Put records into one LMDB. One fsync at the end, which is kind to it."""
    import lmdb

    env = lmdb.open(out, subdir=False, map_size=1 << 36, sync=False)
    txn = env.begin(write=True)
    for number, (path, record) in enumerate(records, 1):
        txn.put(path.encode(), record)
        if number % COMMIT == 0:
            txn.commit()
            txn = env.begin(write=True)
    txn.commit()
    env.sync(True)
    env.close()


def play(name: str, listing: str, size: int, workers: int, out: str) -> None:
    paths = Path(listing).read_text().splitlines()
    with multiprocessing.Pool(workers, cv2.setNumThreads, (1,)) as pool:
        if name == "lmdb":
            write_lmdb(pool.imap_unordered(partial(encode_named, size=size), paths, chunksize=8), out)
        else:
            sum(pool.imap_unordered(partial(encode_only, size=size), paths, chunksize=8))


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
