"""The same names and texts make the same bytes, whatever Python's hash seed and the locale are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stores import write_files
from support import PREP, picture, run, tree

JOBS = {  # SOURCE and options
    "yolo": "in --yolo yolo --size 16",
    "characters": "text --tokenizer chars --end-token none",
    "trained": "text --train-bpe 270 --split-lines",
}
ENVIRONMENTS = (
    {"PYTHONHASHSEED": "1", "LC_ALL": "C.UTF-8"},
    {"PYTHONHASHSEED": "2", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_names_and_text_under_hash_seeds_and_locales(tmp_path: Path, name: str) -> None:
    files = {"yolo/classes.txt": "große\nkleine\n", "text/a.txt": "\n".join(("1", "01", "große", "2", "b", "a", "ä")) * 9}
    files |= {f"yolo/{k}.txt": f"{k % 2} 0.5 0.5 0.25 0.5\n" for k in range(14)}
    write_files(tmp_path, {**files, **{f"in/{k}.png": picture(k, 20, 30) for k in range(14)}})
    source, *options = JOBS[name].split()
    made = []
    for k, environment in enumerate(ENVIRONMENTS):
        command = (*PREP, source, f"{k}.fds", "--workers", "1", *options)
        done = run(*command, cwd=tmp_path, env={**os.environ, **environment})
        assert done.returncode == 0, done.stderr
        made.append(tree(tmp_path / f"{k}.fds"))
    assert made[0] == made[1]
