"""Ctrl-C, lost workers and crashing decoders: a second run ends with the same bytes. tests/faults kills at random moments."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fastdata import prep
from fastdata.errors import StoreError
from fastdata.store.store import Store, verify
from support import MAIN, PREP, children, kill_group, made_shards, members, run, start, tables, tree, until, write_pictures

OPTIONS = ("--size", "256", "--workers", "2")


@pytest.fixture(scope="module")
def killed(large: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that lost its whole process group while it was being made, with many shards finished. To be copied."""
    out = tmp_path_factory.mktemp("killed") / "begun.fds"
    process = start(*PREP, large, out, *OPTIONS)
    until(lambda: len(tables(out)) >= 12)
    kill_group(process)
    assert not (out / "manifest.json").exists() and len(tables(out)) >= 12
    return out


@pytest.fixture
def begun(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "begun.fds")
    return tmp_path / "begun.fds"


@pytest.mark.parametrize("damage", ["short", "gone", "table cut", "table of another plan"])
@pytest.mark.slow
def test_a_finished_shard_that_was_harmed_is_made_again(
    begun: Path, large: Path, undisturbed: dict[str, bytes | None], damage: str
) -> None:
    table = sorted(tables(begun))[0]
    shard, others = begun / "256" / f"{table.stem}.mdb", dict([*made_shards(begun).items()][1:])
    if damage == "short":
        os.truncate(shard, shard.stat().st_size - 4096)
    elif damage == "gone":
        shard.unlink()
    elif damage == "table cut":
        os.truncate(table, table.stat().st_size // 2)
    else:
        body = json.loads(table.read_bytes())
        table.write_text(json.dumps({**body, "fingerprint": "0" * 32, "rows": []}))
    prep(large, begun, size=256, workers=2)
    assert tree(begun) == undisturbed
    assert {path: path.stat().st_ino for path in others} == others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number", "send", "command"),  # a scheduler's signal goes to the group, `kill PID` to the parent alone
    [
        ("start", signal.SIGINT, os.killpg, PREP),
        ("workers start", signal.SIGINT, os.killpg, [*MAIN, "prep"]),
        ("working", signal.SIGTERM, os.kill, PREP),
        ("later", signal.SIGTERM, os.killpg, PREP),
    ],
)
def test_an_interruption_stops_cleanly_and_says_how_to_go_on(
    large: Path,
    tmp_path: Path,
    moment: str,
    number: int,
    send: Any,
    command: Any,
    undisturbed: dict[str, bytes | None],
) -> None:
    out = tmp_path / "with space.fds"
    process = start(*command, large, out, *OPTIONS, stderr=subprocess.PIPE)
    until(
        {
            "start": lambda: (out / "work").exists(),
            "workers start": lambda: len(children(process.pid)) == 2,
            "working": lambda: tables(out),
            "later": lambda: len(tables(out)) >= 8,
        }[moment]
    )
    time.sleep(0.1 if moment == "workers start" else 0)
    for _ in range(2 if number == signal.SIGTERM else 1):  # `timeout` sends it twice
        send(process.pid, number)
    errors = process.communicate(timeout=90)[1].decode()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not members(process.pid)
    assert not list(out.rglob("*.tmp")) and not (out / "manifest.json").exists()
    assert len(tables(out)) >= {"start": 0, "workers start": 0, "working": 1, "later": 8}[moment]
    continued = shlex.split(errors.split("To continue:")[1])
    assert continued == ["fastdata-prep", str(large), str(out), *OPTIONS]
    again = run(*PREP, *continued[1:])
    assert again.returncode == 0 and ("done earlier" in again.stdout or "start" in moment)
    assert tree(out) == undisturbed


TROUBLE = """
import os, signal, sys, time
if "fastdata.prepare.worker" in " ".join(sys.orig_argv):
    {at_start}
    import fastdata.images.shards as worker
    real = worker.prepare_image
    def prepare_image(data, options, **more):
        if b"crash the decoder" in data:
            os.kill(os.getpid(), signal.SIGSEGV)
        while b"hang the decoder" in data:
            time.sleep(1)
        return real(data, options, **more)
    worker.prepare_image = prepare_image
"""


@pytest.fixture
def troubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Workers whose decoder is taken down, or made to hang, by what stands in an image."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(TROUBLE.format(at_start=""))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(("marker", "reason"), [(b"crash the decoder", "crashed"), (b"hang the decoder", "timeout")])
def test_an_image_that_takes_its_decoder_down_is_left_out(troubled: Path, marker: bytes, reason: str) -> None:
    paths = write_pictures(troubled / "in/a", 20) + write_pictures(troubled / "in/b", 20, seed=50)
    for path in (paths[3], paths[4], paths[39]):  # two side by side, and the last of all
        path.write_bytes(path.read_bytes() + marker)
    summary = prep(troubled / "in", troubled / "o.fds", codec="png", workers=2, timeout=0.6)
    store = Store(troubled / "o.fds")
    assert (summary.kept, summary.rejected) == (37, {reason: 3})
    assert [(r["name"], r["reason"]) for r in store.rejects()] == [(n, reason) for n in ("a/03.png", "a/04.png", "b/19.png")]
    kept = [p for p in paths if marker not in p.read_bytes()]
    assert store.names() == [str(p.relative_to(troubled / "in")) for p in kept]
    assert list(verify(store.path)) == []


def test_workers_that_cannot_start_end_the_run(troubled: Path) -> None:
    (troubled / "site/sitecustomize.py").write_text(TROUBLE.format(at_start="os._exit(3)"))
    write_pictures(troubled / "in/a", 40)
    found = run(*PREP, troubled / "in", troubled / "o.fds", "--workers", "2", seconds=90)
    assert found.returncode in (1, 2) and "worker processes die before they begin an input (exit code 3)" in found.stderr


@pytest.mark.slow
def test_a_full_disk_is_an_error_and_space_lets_it_go_on(
    large: Path, tiny_disk: Path, undisturbed: dict[str, bytes | None]
) -> None:
    out = tiny_disk / "o.fds"
    full = run(*PREP, large, out, *OPTIONS)
    assert full.returncode == 1
    assert "No space left on device" in full.stderr and "run the same command again" in full.stderr
    assert "Traceback" not in full.stderr
    assert not list(out.rglob("*.tmp"))
    subprocess.run(["mount", "-o", "remount,size=64m", str(tiny_disk)], check=True)
    again = run(*PREP, large, out, *OPTIONS)
    assert again.returncode == 0 and "done earlier" in again.stdout
    assert tree(out) == undisturbed


def test_a_suspended_job_rejects_nothing(large: Path, tmp_path: Path) -> None:
    code = "import fastdata, sys; fastdata.prep(sys.argv[1], sys.argv[2], size=256, workers=2, timeout=1)"
    process = start(sys.executable, "-c", code, large, tmp_path / "o.fds")
    until(lambda: list(tmp_path.glob("o.fds/work/256-*.tmp")))
    for _ in range(2):
        os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.killpg(process.pid, signal.SIGCONT)
        time.sleep(0.3)
    assert process.wait(120) == 0
    assert (tmp_path / "o.fds/rejects.jsonl").read_bytes() == b""


FAILING = """
import errno, os, pathlib
real = pathlib.Path.read_bytes
def read_bytes(path):
    left = pathlib.Path(os.environ["FAILURES"])
    if path.name == "03.png" and (count := int(left.read_text())):
        left.write_text(str(count - 1))
        raise OSError(errno.ESTALE, "Stale file handle", str(path))
    return real(path)
pathlib.Path.read_bytes = read_bytes
"""


@pytest.mark.parametrize("failures", [2, pytest.param(99, marks=pytest.mark.slow)])
def test_a_network_disk_that_fails_rejects_nothing(failures: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again; then the run ends, and goes on when the disk is back."""
    write_pictures(tmp_path / "in", 9)
    expected = prep(tmp_path / "in", tmp_path / "a.fds", shard_samples=2, workers=1).out
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(FAILING)
    (tmp_path / "failures").write_text(str(failures))
    monkeypatch.setenv("FAILURES", str(tmp_path / "failures"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    out = tmp_path / "b.fds"
    if failures > 9:
        with pytest.raises(StoreError, match=r"03.png.*is its disk there\?\nWhat is finished is kept; run the same command again"):
            prep(tmp_path / "in", out, shard_samples=2, workers=1)
        assert tables(out)
        (tmp_path / "failures").write_text("0")
    assert prep(tmp_path / "in", out, shard_samples=2, workers=1).kept == 9
    assert (tmp_path / "failures").read_text() == "0"
    assert tree(out) == tree(expected)


def test_files_of_the_working_folder_are_not_imported(tmp_path: Path) -> None:
    write_pictures(tmp_path / "in", 3)
    for name in ("random", "types", "json", "lmdb", "tifffile"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('imported')")
    made = run(Path(sys.executable).with_name("fastdata-prep"), "in", "out.fds", "--workers", "1", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
