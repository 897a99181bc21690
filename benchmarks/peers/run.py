"""fastdata's Loader beside its peers: the same pixels, the same crops, two workers or threads each, taking turns.

    make bench-peers                                   everything; the environments of the peers are made first
    python benchmarks/peers/run.py --quick             few images, one round: does it work?
    python benchmarks/peers/run.py --only tfdata --only dali --works train-256

What each work is, who takes part, and how each resizes: entries.py. What they read: inputs.py. How they are measured: process.py.
fastdata always takes part, as ratios are formed with it. A peer that can't be installed or fails is left out, and a line says why.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from contest import Left, Pythons, contest
from entries import ENTRIES, OURS, WORKS, Entry
from environments import python_of
from inputs import Inputs
from recording import machine, write_json, write_markdown
from report import heading, lines_of

HERE = Path(__file__).resolve().parent


def main() -> None:
    args = arguments()
    works = [work for work in WORKS if not args.works or work.name in args.works]
    entries = [e for e in ENTRIES if not args.only or e.name == OURS or {e.name, e.program} & set(args.only)]
    pythons, left = environments([e for e in entries if any(e.does(work) for work in works)])
    with tempfile.TemporaryDirectory(prefix="bench-peers-", dir=args.work) as folder:
        inputs = Inputs(args.photos, Path(folder), args.images, args.batch, args.workers)
        print(f"{inputs.count} images, {inputs.unique} different ones", flush=True)
        results = [contest(work, entries, pythons, left, inputs, args.rounds) for work in works]
    found = machine() | {"command": "python benchmarks/peers/" + machine()["command"]}
    settings = {name: getattr(args, name) for name in ("rounds", "workers", "batch")} | {
        "images": inputs.count,
        "unique": inputs.unique,
    }
    result = {"machine": found, "settings": settings, "works": results}
    if args.quick and args.out is None:
        print("\na smoke test: nothing is kept")
        return
    stem = (args.out or HERE.parent / "results") / f"peers-{datetime.now(timezone.utc):%Y%m%d}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    lines = [line for one in results for line in lines_of(one)]
    write_json(f"{stem}.json", result)
    write_markdown(f"{stem}.md", "fastdata's Loader and its peers", [*heading(result), *lines], found | settings)
    print(f"\nthe same in {stem.name}.json and .md")


def environments(entries: list[Entry]) -> tuple[Pythons, Left]:
    """The Python of each environment; and who has none."""
    pythons: Pythons = {}
    left: Left = {}
    for env in dict.fromkeys(entry.env for entry in entries):
        try:
            pythons[env] = python_of(env)
        except RuntimeError as error:
            left |= {entry.name: f"not installed: {error}" for entry in entries if entry.env == env}
    for name, why in left.items():
        print(f"LEFT OUT {name}: {why}", flush=True)
    return pythons, left


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--photos", type=Path, default=HERE.parents[2] / "shared/data/photos", help="folder of JPEG photos to repeat"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="of a contestant or its program; may repeat")
    parser.add_argument("--works", action="append", choices=[work.name for work in WORKS], help="may repeat; default: all")
    parser.add_argument("--images", type=int, help="of an epoch (4096; made a multiple of batch * workers)")
    parser.add_argument("--rounds", type=int, help="that are measured (5)")
    parser.add_argument("--workers", type=int, default=2, help="processes or threads of each contestant (2)")
    parser.add_argument("--batch", type=int, default=64, help="images of a batch (64)")
    parser.add_argument("--work", type=Path, help="folder for a temporary folder of some gigabytes")
    parser.add_argument("--out", type=Path, help="where the results go (benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="few images, one round: a smoke test; keeps results only with --out")
    args = parser.parse_args()
    known = {text for entry in ENTRIES for text in (entry.name, entry.program)}
    if unknown := sorted(set(args.only or ()) - known):
        parser.error(f"--only {unknown[0]}: there are {', '.join(sorted(known))}")
    for name, full, quick in (("images", 4096, 256), ("rounds", 5, 1)):
        if getattr(args, name) is None:
            setattr(args, name, quick if args.quick else full)
    return args


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # no contestant's libraries make threads beside its workers
    sys.exit(main())
