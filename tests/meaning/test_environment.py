"""The same inputs make the same bytes, whatever Python's hash seed and the locale are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from support import run, tree, write_pictures

SCRIPT = """
import json, sys
import fastdata

root, out = sys.argv[1:]
for name, (source, options) in json.load(open(root + "/jobs.json", encoding="utf-8")).items():
    paths = {key: f"{root}/{value[5:]}" for key, value in options.items() if str(value).startswith("path:")}
    fastdata.prep(f"{root}/{source}", f"{out}/{name}.fds", workers=1, **{**options, **paths})
"""
CLASSES = ("1", "01", "große", "2", "b", "a", "ä")
JOBS = """{
    "table": ["in/t.csv", {"fields": ["tag", "more:json"]}],
    "pattern": ["in", {"label_from": "([0-9])[.]png"}],
    "masks": ["in", {"masks": "path:masks"}],
    "yolo": ["in", {"yolo": "path:yolo", "size": 16}],
    "characters": ["text", {"tokenizer": "chars", "end_token": "none"}],
    "trained": ["text", {"train_bpe": 270, "split_lines": true}],
    "arrays": ["arrays", {}]
}"""


@pytest.mark.slow
def test_every_kind_under_hash_seeds_and_locales(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "in", 14, height=20, width=30)
    for folder in ("masks", "yolo", "text", "arrays"):
        (tmp_path / folder).mkdir()
    rows = ["path,label,tag,more"]
    for k, path in enumerate(images):
        rows.append(f'{path.name},{CLASSES[k % 7]},{"xyz"[k % 3]},"{{""b"": 1, ""a"": ""{CLASSES[k % 7]}""}}"')
        Image.fromarray(np.full((20, 30), k % 5, np.uint8)).save(tmp_path / "masks" / path.name)
        (tmp_path / f"yolo/{path.stem}.txt").write_text(f"{k % 2} 0.5 0.5 0.25 0.5\n")
        np.save(tmp_path / f"arrays/{k}.npy", np.arange(k + 3, dtype=np.int16))
    (tmp_path / "in/t.csv").write_text("\n".join(rows), "utf-8")
    (tmp_path / "yolo/classes.txt").write_text("große\nkleine\n", "utf-8")
    (tmp_path / "text/a.txt").write_text("\n".join(CLASSES) * 9, "utf-8")
    (tmp_path / "jobs.json").write_text(JOBS)
    expected = None
    for seed in range(5):
        locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"} if seed % 2 else {"LC_ALL": "C.UTF-8"}
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), **locale}
        done = run(sys.executable, "-c", SCRIPT, tmp_path, tmp_path / f"out-{seed}", env=environment)
        assert done.returncode == 0, done.stderr
        found = tree(tmp_path / f"out-{seed}")
        expected = expected or found
        assert found == expected, f"hash seed {seed}, {locale}"
