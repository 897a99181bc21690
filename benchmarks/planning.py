"""Memory and CPU time that planning takes for each input, by the kind of SOURCE.

python benchmarks/planning.py [--few 50000] [--many 200000] [--only NAME ...] [--work FOLDER]

Each plan is made in a process of its own. What an input takes is the difference of the peaks of two plans, and of their CPU times,
divided by that of the inputs; names are included. Files are empty, since planning does not read them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER, CLASSES = 1000, 1000  # files in a folder, and classes
PLAN = """
import json, resource, sys
import fastdata, fastdata.images.planning
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) << 10
before, options = peak(), json.loads(sys.argv[3])
fastdata.prep_plan(sys.argv[1], sys.argv[2], **options)
used = resource.getrusage(resource.RUSAGE_SELF)
print(peak() - before, used.ru_utime + used.ru_stime)
"""


def name_of(k: int) -> str:
    return f"class{k // FOLDER:05d}/image_{k:09d}.jpg"


def folders(work: Path, count: int) -> Path:
    root = work / f"folders-{count}"
    for k in range(count):
        path = root / name_of(k)
        if k % FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.touch()
    return root


def table(work: Path, count: int) -> Path:
    """A CSV of paths, classes and captions. All paths are of the same files."""
    path = work / f"{count}.csv"
    with path.open("w") as file:
        file.write("path,label,caption\n")
        for k in range(count):
            file.write(f"{name_of(k)},class {k * 7919 % CLASSES},a photo of number {k} from behind\n")
    return path


def parquet(work: Path, count: int) -> Path:
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    path = work / f"{count}.parquet"
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(table(work, count)), path, row_group_size=10 * FOLDER)
    return path


def images_in_parquet(work: Path, count: int) -> Path:
    import pyarrow
    import pyarrow.parquet

    root = work / f"parquet-{count}"
    root.mkdir()
    for first in range(0, count, 10 * FOLDER):
        images = [(k, {"bytes": b"x", "path": f"image_{k:09d}.jpg"}) for k in range(first, first + 10 * FOLDER)]
        rows = [{"image": image, "label": k * 7919 % CLASSES} for k, image in images]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), root / f"{first:09d}.parquet")
    return root


def tars(work: Path, count: int) -> Path:
    """WebDataset's: an image and a class for each sample."""
    root = work / f"tars-{count}"
    root.mkdir()
    for first in range(0, count, 10 * FOLDER):
        with (root / f"{first // (10 * FOLDER):05d}.tar").open("wb") as file:
            for k in range(first, first + 10 * FOLDER):
                for ending, data in (("jpg", b"x"), ("cls", str(k * 7919 % CLASSES).encode())):
                    info = tarfile.TarInfo(f"{k:09d}.{ending}")
                    info.size = len(data)
                    file.write(info.tobuf() + data.ljust(512, b"\0"))
            file.write(bytes(1024))
    return root


def beside(work: Path, count: int, ending: str, text: str) -> Path:
    """A file for each image, with its path but for the extension."""
    root = work / f"beside-{count}"
    for k in range(count):
        path = (root / name_of(k)).with_suffix(ending)
        if k % FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_text(text)
    return root


def masks(work: Path, count: int) -> Path:
    return beside(work, count, ".png", "")


def yolo(work: Path, count: int) -> Path:
    return beside(work, count, ".txt", "3 0.25 0.5 0.25 0.5\n7 0.5 0.75 0.125 0.25\n")


def voc(work: Path, count: int) -> Path:
    box = "<bndbox><xmin>12</xmin><ymin>30</ymin><xmax>80</xmax><ymax>90</ymax></bndbox>"
    size = "<size><width>640</width><height>480</height><depth>3</depth></size>"
    return beside(work, count, ".xml", f"<annotation>{size}{f'<object><name>cat</name>{box}</object>' * 2}</annotation>")


def coco(work: Path, count: int) -> Path:
    images = [{"id": k, "file_name": name_of(k), "height": 480, "width": 640} for k in range(count)]
    box = {"category_id": 3, "bbox": [12.5, 30.0, 80.25, 90.5], "area": 7262.6, "iscrowd": 0}
    body = {"categories": [{"id": 3, "name": "cat"}], "images": images}
    path = work / f"{count}.json"
    path.write_text(json.dumps({**body, "annotations": [{"id": k, "image_id": k // 2, **box} for k in range(2 * count)]}))
    return path


SOURCES: dict[str, tuple[Callable[[Path, int], Path], dict[str, Any]]] = {
    "folders of classes": (folders, {}),
    "the same, shuffled": (folders, {"order": "shuffled"}),
    "folders, with --labels": (folders, {"labels": table, "label_column": "label"}),
    "a table of paths and classes": (table, {"label_column": "label"}),
    "the same, with captions": (table, {"label_column": "label", "fields": "caption"}),
    "the same, as Parquet": (parquet, {"label_column": "label", "fields": "caption"}),
    "tars": (tars, {}),
    "tars, shuffled": (tars, {"order": "shuffled"}),
    "images in Parquet": (images_in_parquet, {}),
    "folders, with --masks": (folders, {"masks": masks}),
    "folders, with --yolo, 2 boxes each": (folders, {"yolo": yolo}),
    "folders, with --voc, 2 boxes each": (folders, {"voc": voc}),
    "folders, with --coco, 2 boxes each": (folders, {"coco": coco}),
}


def plan(work: Path, name: str, count: int) -> tuple[int, float]:
    """Return the bytes and the CPU seconds that it takes to plan so many inputs."""
    make, options = SOURCES[name]
    source = make(work, count)
    if make in (table, parquet):
        options = {**options, "root": str(folders(work, count))}
    options = {key: str(value(work, count)) if callable(value) else value for key, value in options.items()}
    command = [sys.executable, "-c", PLAN, str(source), str(work / "out.fds"), json.dumps(options)]
    peak, seconds = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-2:]
    shutil.rmtree(work)
    return int(peak), float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=50_000)
    parser.add_argument("--many", type=int, default=200_000)
    parser.add_argument("--only", action="append", choices=SOURCES)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()))
    chosen = parser.parse_args()
    for name in chosen.only or SOURCES:
        found = []
        for count in (chosen.few, chosen.many):
            found.append(plan(Path(tempfile.mkdtemp(dir=chosen.work)), name, count))
        (less, quick), (more, slow) = found
        inputs = chosen.many - chosen.few
        print(f"{name}: {(more - less) / inputs:.0f} bytes and {(slow - quick) / inputs * 1e6:.0f} us an input", flush=True)


if __name__ == "__main__":
    main()
