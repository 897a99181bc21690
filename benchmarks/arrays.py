"""Random crops of a volume: the Loader beside numpy.memmap slices and Zarr, and beside memcpy.

python benchmarks/arrays.py [--quick] [--side 512] [--crop 64] [--batch 8] [--rounds 5] [--no-peers]

One volume of uint16, stored in chunks of 32 x 32 x 32 (memmap: one .npy file), in the page cache. Each contestant is a process that
is stopped while another has its turn. Writes benchmarks/results/arrays-DATE.md and .json. Needs 1 GB of disk below TMPDIR.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from array_contestant import values
from environments import python_of
from process import Contestant, Failed, without_paths
from recording import machine

import fastdata

PROGRAM, RESULTS = Path(__file__).parent / "peers/array_contestant.py", Path(__file__).parent / "results"
CHUNK = 32
# what stands in the table: the kind of contestant, and its workers
ROWS: dict[str, tuple[str, int]] = {
    "memcpy: numpy copies an array larger than the cache, one core": ("copy", 0),
    "`Loader(ArrayDataset)`, 2 workers": ("fastdata", 2),
    "`Loader(ArrayDataset)`, none": ("fastdata", 0),
    "`Loader(RAMDataset)`, 2 workers": ("memory", 2),
    "`numpy.memmap` slices in a DataLoader, 2 workers": ("memmap", 2),
    "`numpy.memmap` slices in a loop, one process": ("memmap", 0),
    "Zarr in a DataLoader, 2 workers": ("zarr", 2),
    "Zarr in a loop, one process": ("zarr", 0),
}
BASE = "`numpy.memmap` slices in a DataLoader, 2 workers"


def write_volume(path: Path, side: int) -> None:
    out = np.lib.format.open_memmap(path, "w+", np.dtype("<u2"), (side,) * 3)
    for z in range(side):
        out[z] = values([z], np.arange(side), np.arange(side))[0]
    out.flush()


def start(name: str, root: Path, spec: dict[str, Any]) -> Contestant:
    """A contestant that has had its first, uncounted turn."""
    kind, workers = ROWS[name]
    path = root / f"{kind}-{workers}.json"
    path.write_text(json.dumps({**spec, "kind": kind, "workers": workers}))
    python = python_of("zarr" if kind == "zarr" else None)
    if kind == "zarr" and not Path(spec["zarr"]).exists():
        done = subprocess.run([python, PROGRAM, "prepare", path], capture_output=True, text=True, timeout=900)
        if done.returncode:
            raise Failed(without_paths(done.stderr[-400:]))
    contestant = Contestant(python, PROGRAM, path, path.with_suffix(".log"))
    contestant.ask("epoch")
    return contestant


def report(rates: dict[str, list[float]], cpu: dict[str, list[float]], failed: dict[str, str], given: argparse.Namespace) -> str:
    size = given.crop**3 * 2
    lines = ["# Random crops of a volume", "", f"`{' '.join(['python', 'benchmarks/arrays.py', *sys.argv[1:]])}`", ""]
    lines += [
        *(f"- {name}: {value}" for name, value in machine().items() if name != "command"),
        "",
        f"Crops of {given.crop} a side of a volume of {given.side} a side, uint16, in batches of {given.batch}; Zarr in the same",
        f"chunks of {CHUNK} a side, without compression. Generated values, in the page cache. Medians over {given.rounds} rounds;",
        "ratios are those within a round. The first and the last batch of each turn have the volume's values.",
        "",
        "| | crops/s | spread | GB/s | CPU ms a crop | : memmap, DataLoader |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name, found in sorted(rates.items(), key=lambda item: -statistics.median(item[1])):
        middle, busy = statistics.median(found), statistics.median(cpu[name]) * 1e3
        ratio = statistics.median(a / b for a, b in zip(found, rates[BASE], strict=True))
        spread = f"{min(found):,.0f} - {max(found):,.0f}"
        lines.append(f"| {name} | {middle:,.0f} | {spread} | {middle * size / 1e9:.2f} | {busy:.2f} | {ratio:.2f} |")
    lines += [f"| {name} | failed: {why} | | | | |" for name, why in failed.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small volume, no Zarr, one round; nothing is written")
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--crop", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--no-peers", action="store_true", help="without Zarr, which is installed")
    given = parser.parse_args()
    if given.quick:
        given.side, given.rounds, given.seconds, given.no_peers = 128, 1, 0.3, True
    contestants, failed = dict[str, Contestant](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_volume(root / "volume.npy", given.side)
        fastdata.prep(root / "volume.npy", root / "volume.fds", chunk=CHUNK)
        spec = {"npy": str(root / "volume.npy"), "store": str(root / "volume.fds"), "zarr": str(root / "volume.zarr")}
        sizes = {"shape": (given.side,) * 3, "crop": given.crop, "batch": given.batch, "chunk": CHUNK, "seconds": given.seconds}
        try:
            for name in ROWS:
                if ROWS[name][0] == "zarr" and given.no_peers:
                    continue
                try:
                    contestants[name] = start(name, root, {**spec, **sizes})
                except (Failed, RuntimeError) as error:
                    failed[name] = str(error)
            rates: dict[str, list[float]] = {name: [] for name in contestants}
            cpu: dict[str, list[float]] = {name: [] for name in contestants}
            for k in range(given.rounds):
                for name, contestant in contestants.items():
                    run = contestant.measure()
                    rates[name].append(run.images / run.seconds)
                    cpu[name].append(run.cpu_s / run.images)
                    assert contestant.replies[-1]["sound"], f"{name} delivered values that are not the volume's"
                print(f"round {k + 1}: " + ", ".join(f"{r[-1]:,.0f}" for r in rates.values()), flush=True)
        finally:
            for contestant in contestants.values():
                contestant.close()
    text = report(rates, cpu, failed, given)
    print(text)
    if not given.quick:
        name = f"arrays-{time.strftime('%Y%m%d')}"
        (RESULTS / f"{name}.md").write_text(text)
        (RESULTS / f"{name}.json").write_text(
            json.dumps({"machine": machine(), "rates": rates, "cpu_s": cpu, "failed": failed}, indent=1)
        )


if __name__ == "__main__":
    main()
