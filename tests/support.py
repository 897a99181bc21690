"""What several test files need: pictures, folders as bytes, and the command line as a process group."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import xxhash

from fastdata import Crop
from fastdata.store.files import Stamp, file_sum
from fastdata.store.reader import LocalShards, RecordIndex, ShardReader
from fastdata.store.writer import ShardWriter

Array = npt.NDArray[Any]

PREP = [sys.executable, "-c", "from fastdata.entry import prep_main; prep_main()"]
MAIN = [sys.executable, "-m", "fastdata"]
# Python keeps these for the life of a process, as torch 2.6 does with its compiler
HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker", "torch/_inductor/compile_worker")


class Corner(Crop):
    """A corner of the image, resized."""

    draws = 2

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        h, w = heights // 2, widths // 2
        return np.stack([(u[0] < 0.5) * (heights - h), (u[1] < 0.5) * (widths - w), h, w], axis=1)


class Shifted(Crop):
    """A random box that is cut, and reaches outside."""

    draws, resizes, reaches_outside = 2, False, True

    def boxes(self, u: Array, heights: Array, widths: Array) -> Array:
        h, w = self.shape
        top, left = (u[0] * 21).astype(int) - 10, (u[1] * 21).astype(int) - 10
        return np.stack([top, left, np.full_like(top, h), np.full_like(left, w)], axis=1)


PEAK_MEMORY = """
def peak_memory():
    # the most bytes that this program has had in memory; ru_maxrss begins with what the program that started it had
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) << 10
"""


def picture(seed: int, height: int, width: int) -> Array:
    """A colourful RGB image, smooth with some noise, so that its JPEG is about as large as a photo's."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 6, 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 6, (height, width, 1)), 0, 255).astype(np.uint8)


def encode(image: Array, ending: str = ".jpg", *params: int) -> bytes:
    """An image file, written by OpenCV."""
    ok, data = cv2.imencode(ending, image if image.ndim == 2 else cv2.cvtColor(image, cv2.COLOR_RGB2BGR), params)
    assert ok
    return data.tobytes()


def write_pictures(
    folder: Path, count: int, *, height: int = 48, width: int = 64, seed: int = 0, ending: str = ".png"
) -> list[Path]:
    """`count` small images, 00.png and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{k:02d}{ending}" for k in range(count)]
    for k, path in enumerate(paths):
        path.write_bytes(encode(picture(seed + k, height, width), ending))
    return paths


def plain(value: Any) -> Any:
    """Turn a sample into what compares by value: arrays and tensors become their dtype, shape and bytes."""
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes; folders with None."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def run(*command: str | Path | int, seconds: float = 300, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    options = {"capture_output": True, "text": True, "errors": "surrogateescape", "timeout": seconds, "check": False, **options}
    return subprocess.run([str(part) for part in command], **options)


def start(*command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a process group of its own, which Ctrl-C stops as it would in a terminal."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    handled = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handled.items()}  # if ignored, the child ignores them
    try:
        return subprocess.Popen([str(part) for part in command], start_new_session=True, **options)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    return _living(2, group)


def children(pid: int, *, zombies: bool = False) -> list[int]:
    """The living children of a process. zombies: and those that have ended, for which it has not waited."""
    return _living(1, pid, zombies=zombies)


def downloaders(cache: Path) -> list[int]:
    """The processes that download for a cache of remote stores."""
    commands = [(pid, command.split(b"\0")) for pid, command in _in_proc("cmdline")]
    of_cache = [(pid, words) for pid, words in commands if os.fsencode(cache) in words]
    return [pid for pid, words in of_cache if any(b"fastdata.remote.downloader" in word for word in words)]


def worker_processes() -> set[int]:
    """The living processes that multiprocessing has for this one, also those whose parent is the fork server."""
    return {int(process.pid or 0) for process in multiprocessing.active_children()}


def processes() -> set[int]:
    """The living processes that this one has started, but for what Python and torch keep for the life of a process."""
    found = worker_processes()
    for pid in children(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if not any(helper in command for helper in HELPERS):
            found.add(pid)
    return found


def _in_proc(name: str) -> Iterator[tuple[int, bytes]]:
    """Each process, and what its file of this name in /proc says."""
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208  every test asks twice, and a Path is slow
        with suppress(OSError), open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:
            yield int(pid), file.read()


def _living(field: int, value: int, *, zombies: bool = False) -> list[int]:
    """Processes with that value in a field of /proc/<pid>/stat, counted from the state behind the name."""
    stats = [(pid, stat.rpartition(b")")[2].split()) for pid, stat in _in_proc("stat")]
    return [pid for pid, fields in stats if int(fields[field]) == value and (zombies or fields[0] not in b"ZX")]


def until(condition: Any, seconds: float = 20.0) -> Any:
    """Wait for something to become true, and return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.002)
    return found


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """kill -9 to a whole process group, and wait until the last of it is gone."""
    if process.poll() is None or members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not members(process.pid))


def tables(out: Path) -> list[Path]:
    """The tables of finished shards in a store that is being made."""
    return [p for p in (out / "work").glob("shard-*.json") if re.fullmatch(r"shard-\d+\.json", p.name)]


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("*/shard-*.mdb"))


def made_shards(out: Path) -> dict[Path, int]:
    """The finished shards of a store that is being made, and the inode of each."""
    return {path: path.stat().st_ino for path in shards(out) if (out / "work" / f"{path.stem}.json").exists()}


def signed(root: Path, name: str = "samples.npy") -> Path:
    """Give a file of a store that was changed its checksum in the manifest, as a program that lies would."""
    data, body = (root / name).read_bytes(), json.loads((root / "manifest.json").read_bytes())
    body["files"][name] = {"bytes": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
    (root / "manifest.json").write_text(json.dumps(body))
    return root


def written(path: Path, records: Sequence[bytes]) -> ShardReader:
    """Write a shard and the index of its records, and open them."""
    writer = ShardWriter(path)
    for record in records:
        writer.append(record)
    total, rows = writer.finish()
    index, manifest = path.with_suffix(".npy"), path.with_suffix(".json")
    np.save(index, rows)
    manifest.write_bytes(b"{}")
    stamp, size = Stamp(manifest, file_sum(manifest).xxh3_128), [total.bytes]
    return ShardReader(RecordIndex(index, file_sum(index), [len(records)], size, stamp), LocalShards([path], size, "x", stamp))


def run_ranks(count: int, *command: Any, env: dict[str, str] | None = None, cwd: Path | None = None, attempts: int = 4) -> int:
    """Run a command as so many ranks, as torchrun does: if one fails, all begin again. Returns 0, or the code of one that failed.

    Each attempt has a port of its own, and ends after a minute: gloo may wait in vain for a rank whose port another took.
    """
    for _ in range(attempts):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken.getsockname()[1]), "WORLD_SIZE": str(count)}
        parts = [str(part) for part in command]
        ranks = []
        for rank in map(str, range(count)):
            own = {**os.environ, **(env or {}), **where, "RANK": rank, "LOCAL_RANK": rank}
            ranks.append(subprocess.Popen(parts, env=own, cwd=cwd))
        end = time.monotonic() + 60
        while time.monotonic() < end and any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
            time.sleep(0.05)
        codes = [rank.poll() for rank in ranks]
        for rank in ranks:
            rank.kill()
            rank.wait()
        if codes == [0] * count:
            return 0
    return next((code for code in codes if code), -1)


# ------------------------------------------------------------------------------------------------------------- inside
# What several tests have to see, count or damage, and no public name gives.


def records_of(dataset: Any) -> list[Any]:
    """The records that a RAMDataset of images or arrays holds, then those of its masks: `bytes`, `ends`, and their number."""
    parts = [*getattr(dataset, "_sources", ()), *getattr(dataset, "_parts", ()), getattr(dataset, "_masks", None)]
    return [getattr(part, "source", part).records for part in parts if part is not None]


def memory_of(dataset: Any) -> Array:
    """The memory in which a dataset of any kind holds its samples, without masks; all of its copies share it."""
    if hasattr(dataset, "_records"):
        return dataset._records.bytes.view(dataset._stored_dtype)  # of tokens
    return dataset._whole.memory.array if hasattr(dataset, "_whole") else records_of(dataset)[0].bytes


def images_of(dataset: Any) -> Any:
    """Where a dataset of images has its records from: what reads and decodes them, to be replaced by what does it wrongly."""
    return dataset._images


def boxes_of(dataset: Any, indices: Any, *, seed: int, epoch: int) -> tuple[Array, Array]:
    """The boxes, int64 [n, 4], and flips, bool [n, 2], of the only view that `read_batch` makes of these arguments."""
    _, _, (plan,) = dataset._plan_batch(np.asarray(indices), seed, epoch, None)
    return np.array([sample.box for sample in plan]), np.array([sample.flip for sample in plan])


def documents_of(dataset: Any) -> Array:
    """The documents of a part of a TokenDataset: numbers in the whole store."""
    return dataset._chosen.array


def engine_of(loader: Any) -> Any:
    """What makes the batches of a Loader that runs: its slots have to come back, and whatever it holds has to go."""
    return loader._position.engine


def under_way(holder: Any) -> Any:
    """The copies to a device that a Prefetcher, the engine of a Loader, or a Copier still holds memory for."""
    return getattr(holder, "_copier", holder)._under_way


def step_of(run: Any) -> Any:
    """What a Trainer makes an update with: `add` takes the batches of one, `read_totals` counts those that were skipped."""
    return run._step


@contextmanager
def small_shards(samples: int, text_bytes: int = 1000) -> Iterator[None]:
    """Plan shards of so few samples, and so little text, that a small store has many."""
    from fastdata.prepare import plan
    from fastdata.text import planning

    places = [(plan, "SHARD_SAMPLES", samples), (planning, "LEAST_BYTES", text_bytes)]
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)
