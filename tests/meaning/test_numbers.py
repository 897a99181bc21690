"""Numbers of tables are the numbers that were written, or the type says that they are text: in columns of images, and in tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdata import TableDataset, prep
from fastdata.errors import PrepError, StoreError
from support import encode, picture


@pytest.mark.parametrize(
    ("ending", "written"), [("jsonl", '{"path": "0.png", "x": -1e400}\n'), ("csv", 'path,x\n0.png,"[1, 1e400]"\n')]
)
def test_a_number_too_large_for_a_float_is_no_infinity(ending: str, written: str, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(encode(picture(0, 8, 9), ".png"))
    (tmp_path / f"t.{ending}").write_text(written)
    with pytest.raises(PrepError, match="1e400 is too large for a float"):
        prep(tmp_path / f"t.{ending}", tmp_path / "o.fds", fields=["x:json"], label_column="none")


@pytest.mark.parametrize("lost", ["9007199254740993", "-9007199254740993", "1e400", "-1e999"])
@pytest.mark.parametrize("target", [None, "x"])
def test_tables_refuse_numbers_that_no_float_holds(tmp_path: Path, lost: str, target: str | None) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"x,y\n{lost},1\n2.5,2\n")
    with pytest.raises(StoreError, match=f"holds numbers that no float holds, such as '{lost}'.*category='x'"):
        TableDataset(path, target=target)
    assert TableDataset(path, category="x").categories == {"x": sorted([lost, "2.5"])}
    path.write_text("x,y\n9007199254740992,1\n2.5,2\n1e300,0\ninf,0\n")
    assert TableDataset(path).column("x").tolist() == [9007199254740992, 2.5, 1e300, float("inf")]
