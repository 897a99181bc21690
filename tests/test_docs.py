"""Every command and snippet of the README and of each page runs as it stands, in order, beside folders of what it prepares."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from support import run

ROOT = Path(__file__).parent.parent
SET_UP = ("pip install", "git clone", "make ")  # what has brought us here
ELSEWHERE = {"inputs", "integrations", "measuring", "remote"}  # other tests run these pages


def _blocks(page: Path) -> list[tuple[str, str]]:
    return re.findall(r"^```(bash|python)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if page.stem not in ELSEWHERE and _blocks(page)
]


def _draw(root: Path, names: Iterable[str], shape: tuple[int, ...], first: int = 0, dtype: Any = np.uint8) -> None:
    """Write plain images, each of its own colour."""
    for k, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(root / name), np.full(shape, first + k, dtype))


def _write(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))


def _images(root: Path) -> None:
    rng = np.random.default_rng(0)
    pets = ("cat", "dog")
    for k in range(24):
        path = root / "images" / pets[k % 2] / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        colours = rng.integers(0, 256, (6, 8, 3), np.uint8)
        cv2.imwrite(str(path), cv2.resize(colours, (400, 300), interpolation=cv2.INTER_CUBIC))
    _draw(root / "pets", (f"{split}/{pets[k % 2]}/{k}.jpg" for split in ("train", "val") for k in range(8)), (240, 320, 3))
    _draw(root / "birds", (f"{folder}/{k:03}.jpg" for folder in ("train", "test") for k in range(10)), (240, 320, 3))
    _write(root / "birds/train.csv", ["id,species", *(f"{k:03},{('heron', 'wren')[k % 2]}" for k in range(10))])
    flat = [f"{pets[k % 2]}_{k}.jpg" for k in range(8)]
    _draw(root / "flat", flat, (30, 40, 3))
    rows = (f"{name};{name[:3]};{('train', 'val')[k > 5]}" for k, name in enumerate(flat))
    _write(root / "photos.csv", ["path;label;split", *rows])
    _write(root / "ages.csv", ["file,age", *(f"{name},{k / 2}" for k, name in enumerate(flat))])
    rows = (f"flat/{name},a photo of a {name[:3]},{k / 8}" for k, name in enumerate(flat))
    _write(root / "captions.csv", ["path,caption,score", *rows])
    words = ["tea", "and", "milk", "sugar", "or", "lemon", "for", "two", "please", "now"]
    _write(root / "corpus" / "orders.txt", (" ".join(rng.choice(words, 30)) for _ in range(300)))
    _draw(root / "scenes", (f"{k}.jpg" for k in range(12)), (300, 400))
    _draw(root / "scene-masks", (f"{k}.png" for k in range(12)), (300, 400))
    _draw(root / "rooms", (f"rgb/{k}.png" for k in range(12)), (70, 90))
    _draw(root / "rooms", (f"depth/{k}.png" for k in range(12)), (70, 90), dtype=np.uint16)
    boxes = [{"id": k, "image_id": k, "bbox": [50 + k, 60, 80, 90], "category_id": 1} for k in range(12)]
    entries = [{"id": k, "file_name": f"{k}.jpg", "height": 300, "width": 400} for k in range(12)]
    coco = {"images": entries, "annotations": boxes, "categories": [{"id": 1, "name": "cup"}]}
    (root / "scenes.json").write_text(json.dumps(coco))
    _write(root / "scene-labels/classes.txt", ["cup"])
    for k in range(12):
        _write(root / f"scene-labels/{k}.txt", ["0 0.5 0.5 0.2 0.3"])
    _draw(root / "described", (f"{k}.jpg" for k in range(8)), (90, 120, 3))
    for k in range(8):
        _write(root / f"described/{k}.txt", [f"shade {k} of grey"])
        np.save(root / "described" / f"{k}.npy", np.full(16, k, np.float32))
    for folder, colour in (("photos", 10), ("more", 90), ("others", 150), ("yet-more", 200)):
        _draw(root / folder, (f"{pets[k % 2]}/{k}.jpg" for k in range(6)), (80, 100, 3), colour)
    rows = (f"{'' if k % 10 == 3 else 20 + k},{('Rome', 'Oslo')[k % 2]},{k / 8},{('low', 'high')[k % 3 > 1]}" for k in range(40))
    _write(root / "people.csv", ["age,city,score,income", *rows])


def _volumes(root: Path) -> None:
    for folder, dtype in (("volumes", np.uint16), ("volume-masks", np.uint8)):
        (root / folder).mkdir()
        for k in range(8):
            np.save(root / folder / f"{k}.npy", np.full((64 + k, 80, 72), k, dtype))


def _run(language: str, text: str, folder: Path) -> None:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if language == "bash":
        text = "\n".join(line for line in text.splitlines() if not line.startswith(SET_UP))
    command = ["bash", "-euc", text] if language == "bash" else [sys.executable, "-W", "error", "-c", text]
    done = run(*command, cwd=folder, env=env, seconds=360)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_snippet_runs(page: Path, tmp_path: Path) -> None:
    _images(tmp_path)
    _volumes(tmp_path)
    for language, text in _blocks(page):
        _run(language, text, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_first_loader_runs_as_a_script_whose_workers_import_it(method: str, tmp_path: Path) -> None:
    _images(tmp_path)
    prepare, script = (text for _, text in _blocks(ROOT / "README.md")[:2])
    chosen = f"import multiprocessing\nmultiprocessing.set_start_method('{method}', force=True)\n"
    (tmp_path / "train.py").write_text(chosen + script)
    _run("bash", f"{prepare}\n{sys.executable} -W error train.py", tmp_path)


def test_the_readme_is_a_screen_and_a_map() -> None:
    """It has 70 lines at most, and its first loader takes twelve."""
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 70
    first = next(text for language, text in _blocks(ROOT / "README.md") if language == "python")
    assert len([line for line in first.splitlines() if line.strip()]) <= 12


def test_links_lead_to_files_and_headings() -> None:
    """Links between the pages, and to files of the repository; mkdocs checks them too, on the site."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    wrong = []
    for page in pages:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for target, _, anchor in (link.partition("#") for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", text))):
            if "://" in target:
                continue
            path = (page.parent / target).resolve() if target else page
            generated = path == ROOT / "docs/cli.md"
            if not path.exists() and not generated:
                wrong.append(f"{page.name}: {target}")
            elif anchor and anchor not in {_anchor(line) for line in path.read_text().splitlines() if line.startswith("#")}:
                wrong.append(f"{page.name}: {target}#{anchor}")
    assert not wrong


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub and mkdocs make it of plain words."""
    return re.sub(r"[^\w -]", "", heading.lstrip("#").strip().lower()).replace(" ", "-")


def test_make_gpu_finds_every_file_with_tests_for_a_gpu(request: pytest.FixtureRequest) -> None:
    (pattern,) = re.findall(r'grep -lE "(.+?)"', (ROOT / "benchmarks/GPU.md").read_text())
    assert f'"{pattern}"' in (ROOT / "benchmarks/gpu/run.py").read_text()
    marked = {item.path for item in request.session.items if item.get_closest_marker("gpu")}  # of the files in this run
    assert all(re.search(pattern, path.read_text()) for path in marked)
