"""The simulation of a cluster: what a node reads and fetches, compared with counting place by place."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.loader.lanes import LaneOrder
from fastdata.loader.order import Part
from support import run

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "simulate_cluster.py"


@cache
def simulation() -> Any:
    spec = importlib.util.spec_from_file_location("simulate_cluster", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["simulate_cluster"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("ranks", "node"), [(1, range(1)), (8, range(8)), (12, range(4, 8)), (16, range(8, 16))])
def test_what_a_node_reads(ranks: int, node: range) -> None:
    order, batch = LaneOrder(np.full(60, 20), 3, 12), 2
    uses = simulation().uses_of(order, 1, ranks, node, batch)
    stop = order.n - order.n % (ranks * batch)
    places = np.sort(np.concatenate([Part(rank, ranks).places(0, stop, ranks * batch, 12)[0] for rank in node]))
    found: dict[tuple[int, int], list[int]] = {}
    for place, shard in zip(places.tolist(), order.shards_at(1, places).tolist(), strict=True):
        found.setdefault((place % 12, shard), []).append(place)
    expected = sorted((min(seen), max(seen), shard) for (_, shard), seen in found.items())
    assert sorted(zip(uses.first.tolist(), uses.last.tolist(), uses.shard.tolist(), strict=True)) == expected
    moments = [sum(first <= place <= last for first, last, _ in expected) for place in places.tolist()]
    assert simulation().most_in_use(uses) == max(moments)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 99)), min_size=1, max_size=20), min_size=1, max_size=3),
    st.integers(1, 10),
)
@settings(max_examples=200, deadline=None)
def test_a_cache_evicts_the_shard_with_the_farthest_next_use(reads: list[list[tuple[int, int]]], room: int) -> None:
    """With uses of one moment each, so that nothing else is in use: Belady's rule, step by step."""
    epochs = []
    for epoch in reads:
        moments = sorted({moment: shard for shard, moment in epoch}.items())
        first = np.array([moment for moment, _ in moments])
        epochs.append(simulation().Uses(np.array([shard for _, shard in moments]), first, first))
    sequence = [(k, shard) for k, uses in enumerate(epochs) for shard in uses.shard.tolist()]
    held: set[int] = set()
    expected = [0] * len(epochs)
    for at, (epoch, shard) in enumerate(sequence):
        if shard in held:
            continue
        expected[epoch] += 1
        if len(held) == room:
            coming = [other for _, other in sequence[at:]]
            held.remove(max(held, key=lambda one: coming.index(one) if one in coming else len(coming)))
        held.add(shard)
    assert simulation().fetched(epochs, 100, room) == expected


def test_a_cache_without_room_for_the_shards_in_use_is_too_small() -> None:
    uses = simulation().Uses(np.array([0, 1, 2]), np.array([0, 1, 2]), np.array([9, 8, 7]))
    assert simulation().fetched([uses], 10, 2) is None
    assert simulation().fetched([uses, uses], 10, 3) == [3, 0]


@pytest.mark.slow
def test_the_command_prints_its_tables_and_draws_them(tmp_path: Path) -> None:
    sizes = ("--shards", 100, "--ranks", 8, 64, "--cache-gib", 1, 64, "--charts", tmp_path)
    done = run(sys.executable, SCRIPT, *sizes)
    assert done.returncode == 0, done.stderr
    assert "100 shards of 128 MiB, 8 lanes" in done.stdout and "64 ranks are limited by" in done.stdout
    assert (tmp_path / "cluster.png").stat().st_size > 10_000
