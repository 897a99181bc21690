"""Several processes of each client's: each rank sees what its Loader delivers, and all of them each row once."""

from __future__ import annotations

import json

import pytest
import torch

from common import check_training, launch, placed
from fastdata.integrations.accelerate import AcceleratedLoader
from stores import COUNT, once

SANITY, VAL = 2, 5  # batches of Lightning's sanity check, and of a validation on each of two ranks


@pytest.mark.parametrize(
    ("client", "count", "place"),
    [
        *[("accelerate", 1, "local"), ("accelerate", 2, "local"), ("accelerate", 3, "local")],
        *[("accelerate", 2, "merged"), ("accelerate", 2, "remote"), ("fabric", 2, "local"), ("transformers", 2, "local")],
        *[("lightning ddp", 2, "local"), ("lightning ddp", 2, "merged"), ("lightning ddp_fork", 2, "remote")],
    ],
)
def test_each_rank_trains_on_what_its_loader_delivers_and_all_see_each_row_once(client, count, place, tmp_path):
    name, *strategy = client.split()
    blocks = name in ("accelerate", "transformers")  # run under torchrun; the others start their processes themselves
    with placed(place) as (where, local, more, options):
        launch(name, where, tmp_path, *strategy, ranks=count if blocks else 1, env=more)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    batch_size = 4 if name == "accelerate" else 5
    check_training([rank["train"] for rank in ranks], local, batch_size, AcceleratedLoader if blocks else iter, **options)
    if name == "accelerate":  # gradients are synchronized at the end of each epoch, too
        batches = -(-COUNT // (4 * count))
        synced = [k for k in range(1, batches + 1) if k % 4 == 0 or k == batches]
        assert all(rank["synced"] == 2 * synced for rank in ranks)
        assert all(rank["val"] == rank["kept"] == list(range(COUNT)) for rank in ranks), "in the dataset's order"
    elif name == "fabric":
        assert ranks[0]["weights"] == ranks[1]["weights"] and torch.tensor(ranks[0]["weights"]).isfinite().all()
    elif name == "transformers":
        for rank in ranks:
            assert rank["labels"] == rank["targets"], "in the dataset's order"
            assert rank["losses"][0] == pytest.approx(rank["losses"][1], rel=1e-5)
    else:
        assert all(len(rank["val"]) == SANITY + 2 * VAL for rank in ranks)
        for stage, first in (("val", SANITY), ("val", SANITY + VAL), ("predict", 0)):
            assert once([ids[:valid] for rank in ranks for ids, valid, *_ in rank[stage][first : first + VAL]], COUNT)
