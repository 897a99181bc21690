"""Draw the pictures of docs/report.md, from drawn scenes and from two short trainings: `make pictures`.

    python tools/draw_docs.py docs/pictures

It needs Chromium and the packages of tests/pages/requirements.txt.
"""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import cv2
import torch
from PIL import Image
from playwright.sync_api import sync_playwright
from torch import nn
from torch.nn.functional import cross_entropy

from fastdata import Trainer, prep
from fastdata.optim import cosine
from fastdata.report.run_report import run_report
from fastdata.report.store_report import store_report

EXAMPLES = Path(__file__).parent.parent / "examples"
QUALITY = 80


def draw_store(root: Path) -> Path:
    """Prepare scenes with boxes, some of which deserve a look."""
    scenes = runpy.run_path(str(EXAMPLES / "train_detection.py"))
    scenes["draw_scenes"](root / "scenes", root / "scenes.json", 240)
    for copy, original in ((17, 4), (101, 60)):
        shutil.copy(root / f"scenes/{original:05d}.png", root / f"scenes/{copy:05d}.png")
    blurred = cv2.GaussianBlur(cv2.imread(str(root / "scenes/00033.png")), (0, 0), 6)
    cv2.imwrite(str(root / "scenes/00033.png"), blurred)
    whole = (root / "scenes/00050.png").read_bytes()
    (root / "scenes/00050.png").write_bytes(whole[: len(whole) // 2])
    return prep(root / "scenes", root / "scenes.fds", coco=root / "scenes.json", codec="png", workers=1).out


def train(folder: Path, rate: float) -> Path:
    """Train a small network to imitate another one, and return the folder of the run."""
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))
    rows = torch.randn(4096, 20)
    data = list(zip(rows.split(64), teacher(4 * rows).argmax(1).split(64), strict=True))
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))
    trainer = Trainer(
        model,
        lambda model, batch: cross_entropy(model(batch[0]), batch[1], reduction="none"),
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9),
        scheduler=cosine(warmup=40),
        metrics={"top1": lambda scores, batch: ((scores.argmax(1) == batch[1]).sum(), len(batch[1]))},
        dir=folder,
        log_every=2,
        progress=False,
        device="cpu",
    )
    trainer.fit(data[:48], data[48:], epochs=8)
    return folder


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root = Path(folder)
        pages = {
            "report-store": (store_report(draw_store(root), most=2000)[0], "light"),
            "report-runs": (run_report([train(root / f"rate-{rate}", rate) for rate in (0.02, 0.2)])[0], "dark"),
        }
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (text, scheme) in pages.items():
            (root / "page.html").write_text(text.replace(f"{root}/", ""), encoding="utf-8")
            page = browser.new_page(viewport={"width": 1000, "height": 880}, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto((root / "page.html").as_uri())
            page.screenshot(path=root / "page.png")
            with Image.open(root / "page.png") as picture:
                picture.convert("RGB").save(out / f"{name}.jpg", quality=QUALITY, optimize=True)
            print(f"{out / name}.jpg")
        browser.close()


if __name__ == "__main__":
    main()
