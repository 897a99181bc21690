"""Large images: one at a time, and an end of the run in place of a reject where this machine has no memory for one."""

from __future__ import annotations

import json
import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from fastdata import LMDBDataset, prep
from fastdata.errors import MachineError, StoreError
from fastdata.system.machine import room
from support import encode, picture
from test_image_files import png_chunk


def test_large_work_waits_for_its_turn_and_small_work_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    waiting = threading.Event()

    def second() -> None:
        with room(2, share=1, waiting=waiting.set):
            pass

    thread = threading.Thread(target=second)
    with room(2, share=1):
        with room(2, share=2, waiting=lambda: pytest.fail("small work waits")):
            thread.start()
        assert waiting.wait(5)
        thread.join(0.2)
        assert thread.is_alive()
    thread.join(5)
    assert not thread.is_alive()


def test_work_for_which_there_is_no_memory_is_an_error_that_says_how_much() -> None:
    with (
        pytest.raises(MachineError, match=r"^1,000,000.0 GB of memory are needed, but [0-9,.]+ GB are free$"),
        room(10**15, share=1),
    ):
        pass


def _declared(side: int) -> bytes:
    """A PNG whose header says so many pixels."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + png_chunk(b"IDAT", zlib.compress(b"0")) + png_chunk(b"IEND", b"")


def test_an_image_that_exceeds_this_machine_ends_the_run_and_is_no_reject(tmp_path: Path) -> None:
    """Otherwise a store would depend on the machine that made it."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.png").write_bytes(encode(picture(0, 40, 40), ".png"))
    (tmp_path / "in" / "b.png").write_bytes(_declared(10**6))
    with pytest.raises(StoreError) as caught:
        prep(tmp_path / "in", tmp_path / "o.fds", max_pixels=10**12, workers=2)
    assert "b.png: 20,000.0 GB of memory are needed, but " in str(caught.value)
    assert "run again with fewer workers or on a machine with more memory, or with overwrite and a smaller max_pixels" in str(
        caught.value
    )
    assert not (tmp_path / "o.fds" / "manifest.json").exists()
    done = prep(tmp_path / "in", tmp_path / "o.fds", overwrite=True)  # the default rejects it by its header
    assert (done.kept, done.rejected) == (1, {"too-large": 1})


def test_an_image_that_would_become_too_large_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    strip = picture(0, 3000, 1)
    (tmp_path / "in" / "a.png").write_bytes(encode(strip, ".png"))
    (tmp_path / "in" / "b.png").write_bytes(encode(picture(1, 10, 10), ".png"))
    options = {"size": 16, "codec": "png", "workers": 1}
    done = prep(tmp_path / "in", tmp_path / "o.fds", max_pixels=16 * 48_000 - 1, **options)
    (row,) = map(json.loads, (done.out / "rejects.jsonl").read_text().splitlines())
    assert (row["name"], row["reason"]) == ("a.png", "too-large")
    assert row["detail"].startswith("--size would make the image 16 x 48000 pixels, more than --max-pixels 767999")
    done = prep(tmp_path / "in", tmp_path / "p.fds", max_pixels=16 * 48_000, **options)
    assert done.kept == 2
    dataset = LMDBDataset(done.out)
    assert dataset[0][0].shape == (3, 48_000, 16)
    np.testing.assert_allclose(dataset[0][0][:, ::16].float().mean(), strip.mean(), atol=3)
