"""Nothing depends on the time of day, which may jump while a program runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import clock
import stores

WORK = """
import json, sys
import torch
import fastdata, runs, stores
from clock import jumps
from fastdata import LMDBDataset, Loader, RAMDataset, RandomCrop
from support import tree

def loaded(make, name):
    with Loader(make(stores.square(), crop=RandomCrop(24)), 6, shuffle=True, num_workers=2, seed=1) as loader:
        return [stores.sha(loader) for _ in range(3)]

def trained(name):
    job = {"data": "loader", "workers": 2, "store": str(stores.square()), "dir": f"{sys.argv[1]}/{name}", "eval_every": 2}
    runs.fit(job)
    return runs.newest(job).read_bytes()

def prepared(name):
    return tree(fastdata.prep(stores.sources(), f"{sys.argv[1]}/{name}.fds", size=32, workers=2).out)

torch.set_num_threads(1)
same = []
for work in (lambda name: loaded(LMDBDataset, name), lambda name: loaded(RAMDataset, name), trained, prepared):
    straight = work("straight")
    with jumps():
        same.append(work("jumping") == straight)
print(json.dumps(same))
"""


@pytest.mark.slow
def test_batches_trainings_and_stores_do_not_depend_on_the_time_of_day(tmp_path: Path) -> None:
    assert stores.script(WORK, tmp_path, env=clock.environment(tmp_path)) == [True, True, True, True]
    times = [json.loads(line)["time"] for line in (tmp_path / "jumping/log.jsonl").read_text().splitlines()]
    assert max(times) - min(times) > clock.YEAR, "the clock did not jump"
