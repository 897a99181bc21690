"""The command line: options, exit codes, messages, and what it costs to start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stores
from fastdata import __version__
from fastdata.cli import cli
from fastdata.store.store import Store
from support import MAIN, PREP, run, shards, tree, write_pictures


@pytest.mark.parametrize("command", [(), *((name,) for name in cli.commands)])
def test_help_never_imports_torch(command: tuple[str, ...]) -> None:
    code = (
        "import sys; from fastdata.entry import main; sys.argv[1:] = [*sys.argv[1:], '--help']\n"
        "try: main()\n"
        "finally: heavy = {'torch', 'cv2', 'numpy', 'lmdb'} & set(sys.modules); print('loaded:', sorted(heavy))"
    )
    found = run(PREP[0], "-c", code, *command)
    assert found.returncode == 0 and "Usage: fastdata" in found.stdout and found.stdout.endswith("loaded: []\n")


def test_preparing_never_imports_torch(tmp_path: Path) -> None:
    code = "import sys; from fastdata.entry import prep_main; prep_main(); assert 'torch' not in sys.modules"
    assert run(PREP[0], "-c", code, stores.sources(), tmp_path / "o.fds").returncode == 0


def test_version_and_both_names_of_prep(tmp_path: Path) -> None:
    assert __version__ in run(*MAIN, "--version").stdout
    for command, out in ((PREP, "a.fds"), ([*MAIN, "prep"], "b.fds")):
        assert run(*command, stores.sources(), tmp_path / out, "--size", "16").returncode == 0
    assert tree(tmp_path / "a.fds") == tree(tmp_path / "b.fds")


def test_wrong_use_exits_with_2(tmp_path: Path) -> None:
    for arguments, message in ((("--codec", "webp"), "'webp' is not one of 'jpeg'"), (("--size", "0"), "--size is 0")):
        found = run(*PREP, stores.sources(), tmp_path / "o.fds", *arguments)
        assert found.returncode == 2 and message in found.stderr and "Traceback" not in found.stderr
    assert not (tmp_path / "o.fds").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["info", "verify", "export", "bench"])
def test_a_missing_store_exits_with_2_and_an_unfinished_one_with_1(name: str, tmp_path: Path) -> None:
    more = [str(tmp_path / "x")] if name == "export" else []
    missing = run(*MAIN, name, tmp_path / "nothing", *more)
    assert missing.returncode == 2 and "does not exist" in missing.stderr
    (tmp_path / "begun/work").mkdir(parents=True)
    begun = run(*MAIN, name, tmp_path / "begun", *more)
    assert begun.returncode == 1 and "is not finished" in begun.stdout + begun.stderr
    assert "Traceback" not in begun.stderr


def test_a_size_that_is_not_there_and_a_place_that_can_t_be_written(tmp_path: Path) -> None:
    store = stores.store()
    for command, says in (
        (("export", store, tmp_path / "x", "--size", "9"), "has no size 9; it has 96, 64"),
        (("info", store, "--sheet", tmp_path / "no/s.png"), "No such file"),
        (("export", store, "/proc/x"), "No such file"),
    ):
        found = run(*MAIN, *command)
        assert found.returncode == 1 and says in found.stderr and "Traceback" not in found.stderr


def test_many_rejects_exit_with_3(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 9)
    (tmp_path / "in/bad.png").write_bytes(b"")
    for options, code in (((), 3), (("--max-reject-rate", "0.05"), 3), (("--max-reject-rate", "0.1"), 0)):
        found = run(*PREP, tmp_path / "in", tmp_path / "o.fds", *options)
        assert (found.returncode, "or raise --max-reject-rate" in found.stderr) == (code, code == 3)
    assert len(Store(tmp_path / "o.fds")) == 9


def test_summary_and_a_finished_store(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 30)
    (tmp_path / "in/a.png").write_bytes(b"")
    (tmp_path / "in/b.png").write_bytes(b"no image")
    (tmp_path / "in/notes.txt").write_bytes(b"text")
    command = (*PREP, tmp_path / "in", tmp_path / "o.fds", "--size", "16", "--max-reject-rate", "1")
    lines = run(*command).stdout.splitlines()
    assert lines[0] == f"{tmp_path}/o.fds: 30 of 32 images kept, 2 rejected (empty 1, not-an-image 1), listed in rejects.jsonl"
    assert lines[1] == "the first reject: a.png: empty: the file is empty"
    assert lines[2].startswith("skipped 1 file") and lines[2].endswith(".txt 1")
    size = sum(path.stat().st_size for path in shards(tmp_path / "o.fds"))
    assert lines[3].startswith("labels: none")
    assert lines[4] == f"{size / 1000:.1f} kB in shards"
    assert re.fullmatch(r"\d+ images/s, \d+\.\d s", lines[5])
    again = run(*command)
    assert again.returncode == 0 and again.stdout.splitlines()[:5] == lines[:5]
    assert again.stdout.splitlines()[5] == "already finished"


def test_verify_and_export(tmp_path: Path) -> None:
    store = stores.store("jpeg")
    assert run(*MAIN, "verify", store).stdout == f"{store}: every byte is as written\n"
    assert run(*MAIN, "export", store, tmp_path / "out").stdout == f"42 files in {tmp_path / 'out'}\n"
    assert len(list((tmp_path / "out").rglob("*.jpg"))) == 42
