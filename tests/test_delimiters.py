"""What stands between the columns of a CSV that is a table."""

from __future__ import annotations

import pytest

from fastdata.errors import PrepError
from test_tables import make
from test_tables_more import csv, from_csv


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
    with pytest.raises(PrepError, match=r"row 2 has 2 columns, the header has 3"):
        make(csv("a;b;y\n1;2;3\n4;5\n"))


def test_numbers_with_a_comma_are_no_names() -> None:
    with pytest.raises(PrepError, match=r"column 'a' holds numbers with a comma, such as '0,5': write them with a point"):
        make(csv("a;y\n0,5;1\n1,5;0\n"))
    assert from_csv("a;y\n0,5;1\n1,5;0\n", category="a").categories == {"a": ["0,5", "1,5"]}
