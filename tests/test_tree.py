"""The records of LMDB files that were made here, page by page: of every size of pages, of any depth, and files that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from fastdata.store.tree import BROKEN, Tree
from support import Array

BRANCH, LEAF, LARGE, META = 1, 2, 4, 8
NONE = (1 << 64) - 1


def _page(number: int, kind: int, nodes: list[bytes], size: int, *, backwards: bool) -> bytes:
    """A page of nodes, which lie from its end to its beginning, or the other way round."""
    page = bytearray(size)
    rooms = [len(node) + len(node) % 2 for node in nodes]
    begin = size - sum(rooms)
    struct.pack_into("<Q2xHHH", page, 0, number, kind, 16 + 2 * len(nodes), begin)
    for k, node in enumerate(nodes):
        at = begin + sum(rooms[:k]) if backwards else size - sum(rooms[: k + 1])
        page[at : at + len(node)] = node
        struct.pack_into("<H", page, 16 + 2 * k, at)
    return bytes(page)


def _meta(number: int, size: int, transaction: int, depth: int, records: int, root: int, last: int) -> bytes:
    """One of the first two pages. The older of them describes the file before the records."""
    free = struct.pack("<IHHQQQQQ", size, 0, 0, 0, 0, 0, 0, NONE)
    tree = struct.pack("<IHHQQQQQ", 0, 0, depth, 0, 0, 0, records, root)
    head = struct.pack("<Q2xH4x", number, META) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 1 << 40)
    return (head + free + tree + struct.pack("<QQ", last, transaction)).ljust(size, b"\0")


def made(
    records: list[bytes], size: int = 512, *, most: int = 10**9, depth: int = 0, newer: int = 1, backwards: bool = False
) -> bytearray:
    """An LMDB file of these records.

    size: bytes of a page; most: records of a leaf; depth: at least so many levels; newer: the meta page that is valid.
    """
    pages = [b"", b""]

    def filled(kind: int, nodes: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
        """Make pages of nodes, each with its first record. Return the first record of each page, and its number."""
        parts, room = list[list[tuple[int, bytes]]](), 0
        for first, node in nodes:
            taken = 2 + len(node) + len(node) % 2
            if taken > room or (kind == LEAF and len(parts[-1]) == most):
                parts.append([])
                room = size - 16
            parts[-1].append((first, node))
            room -= taken
        found = []
        for part in parts:
            (first, node), *others = part
            nodes_of = [node[:6] + b"\0\0" if kind == BRANCH else node, *(node for _, node in others)]  # the first needs no key
            found.append((first, len(pages)))
            pages.append(_page(len(pages), kind, nodes_of, size, backwards=backwards))
        return found

    leaves = []
    for k, record in enumerate(records):
        large = 16 + len(record) > ((size - 16) // 2 & -2) - 2
        value = struct.pack("<Q", len(pages)) if large else record
        leaves.append((k, struct.pack("<IHH", len(record), large, 8) + struct.pack(">Q", k) + value))
        if large:
            count = -(-(16 + len(record)) // size)
            whole = (struct.pack("<Q2xHI", len(pages), LARGE, count) + record).ljust(count * size, b"\0")
            pages.extend(whole[at : at + size] for at in range(0, len(whole), size))
    level, levels = (filled(LEAF, leaves), 1) if records else ([(0, NONE)], 0)
    while records and (len(level) > 1 or levels < depth):
        branches = [(first, struct.pack("<Q", number | 8 << 48) + struct.pack(">Q", first)) for first, number in level]
        level, levels = filled(BRANCH, branches), levels + 1
    pages[newer] = _meta(newer, size, 2, levels, len(records), level[0][1], len(pages) - 1)
    pages[1 - newer] = _meta(1 - newer, size, 1, 0, 0, NONE, 1)
    return bytearray(b"".join(pages))


def _read(data: Any) -> list[bytes]:
    tree = Tree(data)
    return [bytes(tree.get(k)) for k in range(tree.count)]


def _values(sizes: list[int]) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.bytes(size) for size in sizes]


def test_lmdb_reads_the_files_that_are_made_here(tmp_path: Path) -> None:
    records = _values([0, 1, 30, 2020, 2021, 2022, 5000, 4080, 4081] * 40)
    for options in ({}, {"most": 3}, {"newer": 0, "backwards": True}):
        (tmp_path / "s.mdb").write_bytes(made(records, 4096, **options))
        with lmdb.open(str(tmp_path / "s.mdb"), subdir=False, readonly=True, lock=False) as env, env.begin() as transaction:
            assert [bytes(value) for _, value in transaction.cursor()] == records


@pytest.mark.parametrize("size", [1 << k for k in range(9, 17)])
@pytest.mark.parametrize("options", [{}, {"most": 2}, {"newer": 0, "backwards": True}, {"depth": 16}], ids=str)
def test_pages_of_every_size(size: int, options: dict[str, Any]) -> None:
    most = ((size - 16) // 2 & -2) - 2 - 16  # of a value in a leaf
    records = _values([0, 1, 2, 30, most - 1, most, most + 1, most + 2, size - 16, size - 15, 2 * size - 16] * 2)
    data = made(records, size, **options)
    assert _read(data) == records
    places: Array = Tree(data).places()
    assert [bytes(data[at : at + length]) for at, length in places.tolist()] == records and places.dtype == np.int64


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_records(count: int) -> None:
    data = made([b"value"] * count)
    assert _read(data) == [b"value"] * count and Tree(data).places().shape == (count, 2)


def test_more_records_than_two_bytes_count() -> None:
    records = [k.to_bytes(4, "big") for k in range(70_000)]
    tree = Tree(made(records, 1 << 14))
    assert tree.count == 70_000
    for k in (0, 1, 65_535, 65_536, 65_537, 69_999, *range(0, 70_000, 777)):
        assert tree.get(k) == records[k]


def test_more_pages_than_two_bytes_count() -> None:
    """The second of two leaves lies after 65,535 pages that nobody uses."""
    data = made([b"a", b"b"], most=1)
    (first, second), (branch,) = _pages(data, LEAF), _pages(data, BRANCH)
    far = 65_537
    data += bytes(far * 512 - len(data)) + struct.pack("<Q", far) + data[second + 8 : second + 512]
    data[second : second + 512] = bytes(512)
    struct.pack_into("<I", data, _node(data, branch, 1), far)
    struct.pack_into("<Q", data, 512 + 16 + 24 + 96, far)
    assert first < second and _read(data) == [b"a", b"b"]


# ---------------------------------------------------------------------------------------------------------- files that lie


def _pages(data: bytes | bytearray, kind: int) -> list[int]:
    return [page for page in range(0, len(data), 512) if struct.unpack_from("<Q2xH", data, page) == (page // 512, kind)]


def _node(data: bytes | bytearray, page: int, k: int) -> int:
    return page + int(struct.unpack_from("<H", data, page + 16 + 2 * k)[0])


RECORDS = _values([20, 20, 700, 20, 20, 20, 700, 20])
FILE = bytes(made(RECORDS, most=2))
(ROOT,), LEAVES = _pages(FILE, BRANCH), _pages(FILE, LEAF)
VALUES = _pages(FILE, LARGE)
# of the meta page that is valid: flags at 4, depth at 6, records at 32, the root at 40, the last page at 48
MAIN = 512 + 16 + 24 + 48
LAST = len(FILE) // 512 - 1


def _put(data: bytearray, form: str, at: int, value: int) -> None:
    struct.pack_into(form, data, at, value)


OF_BRANCHES: dict[str, Callable[[bytearray], Any]] = {
    "half a page": lambda data: data.extend(bytes(256)),
    "no second page": lambda data: data.__delitem__(slice(512, None)),
    "nothing": lambda data: data.clear(),
    "meta page 0 has another number": lambda data: _put(data, "<Q", 0, 1),
    "meta page 1 has another number": lambda data: _put(data, "<Q", 512, 0),
    "a meta page is a leaf": lambda data: _put(data, "<H", 10, LEAF),
    "another magic number": lambda data: _put(data, "<I", 16, 0xBEEFC0DF),
    "another format": lambda data: _put(data, "<I", 512 + 20, 2),
    "keys that may be repeated": lambda data: _put(data, "<H", MAIN + 4, 4),
    "no levels": lambda data: _put(data, "<H", MAIN + 6, 0),
    "three levels": lambda data: _put(data, "<H", MAIN + 6, 3),
    "no records": lambda data: _put(data, "<Q", MAIN + 32, 0),
    "fewer records": lambda data: _put(data, "<Q", MAIN + 32, 6),
    "a root after the last page": lambda data: _put(data, "<Q", MAIN + 48, ROOT // 512 - 1),
    "a last page after the file": lambda data: _put(data, "<Q", MAIN + 48, LAST + 1),
    "a root after the file": lambda data: _put(data, "<Q", MAIN + 40, LAST + 1),
    "the root is another page": lambda data: _put(data, "<Q", MAIN + 40, ROOT // 512 - 1),
    "the root has another number": lambda data: _put(data, "<Q", ROOT, 3),
    "the root is a leaf": lambda data: _put(data, "<H", ROOT + 10, LEAF),
    "the root has no nodes": lambda data: _put(data, "<H", ROOT + 12, 16),
    "the root ends in its header": lambda data: _put(data, "<H", ROOT + 12, 10),
    "the root has too many nodes": lambda data: _put(data, "<H", ROOT + 12, 16 + 2 * 200),
    "a node at an odd byte": lambda data: _put(data, "<H", ROOT + 18, 489),
    "the first node goes beyond its page": lambda data: _put(data, "<H", ROOT + 16, 506),
    "a later node goes beyond its page": lambda data: _put(data, "<H", ROOT + 18, 498) or _put(data, "<H", ROOT + 498 + 6, 8),
    "a node beyond its page": lambda data: _put(data, "<H", ROOT + 18, 5000),
    "a key of 4 bytes": lambda data: _put(data, "<H", _node(FILE, ROOT, 1) + 6, 4),
    "two pages begin alike": lambda data: _put(data, ">Q", _node(FILE, ROOT, 2) + 8, 2),
    "pages in another order": lambda data: _put(data, ">Q", _node(FILE, ROOT, 1) + 8, 5),
    "a page begins after all records": lambda data: _put(data, ">Q", _node(FILE, ROOT, 3) + 8, 8),
    **{
        f"a page begins at record 2^{k}": lambda data, k=k: _put(data, ">Q", _node(FILE, ROOT, 1) + 8, 2 + (1 << k))
        for k in (16, 32, 48)
    },
    "one page twice": lambda data: _put(data, "<H", _node(FILE, ROOT, 1), LEAVES[0] // 512),
    "a page beyond the file": lambda data: _put(data, "<H", _node(FILE, ROOT, 1), LAST + 1),
    "a page far beyond the file": lambda data: _put(data, "<H", _node(FILE, ROOT, 1) + 2, 1),
    "a page 2^32 beyond the file": lambda data: _put(data, "<H", _node(FILE, ROOT, 1) + 4, 1),
}
OF_RECORDS: dict[str, Callable[[bytearray], Any]] = {
    "one level": lambda data: _put(data, "<H", MAIN + 6, 1),
    "more records": lambda data: _put(data, "<Q", MAIN + 32, 9),
    "another record": lambda data: _put(data, ">Q", _node(FILE, LEAVES[0], 0) + 8, 1),
    "a small value is large": lambda data: _put(data, "<H", _node(FILE, LEAVES[0], 0) + 4, 1),
    "a large value is small": lambda data: _put(data, "<H", _node(FILE, LEAVES[1], 0) + 4, 0),
    "a key of 9 bytes": lambda data: _put(data, "<H", _node(FILE, LEAVES[0], 0) + 6, 9),
    "a value goes beyond its leaf": lambda data: _put(data, "<I", _node(FILE, LEAVES[0], 0), 21),
    "a value is a gigabyte": lambda data: _put(data, "<I", _node(FILE, LEAVES[1], 0), 1 << 30),
    "a value has a page more": lambda data: _put(data, "<I", _node(FILE, LEAVES[1], 0), 1024 - 16 + 1),
    "a value has a page less": lambda data: _put(data, "<I", _node(FILE, LEAVES[1], 0), 512 - 16),
    "a value in the second of its pages": lambda data: _put(data, "<Q", _node(FILE, LEAVES[1], 0) + 16, VALUES[0] // 512 + 1),
    "a value beyond the file": lambda data: _put(data, "<Q", _node(FILE, LEAVES[1], 0) + 16, LAST + 1),
    "a value that is not in memory": lambda data: _put(data, "<Q", _node(FILE, LEAVES[1], 0) + 16, NONE),
    "the page of a value has another number": lambda data: _put(data, "<Q", VALUES[0], 9),
    "the page of a value is a leaf": lambda data: _put(data, "<H", VALUES[0] + 10, LEAF),
    "the pages of a value are three": lambda data: _put(data, "<I", VALUES[0] + 12, 3),
}


def test_the_file_that_the_lies_are_told_about_is_whole() -> None:
    assert _read(FILE) == RECORDS and len(LEAVES) == 4 and len(VALUES) == 2


@pytest.mark.parametrize("lie", OF_BRANCHES)
def test_what_a_file_says_of_its_pages_is_checked_when_it_is_opened(lie: str) -> None:
    data = bytearray(FILE)
    OF_BRANCHES[lie](data)
    with pytest.raises(BROKEN):
        Tree(data)


@pytest.mark.parametrize("lie", OF_RECORDS)
def test_what_a_file_says_of_a_record_is_checked_when_it_is_read(lie: str) -> None:
    data = bytearray(FILE)
    OF_RECORDS[lie](data)
    Tree(data)
    with pytest.raises(BROKEN):
        _read(data)


def test_a_value_that_the_file_ends_in_is_refused() -> None:
    data = made([b"small", bytes(1008)])
    (value,), (leaf,) = _pages(data, LARGE), _pages(data, LEAF)
    moved = data[:value] + data[leaf : leaf + 512] + data[value : value + 1024]  # the leaf, and then the value
    for page, number in ((value, value // 512), (value + 512, value // 512 + 1)):
        struct.pack_into("<Q", moved, page, number)
    struct.pack_into("<Q", moved, _node(moved, value, 1) + 16, value // 512 + 1)
    struct.pack_into("<Q", moved, MAIN + 40, value // 512)
    assert _read(moved) == [b"small", bytes(1008)]
    struct.pack_into("<Q", moved, MAIN + 48, value // 512 + 1)
    tree = Tree(moved[:-512])
    assert tree.get(0) == b"small"
    with pytest.raises(BROKEN, match="record 1 goes beyond the end of the file"):
        tree.get(1)


@pytest.mark.parametrize("size", [256, 768, 1 << 17])
def test_pages_of_other_sizes_are_refused(size: int) -> None:
    with pytest.raises(BROKEN, match=f"it has {2 * size} bytes in pages of {size}"):
        Tree(made([], size))


def test_a_tree_of_more_than_sixteen_levels_is_refused() -> None:
    assert _read(made([b"a"], depth=16)) == [b"a"]
    with pytest.raises(BROKEN, match="depth 17"):
        Tree(made([b"a"], depth=17))
