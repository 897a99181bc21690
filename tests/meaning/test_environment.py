"""The same inputs make the same bytes, whatever Python's hash seed and the locale are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores import write_files
from support import PREP, picture, run, tree

CLASSES = ("1", "01", "große", "2", "b", "a", "ä")
JOBS = {  # SOURCE and options
    "table": "in/t.csv --fields tag --fields more:json",
    "pattern": "in --label-from ([0-9])[.]png",
    "masks": "in --masks masks",
    "yolo": "in --yolo yolo --size 16",
    "characters": "text --tokenizer chars --end-token none",
    "trained": "text --train-bpe 270 --split-lines",
    "arrays": "arrays",
}
ENVIRONMENTS = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
)


@pytest.mark.slow
def test_every_kind_under_hash_seeds_and_locales(tmp_path: Path) -> None:
    files: dict[str, Any] = {"yolo/classes.txt": "große\nkleine\n", "text/a.txt": "\n".join(CLASSES) * 9}
    rows = ["path,label,tag,more"]
    for k in range(14):
        rows.append(f'{k}.png,{CLASSES[k % 7]},{"xyz"[k % 3]},"{{""b"": 1, ""a"": ""{CLASSES[k % 7]}""}}"')
        files |= {f"in/{k}.png": picture(k, 20, 30), f"masks/{k}.png": np.full((20, 30), k % 5, np.uint8)}
        files |= {f"yolo/{k}.txt": f"{k % 2} 0.5 0.5 0.25 0.5\n", f"arrays/{k}.npy": np.arange(k + 3, dtype=np.int16)}
    write_files(tmp_path, {**files, "in/t.csv": "\n".join(rows)})
    for name, words in JOBS.items():
        made = []
        for k, environment in enumerate(ENVIRONMENTS):
            source, *options = words.split()
            command = (*PREP, source, f"{name}-{k}.fds", "--workers", "1", *options)
            done = run(*command, cwd=tmp_path, env={**os.environ, **environment})
            assert done.returncode == 0, done.stderr
            made.append(tree(tmp_path / f"{name}-{k}.fds"))
        assert made[0] == made[1], name
