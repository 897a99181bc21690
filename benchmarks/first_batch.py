"""How long a Loader over a million samples takes to its first batch, how much memory its processes take, and the planner's share.

python benchmarks/first_batch.py STORE [--samples 1000000] [--workers 2] [--method fork] [--pause 0]

The million is synthetic: one shard with the records of STORE, linked many times. torch is imported before the clock starts; every
measurement is a process of its own. With a pause, the program does something else between the Loader and its first batch, such as
making a model; the clock stands still meanwhile. What torch alone costs is measured too: a process that has only imported it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil

from fastdata.bench.harness import tree, tree_cpu_s, tree_pss
from fastdata.store.files import FileSum, file_sum, shard_file
from fastdata.store.shards import ShardWriter
from fastdata.store.store import Store

SHARD, RUNS = 8_000, 5
TORCH = """
import json, time
started = time.process_time()
import torch
own_kb = open("/proc/self/smaps_rollup").read().partition("Private_Dirty:")[2].split()[0]
print(json.dumps({"torch_cpu_s": time.process_time() - started, "torch_own_mb": 1.024e-3 * int(own_kb)}))
"""


def synthetic(source: Path, out: Path, samples: int) -> Path:
    """A store of so many samples, which are those of `source` again and again."""
    store = Store(source)
    variant = store.variant(None)
    reader = store.reader(variant)
    (out / variant.name).mkdir(parents=True)
    first = out / shard_file(variant.name, 0)
    writer = ShardWriter(first)
    for k in range(SHARD):
        writer.append(bytes(reader.get(k % len(store))))
    total = writer.finish()
    shards = samples // SHARD
    for k in range(1, shards):
        os.link(first, out / shard_file(variant.name, k))
    rows = np.tile(np.asarray(store.samples)[np.arange(SHARD) % len(store)], shards)
    files: dict[str, FileSum] = {}
    np.save(out / "samples.npy", rows)
    names = (source / "names.txt").read_bytes().splitlines(keepends=True)
    (out / "names.txt").write_bytes(b"".join(names[k % len(names)] for k in range(SHARD)) * shards)
    (out / "rejects.jsonl").write_bytes(b"")
    for name in store.manifest.files:
        files[name] = file_sum(out / name)
    manifest = dataclasses.replace(
        store.manifest,
        num_samples=shards * SHARD,
        num_rejects=0,
        shard_samples=(SHARD,) * shards,
        variants=(dataclasses.replace(variant, shards=(total,) * shards),),
        files=files,
    )
    (out / "manifest.json").write_bytes(manifest.to_json())
    return out


def measure(path: str, workers: int, method: str, pause: float) -> dict[str, float]:
    """In a fresh process: seconds to the first batch, MB of all processes, share of planning."""
    import torch

    from fastdata import LMDBDataset, Loader, RandomResizedCrop
    from fastdata.data.random import uniforms

    torch.multiprocessing.set_start_method(method)
    started = time.perf_counter()
    dataset = LMDBDataset(path, crop=RandomResizedCrop(224), hflip=0.5)
    loader = Loader(dataset, 64, shuffle=True, num_workers=workers)
    time.sleep(pause)
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - started - pause
    cpu = {f"{role}_cpu_s": tree_cpu_s(processes) for role, processes in roles().items()}
    for _ in range(40):
        next(batches)
    stats = loader.stats()
    per_batch = stats.work_s / (stats.batches or 1)
    rows = np.arange(64)
    started = time.perf_counter()
    for epoch in range(50):
        u = uniforms(0, epoch, rows, dataset.views.draws)
        dataset.views.plan(u, *dataset._images.sides(rows))
    planning = (time.perf_counter() - started) / 50
    found = {
        "first_s": first,
        "pss_mb": tree_pss() / 1e6,
        "pss_but_data_mb": pss_but_data(tree()) / 1e6,
        "ring_mb": stats.slot_bytes / 1e6,
        "planning": planning / per_batch,
        "batch_ms": 1e3 * per_batch,
    }
    memory = {f"{role}_mb": pss_but_data(processes) / 1e6 for role, processes in roles().items()}
    loader.close()
    return found | memory | cpu


def roles() -> dict[str, list[psutil.Process]]:
    """This process and its descendants by what they do."""
    this, *others = tree()
    found: dict[str, list[psutil.Process]] = {"parent": [this]}
    for process in others:
        command = " ".join(process.cmdline())
        server = "multiprocessing.forkserver" in command and process.ppid() == this.pid  # its workers have the same command
        role = "tracker" if "multiprocessing.resource_tracker" in command else "server" if server else "workers"
        found.setdefault(role, []).append(process)
    return found


def pss_but_data(processes: Iterable[psutil.Process]) -> int:
    """Bytes of processes, but for mapped files of the store and the Loader's shared memory (its slots, mostly)."""
    total, data = 0, False
    for process in processes:
        for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
            first, *rest = line.split()
            if "-" in first and not first.endswith(":"):  # of a mapping: addresses, rights, offset, device, inode, path
                data = len(rest) > 4 and ("/memfd:" in rest[4] or rest[4].endswith((".mdb", ".npy", ".txt")))
            elif first == "Pss:" and not data:
                total += 1024 * int(rest[0])
    return total


def answer(command: list[str]) -> dict[str, float]:
    """What a Python process prints."""
    found: dict[str, float] = json.loads(subprocess.run([sys.executable, *command], check=True, stdout=subprocess.PIPE).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--method", choices=["fork", "forkserver", "spawn"], default="fork")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between the Loader and its first batch")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(str(options.store), options.workers, options.method, options.pause)))
        return
    with tempfile.TemporaryDirectory(dir=options.store.absolute().parent) as folder:
        path = synthetic(options.store, Path(folder) / "million.fds", options.samples)
        arguments = ["--workers", str(options.workers), "--method", options.method, "--pause", str(options.pause), "--measure"]
        commands = [__file__, str(path), *arguments], ["-c", TORCH]
        runs = [{name: value for command in commands for name, value in answer(command).items()} for _ in range(RUNS)]
        count = len(Store(path))
    print(f"{count} samples, {options.workers} workers, {options.method}: medians of {RUNS}")
    for name in runs[0]:
        print(f"  {name}: {statistics.median(run[name] for run in runs):.3f}")


if __name__ == "__main__":
    main()
