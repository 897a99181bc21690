"""What several test files need: pictures, folders as bytes, and the command line as a process group."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PREP = [sys.executable, "-c", "from fastdata.cli import prep_main; prep_main()"]
MAIN = [sys.executable, "-m", "fastdata"]


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


def tree(root: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes; folders with None."""
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else None for p in sorted(root.rglob("*"))}


def run(*command: str | Path | int, seconds: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    options = {"capture_output": True, "text": True, "errors": "surrogateescape", "timeout": seconds, "check": False, **options}
    return subprocess.run([str(part) for part in command], **options)


def start(*command: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command as the leader of a process group of its own, which Ctrl-C stops as it would in a terminal."""
    options = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it, and so would the child
    try:
        return subprocess.Popen([str(part) for part in command], start_new_session=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    return _living(2, group)


def children(pid: int) -> list[int]:
    """The living children of a process."""
    return _living(1, pid)


def _living(field: int, value: int) -> list[int]:
    """Processes with that value in a field of /proc/<pid>/stat, counted from the state behind the name."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[field]) == value and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


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
