"""A plan as files: what was written comes back, in slices, and its fingerprint is that of earlier versions."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata import kinds
from fastdata.arrays.source import ArraySource
from fastdata.errors import PrepError
from fastdata.images.mask_recipe import MaskRecipe
from fastdata.images.prepare import ImageRecipe
from fastdata.prepare.plan import Plan, Work, make_plan
from fastdata.prepare.plan_files import load_plan, save_plan
from fastdata.prepare.typed_json import decode, decode_rows, encode, encode_rows
from fastdata.sources.inputs import Source, SourceList
from fastdata.store.format import Labels


@dataclass(frozen=True)
class Thing:
    first: Any
    second: Any = ()
    third: dict[str, Any] = field(default_factory=dict)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.builds(Thing, inner, inner, st.dictionaries(st.text(), inner))
    ),
    max_leaves=12,
)


def _types(value: Any) -> Any:
    """A value with the types of all that is in it: 1 == True == 1.0, and a list is no tuple."""
    if isinstance(value, Thing):
        return Thing, [_types(one) for one in vars(value).values()]
    if isinstance(value, dict):
        return dict, [(_types(key), _types(one)) for key, one in value.items()]
    return (type(value), [_types(one) for one in value]) if isinstance(value, tuple | list) else (type(value), value)


@given(value=VALUES)
@settings(deadline=None)
def test_every_value_comes_back(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value and _types(back) == _types(value)


@pytest.mark.slow
@given(values=st.lists(st.builds(Thing, VALUES) | st.builds(Thing, VALUES, VALUES, st.just({"a": 0}))))
@settings(deadline=None)
def test_rows_come_back(values: list[Any]) -> None:
    back = decode_rows(json.loads(json.dumps(encode_rows(values))))
    assert [*back] == values and [*map(_types, back)] == [*map(_types, values)]


def test_only_dataclasses_are_made_again() -> None:
    with pytest.raises(TypeError, match=r"a plan cannot hold .*a PosixPath"):
        encode((Path("a"),))
    for name in ("os:system", "subprocess:Popen", "builtins:eval"):
        with pytest.raises(TypeError, match="no dataclass"):
            decode({"class": name, "fields": ["true"]})
    assert decode(encode(float("nan"))) != decode(encode(float("nan")))


def _work(count: int, out: Path) -> Work:
    sources = [
        ArraySource(f"{k}.npy", k % 7, k, archive=f"{k}.npz")
        if k % 3
        else Source(f"ä\udcff{k}.png", k % 7, k % 99, "missing" * (k % 5 == 0))
        for k in range(count)
    ]
    found = SourceList(out.parent, Labels("class", tuple("abcdefg")), sources)
    plan = make_plan(found, ImageRecipe(sizes=(32, None), mask=MaskRecipe(8, ((1, 2, 3),), ("x",))), files={"t.json": b"\0\xff"})
    (out / "work").mkdir(parents=True)
    return Work(kinds.find("images"), plan, out, (out.parent, out.parent / "masks"), {".txt": 2}, ("a note",))


def _check(before: Work, after: Work) -> None:
    old, new = before.plan, after.plan
    for name in ("options", "labels", "bounds", "amounts", "libraries", "fingerprint", "files", "columns", "fields"):
        assert getattr(old, name) == getattr(new, name), name
    assert [*old.sources] == [*new.sources] and [*map(type, old.sources)] == [*map(type, new.sources)]
    assert (before.roots, before.skipped, before.notes) == (after.roots, after.skipped, after.notes)


@pytest.mark.slow
def test_a_plan_of_many_inputs_is_read_in_slices(tmp_path: Path) -> None:
    work = _work(45_000, tmp_path / "o.fds")
    save_plan(work)
    loaded = load_plan(work.out)
    _check(work, loaded)
    slices = sorted(work.out.glob("work/sources-*.json"))
    assert len(slices) == 5 and max(path.stat().st_size for path in slices) < 1 << 20
    for path in slices[:-1]:
        path.unlink()
    last = load_plan(work.out).plan
    assert last.shard(last.num_shards - 1) == work.plan.shard(last.num_shards - 1)
    with pytest.raises(PrepError, match=r"sources-\w+-00000\.json is gone"):
        last.shard(0)


def test_written_twice_the_files_are_the_same(tmp_path: Path) -> None:
    work = _work(300, tmp_path / "o.fds")
    save_plan(work)
    before = {path: path.read_bytes() for path in work.out.rglob("*") if path.is_file()}
    save_plan(load_plan(work.out))
    assert {path: path.read_bytes() for path in work.out.rglob("*") if path.is_file()} == before


def _reference(plan: Plan) -> str:
    """The fingerprint as version 0.1 computed it: of one JSON of everything."""
    rows = [[v for n, v in vars(s).items() if n not in ("values", "parts", "companions") or v] for s in plan.sources]
    return xxhash.xxh3_128_hexdigest(json.dumps({**plan.body(), "sources": rows}, sort_keys=True).encode())


@pytest.mark.parametrize("count", [0, 1, 9_999, 10_000, 10_001, 30_000])
def test_the_fingerprint_is_that_of_one_json(count: int, tmp_path: Path) -> None:
    plan = _work(count, tmp_path / "o.fds").plan
    assert plan.fingerprint == _reference(plan)


@pytest.mark.parametrize("count", [1, 5, 200])
def test_there_are_never_more_shards_than_inputs(tmp_path: Path, count: int) -> None:
    for claimed in (1 << 20, 3 << 30, 1 << 50, 1 << 90):
        sources = [Source(f"{k:03d}.png", -1, claimed) for k in range(count)]
        plan = make_plan(SourceList(tmp_path, Labels("none"), sources), ImageRecipe())
        assert plan.num_shards <= count and all(first < end for first, end in pairwise(plan.bounds))
