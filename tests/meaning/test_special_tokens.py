"""What stands in a text is text, and comes back from its tokens, in documents and in captions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from corpora import byte_level, documents
from fastdata import LMDBDataset, merge, prep
from fastdata.errors import PrepError
from fastdata.store.info import store_facts
from fastdata.store.store import Store
from stores import write_files
from support import picture

END = "<|endoftext|>"
TEXTS = [f"Type {END} to stop.", "plain", f"{END}{END}", "[CLS] zwei é 日本"]


def trained(**options: Any) -> Tokenizer:
    return byte_level(["plain words to stop the type of this"] * 9, 300, [END, "[CLS]"], **options)


def prepared(root: Path, texts: list[str], how: str, name: str) -> list[Any]:
    """The tokens of each text, without the end of a document."""
    for k, text in enumerate(texts):
        write_files(root, {f"in/{k}.txt": text} | ({f"in/{k}.png": picture(k, 8, 9)} if how == "captions" else {}))
    if how == "captions":
        out = prep(root / "in", root / name, fields="caption=txt", tokenize=f"caption={root}/t.json", workers=1).out
        return [row.tolist() for row in LMDBDataset(out).columns["caption"]]
    options = {"train_bpe": 300} if how == "trained" else {"tokenizer": root / "t.json"}
    return [row.tolist()[:-1] for row in documents(prep(root / "in", root / name, workers=1, **options).out)]


@pytest.mark.parametrize("how", ["documents", "trained", "captions"])
def test_special_tokens_in_a_text_are_text_and_dropout_is_off(tmp_path: Path, how: str) -> None:
    trained(dropout=0.5).save(str(tmp_path / "t.json"))
    first, second = (prepared(tmp_path, TEXTS, how, name) for name in ("a.fds", "b.fds"))
    assert first == second
    if how != "trained":
        tokenizer = trained()
        special = {tokenizer.token_to_id(token) for token in (END, "[CLS]")}
        assert [tokenizer.decode(row, skip_special_tokens=False) for row in first] == TEXTS
        assert not any(special & {*row} for row in first)
    else:
        assert not any(0 in row for row in first), "the id of the end"


@pytest.mark.parametrize("how", ["documents", "captions"])
def test_a_text_is_no_sample_if_characters_of_it_would_vanish(tmp_path: Path, how: str) -> None:
    """A BPE without a token for unknown text leaves out what it does not know; blanks between words are no loss."""
    for suffix in ("", "</w>"):
        options: dict[str, Any] = {"end_of_word_suffix": suffix} if suffix else {}
        tokenizer = Tokenizer(models.BPE(**options))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=40, special_tokens=[END], show_progress=False, **options)
        tokenizer.train_from_iterator(["abc abc ab ba cab"], trainer)
        tokenizer.save(str(tmp_path / "t.json"))
        assert len(prepared(tmp_path, ["ab  cab", "c"], how, f"ok{len(suffix)}.fds")) == 2
        with pytest.raises(PrepError, match=r"unknown-character.* the tokenizer has no token for .*'d', 'é'"):
            prepared(tmp_path, ["ab é d", "dé"], how, f"no{len(suffix)}.fds")


UNKNOWN = [
    models.BPE(vocab={END: 0, "?": 1, "a": 2, "b": 3}, merges=[], unk_token="?"),
    models.WordLevel({END: 0, "?": 1, "a": 2, "b": 3}, unk_token="?"),
    models.WordPiece({END: 0, "?": 1, "a": 2, "b": 3}, unk_token="?"),
    models.Unigram([(END, -9.0), ("?", -9.0), ("a", -1.0), ("b", -1.0)], unk_id=1),
]


@pytest.mark.parametrize("model", UNKNOWN, ids=lambda model: type(model).__name__)
def test_the_share_of_unknown_tokens_is_told(model: models.Model, tmp_path: Path) -> None:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(tmp_path / "t.json"))
    files = {"some": ["abéa", "ab", "日"], "none": ["ab", "b"]}
    for name, texts in files.items():
        for k, text in enumerate(texts):
            write_files(tmp_path / name, {f"{k}.txt": text, f"{k}.png": picture(k, 8, 9)})
        as_text = prep(tmp_path / name, tmp_path / f"{name}-t.fds", tokenizer=tmp_path / "t.json", workers=1)
        told, count, unknown = f"c={tmp_path}/t.json", sum(map(len, texts)), 2 * (name == "some")
        as_captions = prep(tmp_path / name, tmp_path / f"{name}-c.fds", fields="c=txt", tokenize=told, workers=1)
        for made, of, total in ((as_text, "", count + len(texts)), (as_captions, " of c", count)):
            wanted = [f"{100 * unknown / total:.3g}% of the tokens{of} are unknown"] * bool(unknown)
            assert [note.partition(":")[0] for note in made.notes if "unknown" in note] == wanted
        assert store_facts(Store(Path(as_text.out), kind=None))["tokens"].get("unknown", 0) == unknown
    joined = store_facts(Store(merge([tmp_path / "some-t.fds", tmp_path / "none-t.fds"], tmp_path / "all.fds"), kind=None))
    assert joined["tokens"]["unknown"] == 2
