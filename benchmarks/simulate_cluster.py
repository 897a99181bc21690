"""What reading a remote store by lanes costs on 1 to 1,024 ranks: a simulation with the Loader's own order.

    python benchmarks/simulate_cluster.py [--shards 1300 13000] [--charts FOLDER]

It simulates which shards each node fetches, in which order, and what its cache keeps. It measures no network and no disk: the rate
of a rank, the bytes of a sample and the limits of network and storage are options. A node evicts the shard with the farthest next
use. What limits a number of ranks is told for an epoch whose shards are not in the cache yet.
"""

from __future__ import annotations

import argparse
import heapq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastdata.loader.lanes import LaneOrder
from fastdata.loader.order import EpochOrder, Part

Array = np.ndarray[Any, np.dtype[Any]]

MIB, GIB = 1 << 20, 1 << 30
NODES_SEEN = 4  # nodes that are simulated one by one; the others are like them
EPOCHS = 3
SEED = 1


@dataclass(frozen=True)
class Cluster:
    """What is given: sizes, measured rates, limits."""

    ranks: int
    per_node: int
    batch: int  # samples of a batch and rank
    rate: float  # samples a second and rank, measured by `fastdata bench`
    sample_bytes: int
    shard_bytes: int
    network: float  # bytes a second and node
    request_bytes: int
    request_rate: float  # requests a second that the storage answers for one prefix

    @property
    def nodes(self) -> int:
        return -(-self.ranks // self.per_node)


@dataclass(frozen=True)
class Uses:
    """Which shards a node reads in an epoch: shard, and the places of its first and last sample there, sorted by first place."""

    shard: Array
    first: Array
    last: Array


def uses_of(order: LaneOrder, epoch: int, ranks: int, node: range, batch: int) -> Uses:
    """Return what the ranks of a node read, by the Loader's own order and division of batches of so many samples a rank."""
    pieces = order.pieces(epoch)
    first, last = np.full(len(pieces.lane), order.n), np.full(len(pieces.lane), -1)
    begins = rows_of(pieces.first, order)
    stop = order.n - order.n % (ranks * batch)
    for rank in node:
        places, _ = Part(rank, ranks).places(0, stop, ranks * batch, order.lanes)
        piece = np.searchsorted(begins, rows_of(places, order), "right") - 1
        np.minimum.at(first, piece, places)
        np.maximum.at(last, piece, places)
    read = np.flatnonzero(last >= 0)
    read = read[np.argsort(first[read], kind="stable")]
    return Uses(pieces.shard[read], first[read], last[read])


def rows_of(places: Array, order: LaneOrder) -> Array:
    """Return where places lie in the row of all samples that is cut into lanes."""
    step, lane = np.divmod(places, order.lanes)
    length, longer = divmod(order.n, order.lanes)
    return lane * length + np.minimum(lane, longer) + step


def most_in_use(uses: Uses) -> int:
    """Return the largest number of shards that are in use at a time."""
    moments = np.concatenate([np.sort(uses.first), np.sort(uses.last)])
    change = np.repeat([1, -1], len(uses.first))
    order = np.lexsort((-change, moments))
    return int(np.cumsum(change[order]).max())


def fetched(epochs: list[Uses], n: int, room: int) -> list[int] | None:
    """Return how many shards a node fetches in each epoch, if its cache has room for so many; None: they do not suffice."""
    moved = [(uses.shard, uses.first + k * n, uses.last + k * n) for k, uses in enumerate(epochs)]
    shard, first, last = (np.concatenate(part) for part in zip(*moved, strict=True))
    upcoming = np.full(len(shard), np.iinfo(np.int64).max)
    later: dict[int, int] = {}
    for k in range(len(shard) - 1, -1, -1):
        upcoming[k] = later.get(int(shard[k]), upcoming[k])
        later[int(shard[k])] = int(first[k])
    held: dict[int, tuple[int, int]] = {}  # shard: until when it is in use, and its next use
    idle: list[tuple[int, int]] = []  # (-next use, shard), some of them out of date
    busy: list[tuple[int, int]] = []  # (end of use, shard)
    misses = [0] * len(epochs)
    for one, begin, end, after in zip(*map(np.ndarray.tolist, (shard, first, last, upcoming)), strict=True):
        while busy and busy[0][0] < begin:
            _, done = heapq.heappop(busy)
            if done in held and held[done][0] < begin:
                heapq.heappush(idle, (-held[done][1], done))
        if one not in held:
            misses[begin // n] += 1
            while len(held) >= room:
                while idle and (idle[0][1] not in held or held[idle[0][1]][1] != -idle[0][0] or held[idle[0][1]][0] >= begin):
                    heapq.heappop(idle)
                if not idle:
                    return None
                del held[heapq.heappop(idle)[1]]
        held[one] = (max(end, held.get(one, (0, 0))[0]), after)
        heapq.heappush(busy, (held[one][0], one))
    return misses


def simulate(shards: int, cluster: Cluster, caches: list[float], lanes: int | None = None) -> dict[str, Any]:
    """Simulate some epochs of a cluster."""
    order = LaneOrder(np.full(shards, cluster.shard_bytes // cluster.sample_bytes), SEED, lanes)
    numbers = np.unique(np.linspace(0, cluster.nodes - 1, min(cluster.nodes, NODES_SEEN)).astype(int))
    node_ranks = [range(k * cluster.per_node, min((k + 1) * cluster.per_node, cluster.ranks)) for k in numbers.tolist()]
    nodes = [[uses_of(order, epoch, cluster.ranks, ranks, cluster.batch) for epoch in range(EPOCHS)] for ranks in node_ranks]
    share = shards / cluster.nodes
    each = np.mean([len(np.unique(uses[0].shard)) for uses in nodes])
    in_use = max(most_in_use(uses) for epochs in nodes for uses in epochs)
    epoch_s = order.n / (cluster.ranks * cluster.rate)
    found: dict[str, Any] = {"ranks": cluster.ranks, "nodes": cluster.nodes, "lanes": order.lanes, "factor": each / share}
    found |= {"in_use": in_use, "least": in_use * cluster.shard_bytes, "epoch_s": epoch_s, "hits": {}}
    for cache in caches:
        counts = [fetched(epochs, order.n, int(cache // cluster.shard_bytes)) for epochs in nodes]
        if None not in counts:
            later = np.mean([np.mean(count[1:]) for count in counts if count])
            wanted = np.mean([len(np.unique(uses.shard)) for epochs in nodes for uses in epochs[1:]])
            found["hits"][cache] = max(0.0, 1 - later / wanted)  # below: shards are fetched twice in an epoch
    total = each * cluster.nodes * cluster.shard_bytes
    found |= {"bytes": total, "node_rate": total / cluster.nodes / epoch_s, "requests": total / cluster.request_bytes / epoch_s}
    speeds = {
        "the ranks": 1.0,
        "the network of a node": cluster.network / found["node_rate"],
        "requests to the storage": cluster.request_rate / found["requests"],
    }
    found["limit"] = min(speeds, key=lambda name: speeds[name])
    found["reached"] = min(speeds.values())
    return found


def classes_in_batches(order: EpochOrder | LaneOrder, class_of: Array, batch: int) -> float:
    """Return the mean number of classes in a batch, over 40 batches of an epoch."""
    n = len(class_of)
    starts = np.linspace(0, n - batch, 40).astype(int)
    return float(np.mean([len(np.unique(class_of[order.at(0, start + np.arange(batch))])) for start in starts]))


def mixing(batch: int, classes: int, per_class: int) -> list[dict[str, Any]]:
    """Count the classes in a batch for inputs that are sorted by class or shuffled, in several numbers of shards."""
    n = classes * per_class
    sorted_by_class = np.arange(n) // per_class
    drawn = np.random.default_rng(SEED).permutation(sorted_by_class)
    found = []
    for shards in (64, 128, 400, 1300, 13_000):
        counts = np.diff(np.linspace(0, n, shards + 1).astype(int))
        lanes, full = LaneOrder(counts, SEED), EpochOrder(n, SEED, shuffle=True)
        row: dict[str, Any] = {"shards": shards, "lanes": lanes.lanes}
        for name, order in (("lanes", lanes), ("full", full)):
            row |= {f"sorted {name}": classes_in_batches(order, sorted_by_class, batch)}
            row |= {f"shuffled {name}": classes_in_batches(order, drawn, batch)}
        found.append(row)
    return found


def print_table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|" + "--:|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_cluster(shards: int, rows: list[dict[str, Any]], caches: list[float], shard_bytes: int) -> None:
    print(f"**{shards:,} shards of {shard_bytes / MIB:.0f} MiB, {rows[0]['lanes']} lanes**\n")
    head = [
        "ranks",
        "nodes",
        "fetched / share",
        "in use at once",
        "least cache, GiB",
        *(f"hits, {c / GIB:.0f} GiB" for c in caches),
    ]
    head += ["GB/s a node", "GB/s in all", "GET/s", "reached", "limited by"]
    table = []
    for row in rows:
        hits = [f"{row['hits'][c]:.0%}" if c in row["hits"] else "too small" for c in caches]
        numbers = [
            f"{row['ranks']:,}",
            f"{row['nodes']}",
            f"{row['factor']:.2f}",
            f"{row['in_use']}",
            f"{row['least'] / GIB:.1f}",
            *hits,
        ]
        numbers += [f"{row['node_rate'] / 1e9:.2f}", f"{row['node_rate'] * row['nodes'] / 1e9:.1f}", f"{row['requests']:,.0f}"]
        table.append([*numbers, f"{row['reached']:.0%}", row["limit"]])
    print_table(head, table)


def draw(
    folder: Path, found: dict[int, list[dict[str, Any]]], mixed: list[dict[str, Any]], caches: list[float], batch: int
) -> Path:
    """Draw the tables."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, ((traffic, cache), (speed, classes)) = plt.subplots(2, 2, figsize=(12, 8), layout="constrained")
    for shards, rows in found.items():
        ranks = [row["ranks"] for row in rows]
        label = f"{shards:,} shards, {rows[0]['lanes']} lanes"
        traffic.semilogx(ranks, [row["factor"] for row in rows], "o-", base=2, label=label)
        speed.semilogx(ranks, [100 * row["reached"] for row in rows], "o-", base=2, label=label)
        cache.loglog(ranks, [row["least"] / GIB for row in rows], "o-", base=2, label=label)
    traffic.set(title="Shards that a node fetches in an epoch, times its share", xlabel="ranks", ylabel="times")
    cache.set(title="Least cache of a node", xlabel="ranks", ylabel="GiB")
    speed.set(
        title="Rate that is reached in the first epoch",
        xlabel="ranks",
        ylabel="% of the ranks' own",
        ylim=(0, 105),
    )
    traffic.set_ylim(bottom=0)
    cache.yaxis.set_major_formatter("{x:g}")
    for axes in (traffic, cache, speed):
        axes.xaxis.set_major_formatter("{x:g}")
        axes.legend()
    places = np.arange(len(mixed))
    for k, name in enumerate(("sorted lanes", "shuffled lanes", "sorted full", "shuffled full")):
        classes.bar(places + 0.2 * k - 0.3, [row[name] for row in mixed], 0.2, label=f"inputs {name.replace(' ', ', order ')}")
    names = [f"{row['shards']:,}\n{row['lanes']} lanes" for row in mixed]
    classes.set(title=f"Classes in a batch of {batch}", xlabel="shards", ylabel="classes")
    classes.set_xticks(places, names)
    classes.set_ylim(0, 1.35 * max(row["shuffled full"] for row in mixed))
    classes.legend(ncols=2)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cluster.png"
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 8, 16, 24, 64, 96, 128, 256, 512, 1024])
    parser.add_argument("--per-node", type=int, default=8)
    parser.add_argument("--rank-batch", type=int, default=64, help="samples of a batch and rank")
    parser.add_argument("--shards", type=int, nargs="+", default=[1300, 13_000])
    parser.add_argument("--lanes", type=int, help="in place of the number that follows from the shards")
    parser.add_argument("--shard-mib", type=int, default=128)
    parser.add_argument("--sample-bytes", type=int, default=109_000, help="of a record, from `fastdata info`")
    parser.add_argument("--rate", type=float, default=2500, help="samples a second and rank, from `fastdata bench`")
    parser.add_argument("--network", type=float, default=3.0, help="GB/s of a node")
    parser.add_argument("--request-mib", type=int, default=16)
    parser.add_argument("--request-rate", type=float, default=5500, help="GET/s that the storage answers for one prefix")
    parser.add_argument("--cache-gib", type=float, nargs="+", default=[32, 128, 512])
    parser.add_argument("--batch", type=int, default=512, help="for the classes in a batch")
    parser.add_argument("--charts", type=Path, help="folder for the charts")
    options = parser.parse_args()
    caches = [gib * GIB for gib in options.cache_gib]
    print(
        f"{options.rate:,.0f} samples/s a rank, {options.sample_bytes:,} bytes a sample, {options.network} GB/s a node, "
        f"GETs of {options.request_mib} MiB, {options.request_rate:,.0f} a second\n"
    )
    mixed = mixing(options.batch, 1000, 1000)
    print(f"**Classes in a batch of {options.batch}** (a million samples of 1,000 classes)\n")
    names = ["sorted lanes", "shuffled lanes", "sorted full", "shuffled full"]
    head = ["shards", "lanes", *(f"inputs {name.replace(' ', ', order ')}" for name in names)]
    print_table(head, [[f"{row['shards']:,}", f"{row['lanes']}", *(f"{row[name]:.0f}" for name in names)] for row in mixed])
    found: dict[int, list[dict[str, Any]]] = {}
    for shards in options.shards:
        given = (options.per_node, options.rank_batch, options.rate, options.sample_bytes, options.shard_mib * MIB)
        limits = (options.network * 1e9, options.request_mib * MIB, options.request_rate)
        clusters = [Cluster(ranks, *given, *limits) for ranks in options.ranks]
        found[shards] = [simulate(shards, cluster, caches, options.lanes) for cluster in clusters]
        print_cluster(shards, found[shards], caches, options.shard_mib * MIB)
        last = found[shards][-1]
        print(f"{last['ranks']:,} ranks are limited by {last['limit']}, at {last['reached']:.0%} of their own rate.\n")
    if options.charts:
        print(draw(options.charts, found, mixed, caches, options.batch))


if __name__ == "__main__":
    main()
