"""Which rank a Loader delivers to: found late, and never guessed."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fastdata import Loader
from fastdata.errors import LoaderError
from stores import folder, once, square

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "LOCAL_WORLD_SIZE")


@pytest.fixture
def environment(monkeypatch):
    """Sets these variables, and no other that says anything of ranks."""

    def set_to(**values):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
            if name in values:
                monkeypatch.setenv(name, values[name])

    set_to()
    yield set_to
    monkeypatch.undo()


def loader(**options):
    return Loader(TensorDataset(torch.arange(40)), 5, **{"num_workers": 0, **options})


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, (2, 4)),  # torchrun, Accelerate
        ({"WORLD_SIZE": "1"}, (0, 1)),
        ({"WORLD_SIZE": ""}, (0, 1)),
        ({"RANK": "0"}, (0, 1)),
    ],
)
def test_the_environment_of_launchers(environment, values, part):
    made = loader()
    environment(**values)  # after the loader is made
    assert (made.part.rank, made.part.world_size) == part
    assert len(made) == -(-40 // (5 * part[1]))
    assert np.concatenate([batch.ids for batch in made]).tolist() == list(range(part[0], 40, part[1]))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, but nothing says which rank"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "nothing says which rank"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK 2 and WORLD_SIZE 2, but ranks count from 0"),
        ({"RANK": "3"}, "RANK 3 and WORLD_SIZE 1"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE is 'two', but must be a whole number"),
    ],
)
def test_what_does_not_tell_the_rank_is_an_error_and_no_guess(environment, values, match):
    environment(**values)
    made = loader()  # torch.distributed may say it later
    for use in (len, iter, lambda loader: loader.part, lambda loader: loader.state_dict()):
        with pytest.raises(LoaderError, match=match):
            use(made)
    assert "TensorDataset" in repr(made)
    assert loader(rank=1, world_size=2).part.rank == 1, "arguments count first"
    environment()
    assert len(made) == 8


def test_a_change_between_passes_is_followed_and_one_within_a_pass_is_not(environment):
    made = loader()
    batches = iter(made)
    first = next(batches)  # to give a lazy layer its shape, before the processes start
    environment(RANK="1", WORLD_SIZE="2")
    assert len(made) == 8 and next(batches).ids.tolist() == [5, 6, 7, 8, 9] and first.position == (0, 5)
    assert np.concatenate([batch.ids for batch in made]).tolist() == list(range(1, 40, 2)) and len(made) == 4


LATE = """
import json, os, sys
import torch.distributed as dist
import torch
from fastdata import CenterCrop, LMDBDataset, Loader
from fastdata.errors import LoaderError

def main(path, rank, meeting):
    rank = int(rank)
    os.environ.update(WORLD_SIZE="2", NODE_RANK="0", LOCAL_RANK=str(rank))  # as Lightning's children find it
    dataset = LMDBDataset(path, crop=CenterCrop(16)).subset(range(41))
    found = {}
    with Loader(dataset, 4, shuffle=True, num_workers=1) as loader:
        if rank == 0:
            del os.environ["WORLD_SIZE"]  # the first process has nothing yet
            found["len before"] = len(loader)
        dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=2)
        found["batches"] = [(batch.ids.tolist(), batch.valid) for batch in loader]
        found["len"] = len(loader)
    os.environ.update(WORLD_SIZE="2", RANK=str(1 - rank))
    try:
        len(Loader(dataset, 4))
    except LoaderError as error:
        found["contradiction"] = str(error)
    found["arguments"] = Loader(dataset, 4, rank=0, world_size=1, num_workers=0).part.world_size
    gathered = [None, None]
    dist.all_gather_object(gathered, found)
    dist.barrier()  # or the threads of one may take the end of the other for a failure
    dist.destroy_process_group()
    print(json.dumps(gathered))

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


@pytest.mark.slow
def test_ranks_that_are_set_up_after_the_loader_is_made_share_the_data():
    path, meeting = folder() / "script.py", folder() / "meeting"
    path.write_text(LATE)
    command = [sys.executable, str(path), str(square())]
    started = [subprocess.Popen([*command, str(r), str(meeting)], stdout=subprocess.PIPE, text=True) for r in range(2)]
    first, _ = (rank.communicate(timeout=300)[0] for rank in started)
    ranks = json.loads(first.splitlines()[-1])
    assert ranks[0]["len before"] == 11
    assert once([ids[:valid] for found in ranks for ids, valid in found["batches"]], 41)
    for rank, found in enumerate(ranks):
        wrong = f"this is rank {rank} of 2, but RANK and WORLD_SIZE in the environment say rank {1 - rank} of 2"
        assert wrong in found["contradiction"] and (found["arguments"], found["len"]) == (1, 6)
