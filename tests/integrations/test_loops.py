"""Loops of others, rewritten in a few lines each (loops/): with fastdata in place of their data path, the numbers are the same."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fastdata
from support import picture, run_ranks

LOOPS = Path(__file__).with_name("loops")
sys.path.append(str(LOOPS))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """20 images of three classes with captions, and 2,000 tokens; each as files, and as a store."""
    root = tmp_path_factory.mktemp("loops")
    for k in range(20):
        path = root / "images" / f"class{k % 3}" / f"{k:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(k, 30 + k, 40)).save(path)
        path.with_suffix(".txt").write_text(f"number {k}" * (1 + k % 2))
    options = {"codec": "png", "fields": ["caption=txt"], "tokenize": ["caption=bytes:12"]}
    fastdata.prep(root / "images", root / "images.fds", workers=1, **options)
    for split, count in (("train", 1000), ("val", 400)):
        np.random.default_rng(count).integers(0, 50, count).astype("<u2").tofile(root / f"{split}.bin")
        fastdata.prep(root / f"{split}.bin", root / f"{split}.fds", workers=1)
    return root


@pytest.mark.parametrize("name", ["nanogpt", "classification", "timm_train", "dino", "open_clip"])
def test_a_loop_has_the_same_numbers(name, root):
    main = import_module(name).main
    more = (50,) if name == "nanogpt" else ()
    original, ours = (main(path, root, *more) for path in ("original", "fastdata"))
    assert len(original) > 5 and len(set(original)) > 5
    np.testing.assert_allclose(ours, original, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_loop_of_imagenet_has_the_same_numbers_and_resumes(ranks, root, tmp_path):
    def seen(path, epochs, *resume):
        out = tmp_path / f"{path}-{epochs}-{len(resume)}"
        out.mkdir()
        assert run_ranks(ranks, sys.executable, LOOPS / "imagenet.py", path, root, out, epochs, *resume) == 0
        return out, [json.loads((out / f"{rank}.json").read_text()) for rank in range(ranks)]

    _, original = seen("original", 4)
    _, ours = seen("fastdata", 4)
    np.testing.assert_allclose(ours, original, rtol=1e-4, atol=1e-6)
    stopped, _ = seen("fastdata", 2)
    _, resumed = seen("fastdata", 4, stopped / "checkpoint.pth.tar")
    np.testing.assert_allclose(resumed, np.array(original)[:, -len(resumed[0]) :], rtol=1e-4, atol=1e-6)
