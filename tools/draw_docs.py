"""Draw the picture of docs/report.md, from drawn scenes: `make pictures`.

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
from PIL import Image
from playwright.sync_api import sync_playwright

from fastdata import prep
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


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        root = Path(folder)
        text = store_report(draw_store(root), most=2000)[0]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        (root / "page.html").write_text(text.replace(f"{root}/", ""), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1000, "height": 880}, color_scheme="light")
        page.goto((root / "page.html").as_uri())
        page.screenshot(path=root / "page.png")
        with Image.open(root / "page.png") as picture:
            picture.convert("RGB").save(out / "report-store.jpg", quality=QUALITY, optimize=True)
        print(out / "report-store.jpg")
        browser.close()


if __name__ == "__main__":
    main()
