"""The effect of each tip of docs/speed.md on this machine.

    python benchmarks/tips.py [--quick] [--only NAME ...] [--device cuda] [--photos FOLDER] [--write] [--list]

A tip has two sides, which take turns in rounds; the result is the median of the rounds' ratios, with the least and the greatest.
What both sides make is compared before. Models run on one thread of the CPU, or on the GPU. It writes the result to
benchmarks/results/tips-DATE-DEVICE.json, and with --write also into the table of docs/speed.md. The full run takes eight minutes
on two cores; --quick, whose figures mean nothing, takes one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import cv2
import torch

sys.path.insert(0, str(Path(__file__).parent / "tips"))

import of_data
import of_loading
import of_models
import of_updates
from measuring import TIPS, Setting, measure
from page import cell, machine_line, write
from prep_inputs import photos
from recording import machine, write_json

ROOT = Path(__file__).resolve().parents[1]

assert all((of_data, of_loading, of_models, of_updates))  # importing them fills TIPS


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny inputs, one round: does everything run?")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[], help="these tips; --list names all of them")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--photos", type=Path, default=Path("photos"), help="folder of JPEG files; without, pictures are generated")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results", help="folder of the result")
    parser.add_argument("--write", action="store_true", help="put the numbers into the table of docs/speed.md")
    parser.add_argument("--page", type=Path, default=ROOT / "docs/speed.md", help="the page that --write changes")
    parser.add_argument("--list", action="store_true", help="name the tips, and end")
    given = parser.parse_args()
    if unknown := [name for name in given.only if name not in TIPS]:
        parser.error(f"--only {' '.join(unknown)}: there is no such tip; --list names all of them")
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")
    return given


def main() -> None:
    given = arguments()
    if given.list:
        print("\n".join(f"{one.name} ({one.where}): {one.baseline} | {one.tip}" for one in TIPS.values()))
        return
    chosen = [one for name, one in TIPS.items() if (name in given.only if given.only else not (given.quick and one.slow))]
    torch.set_num_threads(1)  # threads that wait for each other measure other programs
    cv2.setNumThreads(1)
    warnings.filterwarnings("ignore", "This DataLoader will create")  # too many workers: one tip does that on purpose
    found, date, load = {}, time.strftime("%Y%m%d"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="tips-") as folder:
        work = Path(folder)
        setting = Setting(torch.device(given.device), given.quick, work, photos(given.photos, work / "photos"))
        for one in chosen:
            started = time.perf_counter()
            try:
                found[one.name] = measure(one, setting)
            except Exception as error:  # noqa: BLE001  the others go on
                traceback.print_exc()
                found[one.name] = {"baseline": one.baseline, "tip": one.tip, "unit": one.unit, "state": f"failed: {error!r:.200}"}
            print(f"{one.name}: {cell(found[one.name])}   [{time.perf_counter() - started:.1f} s]", flush=True)
    about = machine()
    result = {"machine": about, "date": date, "device": given.device, "quick": given.quick, "load_before": load, "tips": found}
    given.out.mkdir(parents=True, exist_ok=True)
    write_json(given.out / f"tips-{date}-{given.device}.json", result)
    if given.write:
        column = "gpu" if given.device == "cuda" else "cpu"
        cells = {name: cell(one) for name, one in found.items() if one["state"].startswith(("measured", "left out"))}
        if missing := write(given.page, column, {**cells, "machine": machine_line(about, date, load)}):
            sys.exit(f"{given.page} has no place for {', '.join(missing)}: add <!--{column}:NAME--><!--/-->")
    if failed := [name for name, one in found.items() if one["state"].startswith("failed")]:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
