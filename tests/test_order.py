"""The orders of an epoch: every sample once, at any place at once; by lanes from few shards at a time, for every kind of store."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, TensorDataset

import fastdata
import reference
from fastdata import ArrayDataset, LMDBDataset, Loader, RAMDataset, TokenDataset
from fastdata.errors import StoreError
from fastdata.loader.order import ROUNDS, EpochOrder, LaneOrder, RankShard, number_of_lanes, permute
from fastdata.store.store import Store
from stores import folder
from support import Array, encode, picture, small_shards

counts_of_shards = st.lists(st.integers(0, 40), min_size=1, max_size=25).filter(any)


def whole(order: LaneOrder, epoch: int) -> Array:
    return order.at(epoch, np.arange(order.n))


def whole_order(n, seed, epoch):
    return EpochOrder(n, seed, True).at(epoch, np.arange(n))


@given(
    st.integers(1, 1100) | st.sampled_from([255, 256, 257, 1025]), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.data()
)
@settings(max_examples=60, deadline=None)
def test_the_full_order_is_the_documented_permutation_at_any_place(n, seed, epoch, data):
    order = whole_order(n, seed, epoch)
    assert order.dtype == np.int64 and order.tolist() == reference.order(n, seed, epoch)
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    np.testing.assert_array_equal(EpochOrder(n, seed, True).at(epoch, np.array(places)), order[places])


def test_the_full_order_stays_what_it_is():
    """A checkpoint of an older version resumes in the same order: a change here needs a note for the users."""
    assert whole_order(10, 0, 0).tolist() == [5, 0, 1, 2, 8, 3, 9, 4, 7, 6]
    assert permute(np.arange(5), 1000, 10, np.arange(ROUNDS, dtype=np.uint32)).tolist() == [54, 149, 997, 281, 254]


def test_ranks_take_blocks():
    """The positions of each rank in whole batches or the last one, and the real ones among them."""
    spans = [(rank, 2, span) for rank in range(2) for span in ((0, 16), (16, 21))] + [(rank, 4, (0, 5)) for rank in range(4)]
    found = [RankShard(rank, world, blocks=True).positions(*span, 8) for rank, world, span in spans]
    assert [(positions.tolist(), valid) for positions, valid in found] == [
        ([0, 1, 2, 3, 8, 9, 10, 11], 4),
        ([16, 17, 18], 3),
        ([4, 5, 6, 7, 12, 13, 14, 15], 4),
        ([19, 20, 20], 2),
        *[([0, 1], 2), ([2, 3], 2), ([4, 4], 1), ([4, 4], 0)],
    ]


def test_many_samples_are_ordered_in_pieces_that_fit_together():
    loader = Loader(TensorDataset(torch.arange(20_000)), 7, shuffle=True, seed=7, num_workers=0)
    assert delivered(loader) == whole_order(20_000, 7, 0).tolist()


# ------------------------------------------------------------------------------------------------------------ by lanes


@given(counts_of_shards, st.integers(1, 30), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=25, deadline=None)
@example([2**k + d for k in (4, 5, 8) for d in (-1, 0, 1)], 7, 0x1234_5678_9ABC_DEF1, 3, None)
def test_the_order_is_the_documented_one_at_any_place(counts: list[int], lanes: int, seed: int, epoch: int, data: Any) -> None:
    order = LaneOrder(np.array(counts), seed, min(lanes, sum(counts)))
    expected = reference.lanes(counts, order.lanes, seed, epoch)
    assert sorted(expected) == [*range(sum(counts))]
    for _ in range(2):
        assert whole(order, epoch).tolist() == expected
        whole(order, epoch + 1), whole(order, epoch + 2)  # more than are laid out at a time
    places = data.draw(st.lists(st.integers(0, order.n - 1), max_size=20)) if data else [3]
    assert order.at(epoch, np.array(places, np.int64)).tolist() == [expected[place] for place in places]


def test_few_shards_are_in_use_at_a_time_and_lanes_read_different_ones() -> None:
    order = LaneOrder(np.full(400, 50), 1)
    lanes = (order.at(0, np.arange(order.n - order.n % order.lanes)) // 50).reshape(-1, order.lanes)  # the shards
    assert order.lanes == 48 and len(lanes) == 416
    assert max(len(np.unique(step)) for step in lanes) == 48
    assert [len(np.unique(lane)) for lane in lanes.T] == pytest.approx([416 / 50 + 1] * 48, abs=1)  # its share, and cut ones
    assert min(len(np.unique(step)) for step in lanes) > 36  # neighbours share a shard now and then


def test_the_order_stays_what_it_is() -> None:
    """A checkpoint of an older version resumes in the same order: a change here needs a note for the users."""
    assert whole(LaneOrder(np.array([3, 4, 5]), 0, 2), 0).tolist() == [9, 0, 7, 2, 8, 3, 11, 4, 10, 5, 1, 6]
    least = {8: 1, 16: 128, 24: 192, 48: 384, 96: 768, 192: 1536, 384: 3072, 960: 7680}
    for (lanes, shards), more in pairwise([*least.items(), (960, 10**6)]):
        assert {number_of_lanes(shards), number_of_lanes(shards + 1), number_of_lanes(more[1] - 1)} == {lanes}


# --------------------------------------------------------------------------------------------------- datasets of stores


@cache
def images() -> Any:
    """61 images in shards of 2 or 3, with the labels 0 to 3."""
    root = folder()
    for k in range(61):
        path = root / "in" / f"class{k % 4}" / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(k, 16, 16), ".png"))
    with small_shards(3):
        return fastdata.prep(root / "in", root / "o.fds", codec="rgb", size=16, workers=1).out


@cache
def arrays() -> Any:
    root = folder()
    (root / "in").mkdir()
    for k in range(25):
        np.save(root / "in" / f"{k:02d}.npy", np.full((2, 3), k, np.int16))
    with small_shards(2):
        return fastdata.prep(root / "in", root / "o.fds", workers=1).out


@cache
def tokens() -> Any:
    """The ids 0 to 40, 40 to 80 and so on: a document for each, in shards of about 600 bytes."""
    root = folder()
    (root / "t.txt").write_text("".join(chr(97 + k % 26) * (1 + k % 50) + "\n" for k in range(300)))
    with small_shards(3, 600):
        return fastdata.prep(root / "t.txt", root / "o.fds", tokenizer="bytes", split_lines=True, workers=1).out


def shards_of_rows(path: Any, kind: str) -> Array:
    """In which shard each row of a store lies, by counting."""
    counts = Store(path, kind).manifest.shard_samples
    return np.array([shard for shard, count in enumerate(counts) for _ in range(count)])


KINDS = {
    "images": lambda: (LMDBDataset(images()), shards_of_rows(images(), "images")),
    "arrays": lambda: (ArrayDataset(arrays()), shards_of_rows(arrays(), "arrays")),
    "documents": lambda: (TokenDataset(tokens(), 8, mode="document"), shards_of_rows(tokens(), "tokens")),
}


def delivered(loader: Loader) -> list[int]:
    with loader:
        return [k for batch in loader for k in batch.ids.tolist()]


def lanes_of(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, 7, shuffle=True, order="interleaved", num_workers=0, seed=5, **options)


def expected(shards: Array, epoch: int = 0, seed: int = 5) -> list[int]:
    """What a Loader delivers of samples that lie in these shards: by the documented order of samples sorted by shard."""
    by_shard = [[k for k, own in enumerate(shards.tolist()) if own == shard] for shard in range(max(shards) + 1)]
    counts = [*map(len, by_shard)]
    number = min(8, len(shards))
    assert number_of_lanes(sum(map(bool, counts))) == 8
    samples = [k for own in by_shard for k in own]
    return [samples[k] for k in reference.lanes(counts, number, seed, epoch)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_store_with_its_subsets_splits_and_sums(kind: str) -> None:
    dataset, shards = KINDS[kind]()
    assert max(shards) > 8
    assert dataset.shards_of(np.arange(len(dataset))).tolist() == shards.tolist()
    loader = lanes_of(dataset)
    assert loader.order == "interleaved"
    assert [delivered(loader), delivered(loader)] == [expected(shards), expected(shards, epoch=1)]
    if kind == "documents":
        first, _ = dataset.split(0.5, seed=3)
        chosen = [k for k in range(len(dataset)) if k in set(first._chosen.array.tolist())]
        assert delivered(lanes_of(first)) == expected(shards[chosen])
        return
    mixed = np.random.default_rng(1).permutation(len(dataset))[:20].tolist()
    for rows in (mixed, [*range(3, 20)], mixed + mixed[:5]):
        part = dataset.subset(rows)
        assert delivered(lanes_of(part)) == expected(shards[rows])
        if kind == "images":
            both = np.concatenate([shards[rows], shards + max(shards) + 1])
            assert delivered(lanes_of(part + dataset)) == delivered(lanes_of(ConcatDataset([part, dataset]))) == expected(both)
            assert delivered(lanes_of((part + dataset).subset([1, 5, 0, 60, 2]))) == expected(both[[1, 5, 0, 60, 2]])


@pytest.mark.parametrize("documents", ["join", "mask", "align"])
def test_rows_of_tokens_belong_to_the_shard_that_they_begin_in(documents: str) -> None:
    dataset = TokenDataset(tokens(), 16, mode="sequential", documents=documents)
    counts = Store(tokens(), "tokens").manifest.section("tokens").counts
    of_token = np.repeat(np.arange(len(counts)), counts)
    if documents == "align":
        ends = Store(tokens(), "tokens").samples
        pairs = zip(ends["start"].tolist(), ends["tokens"].tolist(), strict=True)
        starts = np.array([start + 16 * k for start, length in pairs for k in range(-(-(length - 1) // 16))])
    else:
        starts = np.arange(0, len(of_token) - 1, 16)
    assert len(starts) == len(dataset)
    assert delivered(lanes_of(dataset)) == expected(of_token[starts])


def test_a_store_behind_a_cache_is_shuffled_by_lanes() -> None:
    class Remote(LMDBDataset):
        remote = True

    dataset = Remote(images())
    assert Loader(dataset, 7, shuffle=True, num_workers=0).order == "interleaved"
    assert Loader(dataset, 7, num_workers=0).order == "full" and delivered(Loader(dataset, 7, num_workers=0)) == [*range(61)]
    assert Loader(dataset, 7, shuffle=True, order="full", num_workers=0).order == "full"
    assert Loader(dataset, 7, sampler=range(61), num_workers=0).order == "full"
    assert Loader(LMDBDataset(images()), 7, shuffle=True, num_workers=0).order == "full"


# ------------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_in_lanes_is_refused() -> None:
    path, images_ = folder() / "a.png", LMDBDataset(images())
    path.write_bytes(encode(picture(1, 16, 16), ".png"))
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (images_, {"order": "lane"}, "order is 'lane', but must be one of None, 'full', 'interleaved'"),
        (images_, {"shuffle": False}, "order is 'interleaved', a way to shuffle, but shuffle is False"),
        (images_, {"shuffle": False, "order": "full", "sampler": range(5)}, "a sampler decides the order.*leave out order"),
        (TensorDataset(torch.arange(9)), {}, "follows the shards of a store, but a TensorDataset has no shards.*: leave out order"),
        (TokenDataset(tokens(), 8), {}, r"draws each row from all shards \(mode='random'\)"),
        (RAMDataset([path, path]), {}, "files have no shards: leave out order"),
        (images_.subset([]), {}, "the dataset or sampler has 0 samples"),
    ]
    for dataset, options, match in refused:
        with pytest.raises((ValueError, StoreError), match=match):
            Loader(dataset, 7, num_workers=0, **{"shuffle": True, "order": "interleaved", **options})


def test_a_state_of_another_order_or_of_other_shards_is_refused() -> None:
    """Another store of the same images, but with other shards, has as many samples in another order."""
    with small_shards(5):
        other = fastdata.prep(images().parent / "in", images().parent / "other.fds", codec="rgb", size=16, workers=1).out
    dataset = LMDBDataset(images())
    lanes, full = lanes_of(dataset), Loader(dataset, 7, shuffle=True, num_workers=0, seed=5)
    state = lanes.state_dict()
    for loader, wrong, match in (
        (full, state, "order interleaved, and this loader has full"),
        (lanes, full.state_dict(), "order full, and this loader has interleaved"),
        (lanes, {**state, "lanes": 16}, "lanes 16, and this loader has 8"),
        (lanes, lanes_of(LMDBDataset(other)).state_dict(), "shards .*make them equal"),
    ):
        with pytest.raises(ValueError, match=f"taken with {match}"):
            loader.load_state_dict(wrong)
