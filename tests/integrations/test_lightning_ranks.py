"""Lightning's DDP with two processes over gloo: each row once, on one of them."""

from __future__ import annotations

import json

import pytest

from common import launch, placed
from fastdata import LMDBDataset, Loader, RandomResizedCrop
from stores import COUNT, once


@pytest.fixture(scope="module", params=["ddp local", "ddp merged", "ddp_fork remote"])
def run(request, tmp_path_factory):
    """What the two ranks saw, and the store and the options of a Loader by hand."""
    folder = tmp_path_factory.mktemp("ranks")
    strategy, place = request.param.split()
    with placed(place) as (where, local, more, options):
        launch("lightning", where, folder, strategy, env=more)
    fitted, predicted = ([json.loads((folder / f"{fn}-{k}.json").read_text()) for k in range(2)] for fn in ("fit", "predict"))
    return [{**seen, "predict": later["predict"]} for seen, later in zip(fitted, predicted, strict=True)], local, options


@pytest.fixture
def ranks(run):
    return run[0]


def real(ranks, stage, first, stop):
    """The ids of the real rows of both ranks in these batches."""
    return [ids[:valid] for rank in ranks for ids, valid, *_ in rank[stage][first:stop]]


@pytest.mark.parametrize("epoch", [0, 1])
def test_each_row_is_trained_on_once_an_epoch(ranks, epoch):
    assert once(real(ranks, "train", 5 * epoch, 5 * epoch + 5), COUNT)
    assert all([batch[2] for batch in rank["train"]] == 5 * [0] + 5 * [1] for rank in ranks)


def test_each_rank_sees_what_a_loader_of_that_rank_delivers(run):
    ranks, local, options = run
    for rank, found in enumerate(ranks):
        dataset = LMDBDataset(local, size=64, crop=RandomResizedCrop(16))
        with Loader(dataset, 5, shuffle=True, seed=3, num_workers=0, rank=rank, world_size=2, **options) as loader:
            batches = [batch for _ in range(2) for batch in loader]
        assert found["train"] == [[b.ids.tolist(), b.valid, *b.position, b[0].sum().item()] for b in batches]


def test_validation_and_predictions_are_of_each_row_once(ranks):
    sanity = 2
    assert all(len(rank["val"]) == sanity + 5 + 5 for rank in ranks)
    for stage, first in (("val", sanity), ("val", sanity + 5), ("predict", 0)):
        assert once(real(ranks, stage, first, first + 5), COUNT)
