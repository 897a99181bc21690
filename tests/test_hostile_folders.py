"""Folders of odd things: pipes, sockets, devices and loops where files are expected. Nothing is opened that might never end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from archives import png, write_tar
from support import PREP, run

FOREIGN = Path(__file__).parent / "data" / "foreign"


def prepared(source: Path, *options: str | Path) -> Any:
    """The command, which a pipe would keep for ever."""
    return run(*PREP, source, source.with_name("o.fds"), "--workers", "1", *options, seconds=60)


def test_a_pipe_beside_the_inputs_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(png(0)[1])
    os.mkfifo(tmp_path / "in/index.json")
    done = prepared(tmp_path / "in")
    assert done.returncode == 0, done.stderr
    (tmp_path / "tars").mkdir()
    write_tar(tmp_path / "tars/x.tar", [("0.png", png(0)[1]), ("0.cls", b"0")])
    os.mkfifo(tmp_path / "tars/classes.json")
    done = prepared(tmp_path / "tars/x.tar")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("option", ["--coco", "--yolo"])
def test_annotations_that_are_a_pipe_are_an_error(tmp_path: Path, option: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(png(0)[1])
    (tmp_path / "labels").mkdir()
    os.mkfifo(tmp_path / f"labels/a.{'json' if option == '--coco' else 'txt'}")
    done = prepared(tmp_path / "in", option, tmp_path / ("labels/a.json" if option == "--coco" else "labels"))
    assert done.returncode == 2 and "it is no ordinary file" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_dataset_whose_file_is_a_pipe_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(FOREIGN / "mds-jpeg", tmp_path / "x")
    file = tmp_path / "x/shard.00000.mds"
    file.unlink()
    os.mkfifo(file)
    done = prepared(tmp_path / "x")
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
