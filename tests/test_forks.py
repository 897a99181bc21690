"""Forks beside OpenCV's threads: a child that inherits a pool without its threads would wait for them for ever. Fork servers."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import numpy as np
import pytest

from fastdata import LMDBDataset, RandomResizedCrop
from stores import script, store
from support import run

pytestmark = pytest.mark.slow

SECONDS = 60.0  # what each takes is far below; one that hangs ends here

# `child(work)` forks, as multiprocessing does it; it says what work returned. OpenCV's pool is at work before.
START = """
import json, multiprocessing, sys, time
import cv2, numpy
import fastdata

def start_pool():
    cv2.resize(numpy.zeros((2000, 2000, 3), numpy.uint8), (3000, 3000))

def child(work):
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=lambda: queue.put(work()))
    process.start()
    process.join()
    assert process.exitcode == 0
    return queue.get()

multiprocessing.set_start_method("fork")
path = sys.argv[1]
cv2.setNumThreads(4)
start_pool()
time.sleep(0.3)  # until its threads wait for work: only then a child waits for them
"""

WORKS: dict[str, tuple[str, Any]] = {
    "torch's DataLoader over a dataset of ours": (
        """
from torch.utils.data import DataLoader
dataset = fastdata.LMDBDataset(path, crop=fastdata.CenterCrop(32))
loader = DataLoader(dataset, 8, num_workers=1, worker_init_fn=lambda _: cv2.setNumThreads(1))
found = sum(len(images) for images, _ in loader)
""",
        42,
    ),
    "a Loader that the parent has begun goes on in both": (
        """
loader = fastdata.Loader(fastdata.LMDBDataset(path, crop=fastdata.CenterCrop(32)), 8, num_workers=1)
batches = iter(loader)
first = next(batches).ids.tolist()
rest = lambda: [batch.ids.tolist() for batch in batches]
again = lambda: [batch.ids.tolist() for batch in loader]
found = [[first, *child(rest)] == [first, *rest()] == child(again) == again()]
loader.close()
""",
        [True],
    ),
    "as many threads as before, here and in the child": (
        """
def work():
    before = cv2.getNumThreads()
    start_pool()
    return before

found = [child(work), cv2.getNumThreads()]
start_pool()
""",
        [4, 4],
    ),
}


@pytest.mark.parametrize("case", WORKS)
def test_children_that_are_forked_beside_opencvs_threads(case: str) -> None:
    code, expected = WORKS[case]
    assert script(START + code + "print(json.dumps(found))", store(), timeout=SECONDS) == expected


LEFT_OPEN = """
import multiprocessing, sys, torch
from torch.utils.data import TensorDataset
from fastdata import Loader

def use():
    global loader
    loader = Loader(TensorDataset(torch.arange(40)), 4, num_workers=2)
    print(next(iter(loader))[0].tolist(), flush=True)

if __name__ == "__main__":
    if sys.argv[1] == "here":
        use()
    else:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=use)
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""


@pytest.mark.parametrize("where", ["here", "fork", "spawn"])
def test_a_process_ends_though_it_has_left_a_loader_open(tmp_path, where):
    (tmp_path / "left.py").write_text(LEFT_OPEN)
    done = run(sys.executable, tmp_path / "left.py", where, seconds=180)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3]\n", "")


PRELOADED = """
import gc, json, pickle, sys
import fastdata.loader.preload

given, collecting, frozen = set(sys.modules), gc.isenabled(), gc.get_freeze_count()
import numpy as np
dataset = pickle.loads(bytes.fromhex(sys.argv[1]))
dataset.read_batch(np.arange(8), seed=0, epoch=0)
new = {name for name in set(sys.modules) - given if not name.startswith("fastdata.")}
print(json.dumps([collecting, frozen > 100_000, sorted(new)]))
"""


def test_workers_find_all_other_packages_imported_and_hidden_from_the_garbage_collector():
    dataset = LMDBDataset(store(), size=64, crop=RandomResizedCrop(16), transform=np.flipud)
    assert script(PRELOADED, pickle.dumps(dataset).hex()) == [True, True, []]
