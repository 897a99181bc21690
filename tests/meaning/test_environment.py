"""The same inputs make the same bytes, whatever Python's hash seed and the locale are."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores import write_files
from support import picture, run, tree

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
    files: dict[str, Any] = {"yolo/classes.txt": "große\nkleine\n", "text/a.txt": "\n".join(CLASSES) * 9, "jobs.json": JOBS}
    rows = ["path,label,tag,more"]
    for k in range(14):
        rows.append(f'{k}.png,{CLASSES[k % 7]},{"xyz"[k % 3]},"{{""b"": 1, ""a"": ""{CLASSES[k % 7]}""}}"')
        files |= {f"in/{k}.png": picture(k, 20, 30), f"masks/{k}.png": np.full((20, 30), k % 5, np.uint8)}
        files |= {f"yolo/{k}.txt": f"{k % 2} 0.5 0.5 0.25 0.5\n", f"arrays/{k}.npy": np.arange(k + 3, dtype=np.int16)}
    write_files(tmp_path, {**files, "in/t.csv": "\n".join(rows)})
    expected = None
    for seed in range(5):
        locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"} if seed % 2 else {"LC_ALL": "C.UTF-8"}
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), **locale}
        done = run(sys.executable, "-c", SCRIPT, tmp_path, tmp_path / f"out-{seed}", env=environment)
        assert done.returncode == 0, done.stderr
        found = tree(tmp_path / f"out-{seed}")
        expected = expected or found
        assert found == expected, f"hash seed {seed}, {locale}"
