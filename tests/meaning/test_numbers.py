"""Numbers of tables are the numbers that were written, or the type says that they are text: in columns of images, and in tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import LMDBDataset, TableDataset, prep
from fastdata.errors import PrepError, StoreError
from support import encode, picture

NUMBERS: list[tuple[list[str], str, str]] = [  # as they are written; the type in a CSV, and in JSONL
    (["1", "-2"], "int64", "int64"),
    (["0.5", "0.1"], "float32", "float32"),
    (["1", "0.5"], "float32", "float32"),
    (["1700000000.25", "1700000001.75"], "float64", "float64"),  # equal in float32
    (["0.1", "0.10000000001"], "float64", "float64"),
    (["16777217", "0.5"], "float64", "float64"),
    (["16777216", "0.5"], "float32", "float32"),
    (["1e30", "0.5"], "float64", "float64"),
    (["9007199254740993", "0.5"], "text", "json"),  # no float holds it
    (["1e400", "1"], "text", ""),
    (["00501", "501"], "text", ""),  # JSON has no such numbers
    (["-007", "1"], "text", ""),
    (["[1700000000.25]", "[0.5]"], "text", "float64"),
]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_columns_of_images(tmp_path: Path, ending: str) -> None:
    for k in range(2):
        (tmp_path / f"{k}.png").write_bytes(encode(picture(k, 8, 9), ".png"))
    names = [f"c{k}" for k in range(len(NUMBERS))]
    chosen = [(name, texts, types[ending == "jsonl"]) for name, (texts, *types) in zip(names, NUMBERS, strict=True)]
    chosen = [one for one in chosen if one[2]]
    table = tmp_path / f"t.{ending}"
    if ending == "csv":
        rows = [["path", *(name for name, _, _ in chosen)]]
        rows += [[f"{k}.png", *(texts[k] for _, texts, _ in chosen)] for k in range(2)]
        table.write_text("".join(",".join(row) + "\n" for row in rows))
    else:
        rows = [[f'"path": "{k}.png"', *(f'"{name}": {texts[k]}' for name, texts, _ in chosen)] for k in range(2)]
        table.write_text("".join(f"{{{', '.join(row)}}}\n" for row in rows))
    out = prep(table, tmp_path / "o.fds", fields=[name for name, _, _ in chosen], label_column="none", workers=1).out
    columns = LMDBDataset(out).columns
    for name, texts, type in chosen:
        wanted: list[Any] = texts if type == "text" else [json.loads(text) for text in texts]
        found = columns[name]
        if type in ("text", "json"):
            assert list(found) == wanted, texts
        else:
            assert found.dtype == type, texts
            np.testing.assert_allclose(found, wanted, rtol=1e-7 if type == "float32" else 0, err_msg=str(texts))


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
