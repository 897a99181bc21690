"""TokenDataset and its batches against plain slices of numpy."""

from __future__ import annotations

import json
import pickle
import shutil
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import fastdata
from corpora import documents, store
from fastdata import Loader, NextToken, RAMDataset, TokenDataset
from fastdata.errors import FormatError, StoreError
from stores import folder
from stores import store as image_store
from support import Array, documents_of, signed

NONE = 65_535


def ready(parts: list[Array], **options: Any) -> Path:
    """A store of tokens that are given, one file each."""
    root = folder()
    for k, part in enumerate(parts):
        np.asarray(part, "<u2").tofile(root / f"{k:03d}.bin")
    fastdata.prep(root, root.parent / f"{root.name}.fds", workers=1, **options)
    return root.parent / f"{root.name}.fds"


@cache
def wide() -> Path:
    """Nine million tokens in three shards of several records each, 1,000 and more a document."""
    rng = np.random.default_rng(0)
    parts = [rng.integers(1, 60_000, 3_000_000).astype(np.uint16) for _ in range(3)]
    for part in parts:
        part[rng.integers(0, len(part), 2000)] = 0
    return ready(parts, end_token="0")


def stream_of(dataset: TokenDataset) -> Array:
    """The tokens of a dataset's documents, one after another."""
    whole = documents(dataset.path)
    return np.concatenate(whole if dataset._chosen is None else [whole[k] for k in documents_of(dataset)])


# ------------------------------------------------------------------------------------------------------ modes by slices


def test_every_place_is_drawn_equally_often() -> None:
    """40 tokens have 8 rows of 32 inputs and a target; nanoGPT draws from as many."""
    dataset = TokenDataset(ready([np.arange(40)]), 32)
    counts = Counter(int(dataset.locate(np.array([0]), seed=s, epoch=0)[0, 1]) for s in range(4000))
    assert sorted(counts) == list(range(8)) and max(abs(n - 500) for n in counts.values()) < 5 * np.sqrt(500)
    torch.manual_seed(0)
    assert {int(dataset[0][0]) for _ in range(200)} == set(range(8))
    with pytest.raises(IndexError, match="length is 1"):
        dataset[1]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    block=st.integers(1, 15),
    ended=st.booleans(),
)
@pytest.mark.slow
def test_documents_as_plain_loops_have_them(lengths: list[int], block: int, ended: bool) -> None:
    """join: rows of the stream; mask: which document each token is of; align: rows of each document; document: its beginning."""
    rng = np.random.default_rng(len(lengths))
    parts = [np.append(rng.integers(1, 9, n - 1), 0 if ended else 5) for n in lengths]
    path = ready([np.concatenate(parts)], end_token="0") if ended else ready(parts)
    assert [d.tolist() for d in documents(path)] == [p.tolist() for p in parts]
    everything, numbers = np.concatenate(parts), np.repeat(np.arange(len(parts)), lengths)

    def padded(row: Array) -> list[int]:
        return [*row.tolist(), *[NONE] * (block + 1 - len(row))]

    aligned = [padded(part[k : k + block + 1]) for part in parts for k in range(0, len(part) - 1, block)]
    if aligned:
        dataset = TokenDataset(path, block, mode="sequential", documents="align")
        assert [dataset[k].tolist() for k in range(len(dataset))] == aligned
        drawn = TokenDataset(path, block, documents="align")
        assert all(
            row.tolist() in aligned
            for row in drawn.gather(drawn.locate(np.arange(30) % len(drawn), seed=1, epoch=0, repeats=np.arange(30) // len(drawn)))
        )
    dataset = TokenDataset(path, block, mode="document")
    assert [(row.tolist(), int(n)) for row, n in dataset] == [(padded(p[: block + 1]), min(len(p), block + 1)) for p in parts]
    if len(everything) > 1:
        joined, dataset = (TokenDataset(path, block, mode="sequential", documents=how) for how in ("join", "mask"))
        assert len(joined) == len(dataset) == -(-(len(everything) - 1) // block)
        for k, (row, which) in enumerate(dataset):
            expected = numbers[k * block : k * block + block + 1]
            assert which[: len(expected)].tolist() == (expected - expected[0]).tolist()
            assert row.tolist() == joined[k].tolist() == padded(everything[k * block : k * block + block + 1])


@pytest.mark.slow
def test_next_token_leaves_out_what_is_no_target() -> None:
    tokens = torch.tensor([[5, 0, 7, NONE], [NONE - 1, 2, 3, 4]]).to(torch.uint16)
    inputs, targets = NextToken()(tokens)
    assert inputs.tolist() == [[5, 0, 7], [NONE - 1, 2, 3]] and targets.tolist() == [[0, 7, -100], [2, 3, 4]]
    assert inputs.dtype == targets.dtype == torch.int64 and inputs.is_contiguous() and targets.is_contiguous()
    _, targets = NextToken(ignore_index=-1)(tokens, torch.tensor([[0, 0, 1, 1], [0, 1, 2, 3]]).to(torch.uint16))
    assert targets.tolist() == [[0, -1, -1], [-1, -1, -1]]
    wide = torch.tensor([[1, 70_000, 0xFFFFFFFF]]).to(torch.uint32)
    assert [t.tolist() for t in NextToken()(wide)] == [[[1, 70_000]], [[70_000, -100]]]
    with pytest.raises(TypeError, match="takes uint16 or uint32"):
        NextToken()(torch.zeros(2, 3, dtype=torch.int64))


# ------------------------------------------------------------------------------------------- memory, runs, split, ids


@pytest.mark.parametrize("path", [store, wide])
def test_the_stream_of_a_split_is_its_documents_one_after_another(path: Any) -> None:
    whole, parts = documents(path()), TokenDataset(path(), 33, mode="sequential").split(0.7, seed=4)
    assert [part.num_documents for part in parts] == [round(0.7 * len(whole)), len(whole) - round(0.7 * len(whole))]
    assert sorted(np.concatenate([documents_of(part) for part in parts])) == list(range(len(whole)))
    assert not np.array_equal(documents_of(TokenDataset(path(), 33).split(0.7, seed=5)[0]), documents_of(parts[0]))
    for part in parts:
        rows = part.gather(part.locate(np.arange(len(part)), seed=0, epoch=0)).numpy()
        stream = stream_of(part)
        assert np.array_equal(rows[:, 1:].reshape(-1)[: len(stream) - 1], stream[1:])
        nested, rest = part.split(0.5, seed=2)
        assert set(documents_of(nested)) | set(documents_of(rest)) == set(documents_of(part))


def test_a_store_that_uses_the_largest_id_comes_as_uint32() -> None:
    part = np.array([1, NONE, 3, 0, 2])
    dataset = TokenDataset(ready([part]), 3, mode="sequential")
    assert [row.tolist() for row in dataset] == [[1, NONE, 3, 0], [0, 2, 0xFFFFFFFF, 0xFFFFFFFF]]
    assert dataset[0].dtype == torch.uint32
    assert NextToken()(torch.stack([dataset[1]]))[1].tolist() == [[2, -100, -100]]
    assert TokenDataset(ready([part - (part == NONE)]), 3)[0].dtype == torch.uint16


# ------------------------------------------------------------------------------------------------------------- Loader


def memory_of(batches: list[torch.Tensor]) -> set[int]:
    return {batch.untyped_storage().data_ptr() for batch in batches}


@pytest.mark.parametrize("documents", ["join", "mask"])
def test_a_batch_changed_in_place_leaves_its_neighbours_alone(documents: str) -> None:
    """Several are copied at once, and lie in one piece of memory."""
    with Loader(TokenDataset(wide(), 1000, documents=documents), 8) as loader:
        batches = list(islice(loader, 6))
    for tensors in [batches] if documents == "join" else zip(*batches, strict=True):
        assert len(memory_of(list(tensors))) == 1
        before = [tensor.clone() for tensor in tensors]
        tensors[2].fill_(7)
        assert all(a.equal(b) for k, (a, b) in enumerate(zip(tensors, before, strict=True)) if k != 2)
        assert all(tensor.is_contiguous() and len(tensor) == 8 for tensor in tensors)


@pytest.mark.parametrize(
    ("block", "in_memory", "part"),
    [(1000, False, None), (1000, False, 1), (20_000, True, None), (400_000, True, None), (2_500_000, False, None)],
)
def test_rows_of_many_batches_are_slices_also_across_records_and_shards(block: int, in_memory: bool, part: int | None) -> None:
    dataset = (RAMDataset if in_memory else TokenDataset)(wide(), block_size=block)
    dataset = dataset if part is None else dataset.split(0.5, seed=1)[part]
    stream = stream_of(dataset)
    with Loader(dataset, 3, seed=4) as loader:
        batches = list(islice(loader, 3 if block > 100_000 else 60))
    ids = np.concatenate([batch.ids[: batch.valid] for batch in batches])
    assert len(memory_of(batches)) == 1 or block > 1000
    located = dataset.locate(ids, seed=4, epoch=0)
    assert np.array_equal(
        np.concatenate([b[: b.valid] for b in batches]), np.stack([stream[start : start + block + 1] for start in located[:, 1]])
    )
    ends = [[-1, start, block + 1] for start in (524_280 - 3, len(stream) - block - 1, 0)]
    assert all(
        np.array_equal(a, stream[b : b + block + 1]) for a, (_, b, _) in zip(dataset.gather(np.array(ends)), ends, strict=True)
    )


@pytest.mark.slow
def test_torch_s_own_dataloader_pickles_and_forks() -> None:
    """Mapped files are mapped anew in each process."""
    dataset = TokenDataset(wide(), 100, mode="sequential")
    expected = [row.tolist() for row in dataset.gather(dataset.locate(np.arange(40), seed=0, epoch=0))]
    assert len(pickle.dumps(dataset)) < 20_000
    sub = torch.utils.data.Subset(dataset, range(40))
    found = [row.tolist() for batch in DataLoader(sub, 8, num_workers=2) for row in batch]
    assert found == expected
    assert dataset[39].tolist() == pickle.loads(pickle.dumps(dataset))[39].tolist() == expected[39], "after others forked"


# -------------------------------------------------------------------------------------------------------------- errors


def test_wrong_arguments() -> None:
    wrong: dict[str, dict[str, Any]] = {
        "must be one of random, sequential, document": {"mode": "all"},
        "must be one of join, mask, align": {"documents": "cut"},
        "leave out documents=": {"mode": "document", "documents": "align"},
        "must be positive": {"block_size": 0},
        "make no row with block_size": {"block_size": 40_000_000},
    }
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            TokenDataset(store(), **{"block_size": 8, **options})
    with pytest.raises(ValueError, match="leaves one part empty"):
        TokenDataset(ready([np.arange(100)]), 8).split(0.5, seed=0)
    with pytest.raises(StoreError, match=r"holds images, not tokens; open it with fastdata\.open"):
        TokenDataset(image_store(), 8)


def test_a_sampler_s_indices_are_checked_and_negative_ones_count_from_the_end() -> None:
    for mode in ("random", "sequential", "document"):
        n = len(dataset := TokenDataset(wide(), 100, mode=mode))
        one, other = (dataset.locate(np.array([k]), seed=0, epoch=0).tolist() for k in (n - 2, -2))
        assert one == other
        for wrong in (n, -n - 1):
            with pytest.raises(IndexError, match="but the dataset has"):
                dataset.locate(np.array([0, wrong]), seed=0, epoch=0)


def test_documents_without_tokens_make_rows_without_tokens() -> None:
    """Of a store all of whose documents are empty there is no memory at all."""
    import tokenizers

    root = folder()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    tokenizer.normalizer = tokenizers.normalizers.Replace("b", "")
    tokenizer.save(str(root / "t.json"))
    (root / "b.txt").write_text("b\nbb\nb\n")
    out = fastdata.prep(
        root / "b.txt", root / "o.fds", tokenizer=root / "t.json", end_token="none", split_lines=True, workers=1
    ).out
    row, length = TokenDataset(out, 4, mode="document")[1]
    assert row.tolist() == [NONE] * 5 and int(length) == 0


def test_a_table_that_does_not_fit_the_tokens_is_damage(tmp_path: Path) -> None:
    """Also where its checksum was made to fit: a wrong place would be read from anywhere in memory."""
    out = shutil.copytree(store(), tmp_path / "o.fds")
    table = np.load(out / "samples.npy")
    table["tokens"][-1] += 1
    np.save(out / "samples.npy", table)
    with pytest.raises(FormatError, match="does not fit the tokens"):
        TokenDataset(signed(out), 8)
    body = json.loads((out / "manifest.json").read_text())
    body["sections"]["tokens"]["counts"][0] += 1
    (out / "manifest.json").write_text(json.dumps(body))
    with pytest.raises(FormatError, match="has records of other sizes than its manifest says"):
        TokenDataset(out, 8)[0]
