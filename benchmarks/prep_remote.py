"""How fast preparing to object storage is, beside preparing to a local disk.

    .venv-scale/bin/python benchmarks/prep_remote.py            about five minutes on 2 cores; nothing else may run meanwhile
    .venv-scale/bin/python benchmarks/prep_remote.py --quick    the same steps on few images: does it work?

Both take turns; ratios are formed within a round, and medians over the rounds are reported. The whole command is timed. The server
is tests/scale/faults.py, a process on this machine, which takes time from the workers that a server elsewhere would not take. So
the CPU time of each side is reported, and the rate that remains when that of the server is taken off, as if it was spread over all
cores. Every store is compared with the first one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from prep_inputs import photos, repeated
from prep_server import Run, Served, serving, shards, show

from fastdata.machine import available_cores


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--images", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--chaos", type=float, default=0.0, help="chance of each fault of a request, such as 0.01")
    arguments.add_argument("--photos", type=Path, default=Path("photos"), help="a folder of photos")
    given = arguments.parse_args()
    cores, count = available_cores(), 600 if given.quick else given.images
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        repeated(photos(given.photos, root / "photos"), count, root / "in")
        with serving(root / "served", given.chaos) as server:
            found = measure(root, cores, given.rounds, server)
    report(found, count, cores)


def measure(root: Path, cores: int, rounds: int, server: Served) -> list[tuple[Run, Run]]:
    """Return for each round what preparing to a disk took, and to the server."""
    found = []
    remote = root / "served/bucket/o.fds"
    options = "--order", "shuffled", "--workers", cores
    for round_ in range(rounds + 1):
        local = server.prepare(root / "in", root / "o.fds", *options)
        sent = server.prepare(root / "in", "s3://bucket/o.fds", *options)
        assert shards(root / "o.fds") == shards(remote), "the stores differ"
        shutil.rmtree(root / "o.fds")
        shutil.rmtree(remote)
        if round_:  # the first is to warm up
            found.append((local, sent))
    return found


def report(found: list[tuple[Run, Run]], count: int, cores: int) -> None:
    print(f"{count} images, {cores} cores, {len(found)} rounds")
    show("to a disk, images/s", [count / local.wall for local, _ in found], 0)
    show("to the server, images/s", [count / sent.wall for _, sent in found], 0)
    show("ratio of the rates", [local.wall / sent.wall for local, sent in found])
    show("CPU time to a disk, s", [local.own for local, _ in found], 1)
    show("CPU time to the server, s, without the server", [sent.own for _, sent in found], 1)
    show("CPU time of the server, s", [sent.served for _, sent in found], 1)
    show("ratio of the rates, the server's CPU time taken off", [a.wall / (b.wall - b.served / cores) for a, b in found])
    show("ratio of the CPU times, without the server", [local.own / sent.own for local, sent in found])


if __name__ == "__main__":
    main()
