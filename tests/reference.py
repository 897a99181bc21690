"""Slow references, written from what is documented: the order of an epoch, and the random numbers of a sample."""

from __future__ import annotations

import numpy as np

from support import Array

ONES = 0xFFFFFFFF
STREAM_OF_ORDERS, STREAM_OF_USERS = 0xFFFFFFFF, 0xFFFFFFFE
ROUNDS = 12


def philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The round function of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", ten times, in Python's integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & ONES, (p0 >> 32) ^ c3 ^ k1, p0 & ONES
        k0, k1 = (k0 + 0x9E3779B9) & ONES, (k1 + 0xBB67AE85) & ONES
    return c0, c1, c2, c3


def _words(seed: int, epoch: int, low: int, high: int, stream: int) -> tuple[int, ...]:
    return philox((low, high, stream, seed >> 32), (seed & ONES, epoch))


def order(n: int, seed: int, epoch: int) -> list[int]:
    """The samples of an epoch, shuffled: a Feistel network of 8 bits or more, walked on where it leaves the range."""
    return _permutation(n, 8, seed, epoch, 0)


def lanes(counts: list[int], number: int, seed: int, epoch: int) -> list[int]:
    """The samples of an epoch in so many lanes: the row of all shards, cut into lanes, which are dealt from in turn."""
    row = []
    for shard in order(len(counts), seed, epoch):
        first = sum(counts[:shard])
        row += [first + place for place in _permutation(counts[shard], 4, seed, epoch, 1 + shard)]
    cut = []
    for lane in range(number):
        length = len(row) // number + (lane < len(row) % number)
        cut.append(row[sum(map(len, cut)) :][:length])
    return [lane[step] for step in range(len(cut[0])) for lane in cut if step < len(lane)]


def _permutation(n: int, least_bits: int, seed: int, epoch: int, stream: int) -> list[int]:
    bits = max(least_bits, max(n - 1, 0).bit_length())
    keys = [word for block in range(3) for word in _words(seed, epoch, block, stream, STREAM_OF_ORDERS)][:ROUNDS]
    network = _network(bits, keys).tolist()
    found = []
    for place in range(n):
        place = network[place]
        while place >= n:
            place = network[place]
        found.append(place)
    return found


def _network(bits: int, keys: list[int]) -> Array:
    """Where each number of so many bits goes."""
    low = bits // 2
    numbers = np.arange(1 << bits, dtype=np.uint64)
    left, right = numbers >> np.uint64(low), numbers % np.uint64(1 << low)
    for k, key in enumerate(keys):
        width = low if k % 2 else bits - low  # of the half that is made
        left, right = right, left ^ (_mixed(right ^ np.uint64(key)) % np.uint64(1 << width))
    return left << np.uint64(low) | right


def _mixed(h: Array) -> Array:
    """The finalizer of MurmurHash3 of 32 bits."""
    h ^= h >> np.uint64(16)
    h = h * np.uint64(0x85EBCA6B) % np.uint64(1 << 32)
    h ^= h >> np.uint64(13)
    h = h * np.uint64(0xC2B2AE35) % np.uint64(1 << 32)
    return h ^ h >> np.uint64(16)


def fraction(seed: int, epoch: int, index: int, repeat: int) -> float:
    """The number in [0, 1) that says where a random row of tokens begins."""
    high, low, *_ = _words(seed, epoch, index & ONES, index >> 32 | repeat << 20, 0)
    return float(((high << 21) | (low >> 11)) * 2.0**-53)


def users_seed(seed: int, epoch: int, index: int, repeat: int) -> int:
    """What a user's own code finds the generators seeded by, for one sample."""
    high, low, *_ = _words(seed, epoch, index & ONES, index >> 32 | repeat << 20, STREAM_OF_USERS)
    return high << 32 | low
