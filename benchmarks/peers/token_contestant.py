"""One way to get batches of tokens, as a process that is asked over stdin. Needs numpy and torch, and what it measures.

    python token_contestant.py serve SPEC      SPEC: a JSON file, see benchmarks/tokens.py

Token i is 7919 i modulo 50,000: whoever delivers rows of neighbours delivers rows whose differences are all alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEP, VOCAB = 7919, 50_000
Batches = Callable[[], Iterator[Any]]


def copy(spec: dict[str, Any]) -> Batches:
    """The limit: numpy's copy between two arrays larger than the cache, one core. Counted in batches of the same bytes."""
    half = np.memmap(spec["bin"], np.uint16, "r")[: 1 << 27]
    source, target = np.array(half), np.empty_like(half)
    rows = spec["batch"] * (spec["block"] + 1)
    count = len(source) // rows

    def batches() -> Iterator[Any]:
        while True:
            np.copyto(target, source)
            part = torch.from_numpy(target[: spec["batch"] * (spec["block"] + 1)].reshape(spec["batch"], -1))
            for _ in range(count):
                yield part

    return batches


def nanogpt(spec: dict[str, Any]) -> Batches:
    """nanoGPT's get_batch, train.py: a memmap made anew for each batch, int64 inputs and targets."""
    block, batch = spec["block"], spec["batch"]

    def batches() -> Iterator[Any]:
        while True:
            data = np.memmap(spec["bin"], dtype=np.uint16, mode="r")
            ix = torch.randint(len(data) - block, (batch,))
            x = torch.stack([torch.from_numpy((data[i : i + block]).astype(np.int64)) for i in ix])
            torch.stack([torch.from_numpy((data[i + 1 : i + 1 + block]).astype(np.int64)) for i in ix])
            yield x

    return batches


def fastdata(spec: dict[str, Any], *, in_memory: bool = False, following: bool = False) -> Batches:
    from fastdata import Loader, NextToken, RAMDataset, TokenDataset

    dataset = (RAMDataset if in_memory else TokenDataset)(spec["store"], block_size=spec["block"])
    loader, make = Loader(dataset, spec["batch"], shuffle=True, drop_last=True), NextToken()

    def batches() -> Iterator[Any]:
        while True:
            yield from (make(tokens)[0] for tokens in loader) if following else loader

    return batches


CONTESTANTS: dict[str, tuple[Callable[[dict[str, Any]], Batches], tuple[str, ...]]] = {
    "copy": (copy, ("numpy",)),
    "nanogpt": (nanogpt, ("numpy", "torch")),
    "fastdata": (fastdata, ("fastdata-torch", "torch")),
    "fastdata-memory": (lambda spec: fastdata(spec, in_memory=True), ("fastdata-torch", "torch")),
    "fastdata-next": (lambda spec: fastdata(spec, following=True), ("fastdata-torch", "torch")),
}


def _sound(rows: Any, spec: dict[str, Any]) -> bool:
    values = np.asarray(rows).astype(np.int64)
    wide = values.shape in [(spec["batch"], spec["block"] + extra) for extra in (0, 1)]
    return bool(wide and ((np.diff(values, axis=1) - STEP) % VOCAB == 0).all())


def main() -> None:
    spec = json.loads(Path(sys.argv[2]).read_text())
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to stderr
    make, packages = CONTESTANTS[spec["name"]]
    torch.manual_seed(0)
    batches = make(spec)()
    print(json.dumps({"versions": {name: metadata.version(name) for name in packages}}), file=replies)
    for _ in sys.stdin:
        count, sound, started = 0, True, time.perf_counter()
        rows: Any = None
        while time.perf_counter() - started < spec["seconds"]:
            for _ in range(16):
                rows = next(batches)
            count += 16
            if count == 16:
                kept = rows
        seconds = time.perf_counter() - started
        sound = _sound(kept, spec) and _sound(rows, spec)
        print(json.dumps({"images": count * spec["batch"] * spec["block"], "seconds": seconds, "sound": sound}), file=replies)


if __name__ == "__main__":
    main()
