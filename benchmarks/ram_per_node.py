"""How much memory the ranks of a node take that hold one store: python benchmarks/ram_per_node.py STORE [--ranks 1 2 4 8]

Each rank is a process of its own. It imports everything, counts its memory, opens the store with RAMDataset, reads every record,
and counts again. Memory is PSS of /proc/PID/smaps_rollup, in which a page that eight processes map counts an eighth for each, so
that the sum is what the machine holds for them. Times are those of the slowest rank, from `RAMDataset(...)` on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RANK = """
import json, sys, time
from pathlib import Path
import numpy, torch, fastdata
from fastdata.store.store import Store
from fastdata import RAMDataset
import fastdata.images.ram

def wait():
    print(flush=True)
    sys.stdin.readline()

wait()
began = time.perf_counter()
dataset = RAMDataset(sys.argv[1], shared=sys.argv[2] == "shared", **json.loads(sys.argv[3]))
opened = time.perf_counter() - began
memory = next(v for v in vars(dataset).values() if hasattr(v, "records")).records.bytes
total = int(memory.astype("u1", copy=False).view("u1").sum())
print(json.dumps([opened, len(memory), total]), flush=True)
sys.stdin.readline()
"""


def pss(process: subprocess.Popen[str]) -> int:
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def measure(path: Path, count: int, options: dict[str, Any], *, shared: bool) -> dict[str, Any]:
    command = [sys.executable, "-c", RANK, str(path), "shared" if shared else "alone", json.dumps(options)]
    ranks = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]

    def step() -> list[str]:
        """Wait until each has said a line, count the memory of all, and let them go on."""
        return [rank.stdout.readline() for rank in ranks]  # type: ignore[union-attr]

    def go() -> None:
        for rank in ranks:
            rank.stdin.write("\n")  # type: ignore[union-attr]
            rank.stdin.flush()  # type: ignore[union-attr]

    step()
    before = sum(map(pss, ranks))
    began = time.perf_counter()
    go()
    said = [json.loads(line) for line in step()]
    seconds = time.perf_counter() - began
    after = sum(map(pss, ranks))
    go()
    for rank in ranks:
        rank.communicate()
    assert len({(length, total) for _, length, total in said}) == 1, "ranks have read different bytes"
    return {
        "ranks": count,
        "shared": shared,
        "store_bytes": said[0][1],
        "pss_bytes": after - before,
        "pss_before": before,
        "open_s": max(opened for opened, _, _ in said),
        "read_s": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--decoded", action="store_true", help="hold pixels")
    parser.add_argument("--alone", action="store_true", help="measure shared=False too")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = {"decoded": True} if arguments.decoded else {}
    found = [
        measure(arguments.store, count, options, shared=shared)
        for shared in ((True, False) if arguments.alone else (True,))
        for count in arguments.ranks
    ]
    if arguments.json:
        print(json.dumps(found))
        return
    print("| ranks | shared | store MB | PSS MB | PSS - store, MB a rank | opened in s |")
    print("|--:|---|--:|--:|--:|--:|")
    for row in found:
        size, held = row["store_bytes"] / 1e6, row["pss_bytes"] / 1e6
        extra = (held - size) / row["ranks"]
        print(f"| {row['ranks']} | {row['shared']} | {size:,.1f} | {held:,.1f} | {extra:,.1f} | {row['open_s']:.2f} |")


if __name__ == "__main__":
    main()
