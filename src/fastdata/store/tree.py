"""The records of an LMDB file, found without LMDB, which follows what a damaged page says until the process dies.

The branch pages are read and checked when a file is opened: they say which leaf has which records. A record is then found through
one node of its leaf, and whatever that says is checked before it is used. So a wrong byte is an error or another value, never an
address outside of the file.

The format is version 1 of LMDB's data (docs/format.md). Each page begins with a header of 16 bytes. A page of nodes goes on with
the place of each node in it, uint16. A node has a header of 8 bytes, the key, and the value. A large value lies in pages of its
own, after the header of the first; its node has the number of this page.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from struct import Struct
from struct import error as OutOfBounds
from typing import Any

import numpy as np

__all__ = ["BROKEN", "Tree"]

Array = np.ndarray[Any, np.dtype[Any]]

BROKEN = (ValueError, OutOfBounds, OverflowError)  # what a Tree raises if its file is damaged, or is no such tree
HEADER = 16  # bytes of a page's header
INTRO = 16  # bytes of a node's header and key
KEY = 8
PLAIN, POINTER = KEY << 16, KEY << 16 | 1  # nodes with a value, and with the number of its first page
BRANCH, LARGE, META = 1, 4, 8  # kinds of pages
MAGIC, FORMAT = 0xBEEFC0DE, 1
PAGE_SIZES = {1 << k for k in range(9, 17)}
DEEPEST = 16

_header = Struct("<Q2xHI").unpack_from  # number, kind, and the pages of a large value
_meta = Struct("<II").unpack_from  # magic, format
_free = Struct("<I").unpack_from  # bytes of a page
_tree = Struct("<HH3Q2Q").unpack_from  # flags, depth, numbers of pages, records, root
_last = Struct("<QQ").unpack_from  # the last page, and the number of the transaction
_node = Struct("<II8s").unpack_from  # bytes of the value, whether it is large and bytes of the key, key
_short = Struct("<H").unpack_from
_long = Struct("<Q").unpack_from


class Tree:
    """The records of a mapped file by number: their keys are 0, 1, 2 and so on, as 8 bytes big-endian.

    Attributes:
        count: how many there are.

    Raises:
        BROKEN: the file is damaged, or no such tree. All methods may raise it.
    """

    def __init__(self, mapped: mmap.mmap) -> None:
        self._view = memoryview(mapped)
        self._page_bytes, depth, self.count, root = self._read_meta()
        self._most = (self._page_bytes - HEADER) // 2 - 2 - INTRO  # the largest value that lies in a leaf
        pages, firsts = self._find_leaves(root, depth) if self.count else (np.zeros(1, np.int64),) * 2
        self._pages: list[int] = (pages * self._page_bytes).tolist()
        self._firsts: list[int] = firsts.tolist()

    def get(self, number: int) -> memoryview:
        """Return the bytes of a record, 0 <= number < count. They stay mapped for as long as they are held."""
        leaf = bisect_right(self._firsts, number) - 1
        page, view = self._pages[leaf], self._view
        (place,) = _short(view, page + HEADER + 2 * (number - self._firsts[leaf]))
        node = page + place
        size, flags, key = _node(view, node)
        if key != number.to_bytes(8, "big") or flags != (PLAIN if size <= self._most else POINTER):
            raise ValueError(f"the leaf at byte {page} does not lead to record {number}")
        start = node + INTRO
        if size <= self._most:
            if place + INTRO + size > self._page_bytes:
                raise ValueError(f"record {number} goes beyond its leaf at byte {page}")
            return view[start : start + size]
        (first,) = _long(view, start)
        start = first * self._page_bytes + HEADER
        if _header(view, start - HEADER) != (first, LARGE, (HEADER + size - 1) // self._page_bytes + 1):
            raise ValueError(f"the leaf at byte {page} does not lead to the {size} bytes of record {number}")
        if start + size > len(view):
            raise ValueError(f"record {number} goes beyond the end of the file")
        return view[start : start + size]

    def places(self) -> Array:
        """Return where each record begins in the file, and its length; int64 [count, 2]."""
        base = np.frombuffer(self._view, np.uint8).ctypes.data
        records = [np.frombuffer(self.get(k), np.uint8) for k in range(self.count)]
        return np.array([(record.ctypes.data - base, len(record)) for record in records], np.int64).reshape(-1, 2)

    def _read_meta(self) -> tuple[int, int, int, int]:
        """Return the bytes of a page, and the depth, the records and the root of the tree that was committed last."""
        view = self._view
        (page_bytes,) = _free(view, HEADER + 24)
        if page_bytes not in PAGE_SIZES or len(view) % page_bytes:
            raise ValueError(f"it has {len(view)} bytes in pages of {page_bytes}")
        found = []
        for number, page in enumerate((0, page_bytes)):
            if _header(view, page)[:2] != (number, META) or _meta(view, page + HEADER) != (MAGIC, FORMAT):
                raise ValueError(f"page {number} is not one of LMDB's")
            flags, depth, *_, records, root = _tree(view, page + HEADER + 24 + 48 + 4)
            last, transaction = _last(view, page + HEADER + 24 + 96)
            found.append((transaction, flags, depth, records, root, last))
        _, flags, depth, records, root, last = max(found)
        if flags or depth > DEEPEST or (records > 0) != (depth > 0) or (records and not root <= last < len(view) // page_bytes):
            raise ValueError(f"it describes a tree of {records} records, depth {depth} and flags {flags}, up to page {last}")
        return page_bytes, depth, records, root

    def _find_leaves(self, root: int, depth: int) -> tuple[Array, Array]:
        """Return the numbers of the leaves, in order, and the first record of each; int64."""
        pages, firsts = np.array([root], np.int64), np.zeros(1, np.int64)
        for _ in range(depth - 1):
            below = [self._read_branch(page, first) for page, first in zip(pages.tolist(), firsts.tolist(), strict=True)]
            pages, firsts = (np.concatenate(part) for part in zip(*below, strict=True))
            if (np.diff(firsts) <= 0).any() or firsts[-1] >= self.count:
                raise ValueError("the records of its pages overlap")
        if len(np.unique(pages)) != len(pages) or int(pages.max()) >= len(self._view) // self._page_bytes:
            raise ValueError("its leaves are not all different pages of the file")
        return pages, firsts

    def _read_branch(self, page: int, first: int) -> tuple[Array, Array]:
        """Return the pages below a page, and the first record of each."""
        begin, size = page * self._page_bytes, self._page_bytes
        number, kind, bounds = _header(self._view, begin)
        count = ((bounds & 0xFFFF) - HEADER) // 2  # where the nodes' places end
        if (number, kind) != (page, BRANCH) or not 0 < count <= size // INTRO:
            raise ValueError(f"page {page} is not a branch of the tree")
        words = np.frombuffer(self._view, "<u2", size // 2, begin)
        places = words[HEADER // 2 :][:count].astype(np.int64)
        if (places % 2).any() or (places[1:] > size - INTRO).any() or places[0] > size - (INTRO - KEY):
            raise ValueError(f"page {page} leads outside of itself")
        low, middle, high, key_bytes = (words[places // 2 + k].astype(np.int64) for k in range(4))
        if (key_bytes[1:] != KEY).any():
            raise ValueError(f"page {page} has other keys")
        keys = [words[places[1:] // 2 + 4 + k].byteswap().astype(np.int64) for k in range(4)]
        later = (keys[0] << 48) + (keys[1] << 32) + (keys[2] << 16) + keys[3]
        return low + (middle << 16) + (high << 32), np.append(first, later)
