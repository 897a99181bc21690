"""Lightning's DDP with two processes over gloo: each row once, on one of them."""

from __future__ import annotations

import json

import pytest

from common import check_training, launch, placed
from stores import COUNT, once


@pytest.mark.parametrize(("strategy", "place"), [("ddp", "local"), ("ddp", "merged"), ("ddp_fork", "remote")])
def test_each_rank_sees_what_its_loader_delivers(strategy, place, tmp_path):
    with placed(place) as (where, local, more, options):
        launch("lightning", where, tmp_path, strategy, env=more)
    fitted, predicted = ([json.loads((tmp_path / f"{fn}-{k}.json").read_text()) for k in range(2)] for fn in ("fit", "predict"))
    check_training([rank["train"] for rank in fitted], local, 5, **options)
    sanity = 2
    assert all(len(rank["val"]) == sanity + 5 + 5 for rank in fitted)
    for ranks, stage, first in ((fitted, "val", sanity), (fitted, "val", sanity + 5), (predicted, "predict", 0)):
        assert once([ids[:valid] for rank in ranks for ids, valid, *_ in rank[stage][first : first + 5]], COUNT)
