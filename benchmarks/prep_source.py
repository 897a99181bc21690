"""How fast preparing from object storage is, beside preparing from a local folder: single images, and WebDataset tars.

    .venv-scale/bin/python benchmarks/prep_source.py            about five minutes on 2 cores; nothing else may run meanwhile
    .venv-scale/bin/python benchmarks/prep_source.py --quick    the same steps on few images: does it work?

Both take turns; ratios are formed within a round, and medians over the rounds are reported. The whole command is timed, with its
start. The server is tests/scale/faults.py, a process of Python on this machine, which takes time from the workers that a server
elsewhere would not take. So the CPU time of each side is reported, and the ratio that remains when that of the server is taken off,
as if it was spread over all cores. Every store is compared with the one from the local folder.
"""

from __future__ import annotations

import argparse
import shutil
import tarfile
import tempfile
from pathlib import Path

from prep_inputs import photos, repeated
from prep_server import Run, Served, serving, shards, show

from fastdata.machine import available_cores

TARS = 16


def prepare(server: Served, source: str, out: Path) -> Run:
    """Prepare anew."""
    shutil.rmtree(out, ignore_errors=True)
    return server.prepare(source, out, FASTDATA_CACHE=str(out.parent / "cache"))


def write_tars(images: list[str], folder: Path) -> None:
    """Write the images into tars, with their classes."""
    folder.mkdir()
    for k in range(TARS):
        with tarfile.open(folder / f"{k:03d}.tar", "w", dereference=True) as tar:
            for number, path in enumerate(images[k::TARS]):
                tar.add(path, f"{k:03d}{number:06d}.jpg")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--images", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--photos", type=Path, default=Path("photos"), help="a folder of photos")
    given = arguments.parse_args()
    count = 600 if given.quick else given.images
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        bucket = root / "served/bucket"
        bucket.mkdir(parents=True)
        write_tars(repeated(photos(given.photos, root / "photos"), count, bucket / "images"), bucket / "tars")
        with serving(bucket.parent) as server:
            for what, source in (("single images", "images"), (f"{TARS} tars", f"tars/{{000..{TARS - 1:03d}}}.tar")):
                found = []
                for round_ in range(given.rounds + 1):
                    local = prepare(server, f"{bucket}/{source}", root / "local.fds")
                    remote = prepare(server, f"s3://bucket/{source}", root / "remote.fds")
                    if shards(root / "local.fds") != shards(root / "remote.fds"):
                        raise SystemExit("the stores differ")
                    if round_:  # the first is to warm up
                        found.append((local, remote))
                report(what, count, found)


def report(what: str, count: int, found: list[tuple[Run, Run]]) -> None:
    cores = available_cores()
    print(f"{what}: {count} images, {cores} cores, {len(found)} rounds")
    show("from the local disk, images/s", [count / local.wall for local, _ in found], 0)
    show("from the server, images/s", [count / remote.wall for _, remote in found], 0)
    show("ratio of the rates", [local.wall / remote.wall for local, remote in found])
    show("CPU time from the local disk, s", [local.own for local, _ in found], 1)
    show("CPU time from the server, s, without the server", [remote.own for _, remote in found], 1)
    show("CPU time of the server, s", [remote.served for _, remote in found], 1)
    show("ratio of the rates, the server's CPU time taken off", [a.wall / (b.wall - b.served / cores) for a, b in found])
    show("ratio of the CPU times, without the server", [a.own / b.own for a, b in found])


if __name__ == "__main__":
    main()
