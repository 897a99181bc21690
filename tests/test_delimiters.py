"""What stands between the columns of a CSV that is a table."""

from __future__ import annotations

import pytest

from fastdata.errors import StoreError
from test_tables import csv, from_csv, make


@pytest.mark.slow
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_csv_of_a_table_may_have_commas_semicolons_or_tabs(delimiter: str) -> None:
    text = 'age,city,note,y\n39,Rome,"a, b; c",1\n40,Oslo,"d",0\n'.replace(",", delimiter)
    dataset = from_csv(text)
    assert list(dataset.columns) == ["age", "city", "note"] and dataset.targets.tolist() == [1, 0]
    text = "age;city, country;y\n39;Rome, Italy;1\n40;Oslo, Norway;0\n"
    assert list(from_csv(text).columns) == ["age", "city, country"]


def test_what_is_in_names_does_not_cut_them() -> None:
    assert list(from_csv("a;b,c,y\n1,2,3\n4,5,6\n").columns) == ["a;b", "c"]
    with pytest.raises(StoreError, match=r"Row #3: Expected 3 columns, got 2: 4;5"):
        make(csv("a;b;y\n1;2;3\n4;5\n"))


@pytest.mark.parametrize("cells", [("0,5", "1,5"), ("1,234,567", "2,000"), ("1,234.5", "-2,000,000.25")], ids=str)
def test_numbers_with_a_comma_are_no_names(cells: tuple[str, str]) -> None:
    text = f"a;y\n{cells[0]};1\n{cells[1]};0\n"
    message = f"column 'a' holds numbers with a comma, such as '{cells[0]}', which must be written as 1.5 or 1234567"
    with pytest.raises(StoreError, match=message):
        make(csv(text))
    assert from_csv(text, category="a").categories == {"a": sorted(cells)}


def test_a_number_with_two_signs_is_none() -> None:
    with pytest.raises(StoreError, match=r"column 'a' holds numbers, such as '\+1', and other text, such as '\+-1'"):
        make(csv("a,y\n+1,1\n+-1,0\n"))
