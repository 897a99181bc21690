"""Harms a copy of a store again and again and reads it each time. `run_harms` does so in a process of its own, which may die."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastdata
from fastdata.errors import FastDataError


class Outcome(NamedTuple):
    """What came of a harm: "same", "other" samples, or the name and the text of an error."""

    file: str
    at: int
    bit: int
    found: str
    text: str


def _flat(value: Any) -> Any:
    """A sample as plain values that compare."""
    if hasattr(value, "numpy"):
        return value.shape, value.numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    if isinstance(value, dict):
        return [(name, _flat(item)) for name, item in value.items()]
    if isinstance(value, tuple | list):
        return [_flat(item) for item in value]
    return value


def _all(dataset: Any) -> list[Any]:
    return [_flat(dataset[k]) for k in range(len(dataset))]


READERS: dict[str, Callable[[Path], list[Any]]] = {
    "images": lambda path: _all(fastdata.LMDBDataset(path)),
    "images in memory": lambda path: _all(fastdata.RAMDataset(path, shared=False)),
    "masks": lambda path: _all(fastdata.MaskDataset(path)),
    "tokens": lambda path: _all(fastdata.TokenDataset(path, 16, mode="document")),
    "tokens in memory": lambda path: _all(fastdata.RAMDataset(path, block_size=16, mode="sequential", shared=False)),
    "arrays": lambda path: _all(fastdata.ArrayDataset(path)),
    "arrays in memory": lambda path: _all(fastdata.RAMDataset(path, shared=False)),
}


def _choose(rng: random.Random, files: list[Path]) -> tuple[Path, int, int]:
    """A file, a byte and a bit to flip; bit -1: cut the file there."""
    file = rng.choice(files)
    return file, rng.randrange(file.stat().st_size), -1 if rng.random() < 0.1 else rng.randrange(8)


def main(kind: str, whole: str, copy: str, seed: int, count: int) -> None:
    """Write each harm before it is done, and what came of it after."""
    read, root, rng = READERS[kind], Path(copy), random.Random(seed)
    expected = read(Path(whole))
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size]
    for _ in range(count):
        file, at, bit = _choose(rng, files)
        spec = [str(file.relative_to(root)), at, bit]
        _say(spec)
        before = file.read_bytes()
        after = bytearray(before)
        if bit < 0:
            del after[at:]
        else:
            after[at] ^= 1 << bit
        _write(file, bytes(after))
        try:
            found, text = ("same" if read(root) == expected else "other"), ""
        except FastDataError as error:
            found, text = type(error).__name__, str(error)
        except BaseException as error:  # noqa: BLE001  the test wants to see it
            found, text = f"not ours: {type(error).__name__}", str(error)
        _write(file, before)
        _say([*spec, found, text])
    assert read(root) == expected


def _write(file: Path, data: bytes) -> None:
    """Put another file in its place: one that is mapped must not change."""
    file.with_suffix(".new").write_bytes(data)
    file.with_suffix(".new").replace(file)


def _say(line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()  # what follows may end the process


def run_harms(kind: str, store: Path, folder: Path, *, seed: int, count: int, seconds: float = 300) -> list[Outcome]:
    """Harm a copy of a store `count` times."""
    copy = Path(shutil.copytree(store, folder / "harmed.fds", dirs_exist_ok=True))
    code = "import sys, harm; harm.main(*sys.argv[1:4], *map(int, sys.argv[4:]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}
    command = [sys.executable, "-W", "ignore", "-c", code, kind, str(store), str(copy), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=seconds, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{lines[-1:]}: it ended with {done.returncode}: {done.stderr[-2000:]}"
    return [Outcome(*line) for line in lines if len(line) > 3]
