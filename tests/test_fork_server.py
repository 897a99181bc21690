"""Workers of the start method forkserver: the server has what they need."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from fastdata import LMDBDataset, RandomResizedCrop
from stores import script, store

pytestmark = pytest.mark.slow  # it imports torch

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
