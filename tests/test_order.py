"""The order of an epoch: every sample once, every permutation alike, and the same batches for any number of ranks."""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fastdata.loader.fetch import Size
from fastdata.loader.order import ROUNDS, EpochOrder, RankShard, permute
from fastdata.loader.requests import Requests, SampleCounts


def whole_order(n, seed, epoch):
    return EpochOrder(n, seed, True).at(epoch, np.arange(n))


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.data())
@settings(max_examples=150, deadline=None)
def test_an_epoch_is_a_permutation_and_any_place_is_reached_alone(n, seed, epoch, data):
    order = whole_order(n, seed, epoch)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    np.testing.assert_array_equal(EpochOrder(n, seed, True).at(epoch, np.array(places)), order[places])


@pytest.mark.parametrize("n", [1, 2, 3, 5, 100, 255, 256, 257, 1025])
@pytest.mark.parametrize("seed", [3, 0x1234_5678_9ABC_DEF1])
def test_the_order_is_the_documented_one(n, seed):
    assert whole_order(n, seed, 1).tolist() == reference.order(n, seed, 1)


@pytest.mark.parametrize("vary", ["seed", "epoch"])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_of_a_few_are_equally_likely(n, vary):
    cells = math.factorial(n)
    trials = 40 * cells if n < 5 else 20 * cells
    counts = Counter(tuple(reference.order(n, *((k, 0) if vary == "seed" else (0, k)))) for k in range(trials))
    expected = trials / cells
    chi2 = sum((c - expected) ** 2 / expected for c in counts.values()) + (cells - len(counts)) * expected
    assert chi2 < (cells - 1) + 4 * math.sqrt(2 * (cells - 1))


def test_the_order_stays_what_it_is():
    """A checkpoint of an older version resumes in the same order: a change here needs a note for the users."""
    assert whole_order(10, 0, 0).tolist() == [5, 0, 1, 2, 8, 3, 9, 4, 7, 6]
    assert permute(np.arange(5), 1000, 10, np.arange(ROUNDS, dtype=np.uint32)).tolist() == [54, 149, 997, 281, 254]


def batches(n, world, batch, *, shuffle=True, epoch_start=(0, 0), epochs=1, blocks=False):
    """For each rank the list of its requests of one epoch, or more."""
    found = []
    for rank in range(world):
        requests = Requests(
            None, EpochOrder(n, 7, shuffle), RankShard(rank, world, blocks), SampleCounts(n, batch, n), [(0, Size())]
        )
        requests.restart(*epoch_start)
        found.append(list(islice(requests, epochs * -(-n // batch))))
    return found


def test_ranks_take_blocks():
    ranks = batches(21, 2, 8, shuffle=False, blocks=True)
    assert [r.indices.tolist() for r in ranks[0]] == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18]]
    assert [r.indices.tolist() for r in ranks[1]] == [[4, 5, 6, 7], [12, 13, 14, 15], [19, 20, 20]]
    ranks = batches(5, 4, 8, shuffle=False, blocks=True)
    assert [(r.indices.tolist(), r.valid) for (r,) in ranks] == [([0, 1], 2), ([2, 3], 2), ([4, 4], 1), ([4, 4], 0)]


@pytest.mark.parametrize("start", [0, 8, 5, 24])
def test_a_restart_goes_on_where_asked_and_into_the_next_epochs(start):
    straight = batches(30, 1, 8, epochs=3)[0]
    (again,) = batches(30, 1, 8, epoch_start=(1, start), epochs=2)
    order = np.concatenate([whole_order(30, 7, 1)[start:], whole_order(30, 7, 2)])
    found = np.concatenate([r.indices for r in again])[: len(order)]
    np.testing.assert_array_equal(found, order[: len(found)])
    if start % 8 == 0:
        expected = [(r.epoch, r.start) for r in straight[4 + start // 8 :]]
        assert [(r.epoch, r.start) for r in again][: len(expected)] == expected


def test_many_samples_are_ordered_in_pieces_that_fit_together():
    (requests,) = batches(20_000, 1, 7)
    np.testing.assert_array_equal(np.concatenate([r.indices for r in requests]), whole_order(20_000, 7, 0))
