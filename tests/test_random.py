"""Random numbers: the published known answers, and what the datasets rely on."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from fastdata.data.random import isolated_global_rngs, philox, seeds_for_user_code, uniforms
from reference import ONES
from reference import philox as philox_by_hand

KNOWN = [  # Random123, kat_vectors: philox4x32 10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_gives_the_known_answers(counter, key, answer):
    assert tuple(int(word) for word in philox(counter, key)) == answer
    assert philox_by_hand(counter, key) == answer


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (5, 3), (2**64 - 1, 2**32 - 1), (0x0123456789ABCDEF, 77)])
def test_uniforms_are_philox_words_of_seed_epoch_id_and_draw(seed, epoch):
    ids = np.array([0, 1, 7, 2**32 - 1, 2**32, 2**40 + 5])
    found = uniforms(seed, epoch, ids, 7)
    assert found.shape == (7, 6) and found.dtype == np.float64
    np.testing.assert_array_equal(uniforms(seed, epoch, ids[[3, 1, 1]], 2), found[:2, [3, 1, 1]])
    for column, k in enumerate(ids.tolist()):
        blocks = [philox_by_hand((k & ONES, k >> 32, block, seed >> 32), (seed & ONES, epoch)) for block in range(2)]
        assert (found[:, column] * 2**32).tolist() == [*blocks[0], *blocks[1][:3]]


def test_seeds_for_users_code_are_64_bits_and_apart_from_our_own_numbers():
    seeds = seeds_for_user_code(3, 1, np.arange(20_000))
    assert len(set(seeds)) == 20_000 and all(0 <= seed < 2**64 for seed in seeds) and max(seeds) > 2**63
    ours = {int(u) for u in (uniforms(3, 1, np.arange(2000), 24) * 2**32).ravel()}
    assert len(ours & {seed >> 32 for seed in seeds}) < 5  # by chance 0.2
    assert len({seeds_for_user_code(*key, [7])[0] for key in ((3, 1), (3, 2), (4, 1), (3 + 2**32, 1))}) == 4


def test_the_global_generators_are_given_back_as_they_were_after_an_error() -> None:
    def states() -> tuple[object, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002

    before = states()
    with pytest.raises(KeyError), isolated_global_rngs() as reseed:
        reseed(2**64 - 5)
        raise KeyError
    assert states() == before
