"""The tests of clusters: collected only in the environment of `make test-scale`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

import fastdata
from support import encode, picture, tree

if find_spec("ray") is None:
    collect_ignore_glob = ["test_*.py"]

SIZES = (256, 180, 96)


@pytest.fixture(scope="session")
def source(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 images, then 24 larger ones, which make the last shards slow, and a damaged one."""
    root = tmp_path_factory.mktemp("scale") / "in"
    root.mkdir()
    for folder in sorted(large.iterdir()):
        (root / folder.name).symlink_to(folder)
    (root / "z").mkdir()
    data = encode(picture(7, 2000, 3000))
    for k in range(24):
        (root / f"z/{k:02d}.jpg").write_bytes(data + bytes([k]))
    (root / "class0_damaged").mkdir()
    (root / "class0_damaged/x.jpg").write_bytes(data[: len(data) // 2])
    return root


@pytest.fixture(scope="session")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes | None]:
    """The store that one process makes of `source`."""
    out = tmp_path_factory.mktemp("scale") / "local.fds"
    summary = fastdata.prep(source, out, size=SIZES)
    assert (summary.kept, summary.rejected) == (344, {"truncated": 1})
    return tree(out)


Compare = Callable[[Path], None]


@pytest.fixture
def compare(expected: dict[str, bytes | None]) -> Compare:
    """Asserts that a store has the bytes of the one that was made by one process."""

    def check(out: Path) -> None:
        found = tree(out)
        assert sorted(found) == sorted(expected)
        assert [name for name in found if found[name] != expected[name]] == []

    return check
