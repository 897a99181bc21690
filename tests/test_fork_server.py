"""Workers of the start method forkserver: the server starts with the Loader, and has what the workers need."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest

from fastdata import LMDBDataset, RandomResizedCrop
from stores import script, store

pytestmark = pytest.mark.slow  # each test imports torch twice

# The Loader is made where the workers import it, too: they may start no server
EARLY = """
import json, sys, time
import psutil, torch
from fastdata import CenterCrop, LMDBDataset, Loader

if __name__ == "__main__" and sys.argv[2] == "chosen":
    torch.multiprocessing.set_start_method("forkserver")
dataset = LMDBDataset(sys.argv[1], size=64, crop=CenterCrop(16))
none = Loader(dataset, 8, num_workers=0)

def servers():
    return [c for c in psutil.Process().children() if "multiprocessing.forkserver" in " ".join(c.cmdline())]

if __name__ == "__main__":
    before = len(servers())
loader = Loader(dataset, 8, num_workers=2)
if __name__ == "__main__":
    (server,) = servers()
    end = time.monotonic() + 100
    while not any("libtorch" in part.path for part in server.memory_maps()):
        assert time.monotonic() < end
        time.sleep(0.05)
    equal = [a[0].equal(b[0]) for a, b in zip(none, loader, strict=True)]
    workers = server.children()
    print(json.dumps([before, len(servers()), all(equal), len(workers), [len(worker.children()) for worker in workers]]))
"""


@pytest.mark.parametrize("how", ["chosen", "default"])
def test_the_server_starts_with_the_loader_and_only_where_there_are_workers(how):
    if how == "default" and sys.version_info < (3, 14):
        pytest.skip("the default is fork before Python 3.14")
    assert script(EARLY, store(), how, timeout=180) == [0, 1, True, 2, [0, 0]]


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
