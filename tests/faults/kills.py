"""Signals at random moments, and what has to hold after each: rounds that are repeated with other numbers.

A round begins something, sends a signal to one of its processes or to all, waits until nothing of it lives, and lets another
process go on. It raises an AssertionError if that ends otherwise than a run that nobody disturbed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch

import stores
from fastdata import LMDBDataset, Loader, RAMDataset, RandomResizedCrop
from fastdata.errors import LoaderError, StoreError
from fastdata.store.files import sum_of
from fastdata.store.store import verify
from fastdata.train.checkpoint import Checkpoints
from fastdata.train.world import World
from support import MAIN, PREP, children, made_shards, members, run, start, tree, until, write_pictures

__all__ = ["KILLS", "ORPHANS", "Round", "disturb", "end_of", "forked", "killed", "lose", "one", "photos", "two_epochs"]

KILL, STOP, SEGV = signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENT = 60.0  # seconds for what takes a tenth of one: six tests may share two cores
LONGEST = 240  # seconds for a round
ORPHANS = 20.0  # seconds until the children of a killed process are gone

Round = Callable[[Random, Path], None]
KILLS: dict[str, Round] = {}


def killed(round: Round) -> Round:
    KILLS[round.__name__] = round
    return round


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended; after a STOP, let it go on."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        if number == STOP:
            time.sleep(0.05)
            os.kill(pid, signal.SIGCONT)


def shared() -> set[str]:
    """The names of what lies in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def left_by(pids: Iterable[int], before: set[str]) -> list[str]:
    """What lies there under the names that torch gives it for these processes, but for what earlier ones of their numbers left."""
    return [name for name in shared() - before if any(f"_{pid}_" in name for pid in pids)]


# Preparing


@cache
def photos() -> Path:
    root = stores.folder() / "photos"
    for k, name in enumerate("ab"):
        write_pictures(root / name, 20, height=30 + k, seed=100 * k, ending=".jpg")
    return root


OPTIONS = ("--size", "24", "--shard-samples", "4", "--workers", "2")


@cache
def made(name: str, *command: Any) -> tuple[Path, dict[str, bytes | None], float]:
    """The store that a command makes which nobody disturbs, what is in it, and its seconds."""
    out, began = stores.folder() / name, time.monotonic()
    done = run(*(out if part == "OUT" else part for part in command))
    assert done.returncode == 0, done.stderr
    return out, tree(out), time.monotonic() - began


def prepared() -> tuple[Path, dict[str, bytes | None], float]:
    return made("o.fds", *PREP, photos(), "OUT", *OPTIONS)


def disturb(process: subprocess.Popen[bytes], rng: Random, seconds: float) -> None:
    """Wait, and send a signal to a child, to the parent, or to all. Wait until all have ended, or let those that go on end."""
    end = time.monotonic() + rng.uniform(0, 0.7 * seconds)
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.005)
    others = children(process.pid)  # also those that have a group of their own
    what = rng.random()
    if what < 0.3:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, KILL)
    elif what < 0.6:
        for child in others[:1]:
            send(child, rng.choice((KILL, SEGV, STOP)))
    else:
        send(process.pid, rng.choice((KILL, KILL, STOP, *ASKING)))
    process.wait(PATIENT)
    until(lambda: not members(process.pid) and not any(Path(f"/proc/{pid}").exists() for pid in others), ORPHANS)


def finished(out: Path, expected: dict[str, bytes | None], *commands: Sequence[Any]) -> None:
    """Run commands, which end with the store that nobody disturbed."""
    for command in commands:
        done = run(*command)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert tree(out) == expected, "another store"


@killed
def preparing(rng: Random, folder: Path) -> None:
    _, expected, seconds = prepared()
    out, command = folder / "o.fds", (*PREP, photos(), folder / "o.fds", *OPTIONS)
    for _ in range(rng.choice((1, 1, 3))):
        disturb(start(*command), rng, seconds)
    kept = made_shards(out)
    finished(out, expected, command)
    assert {path: path.stat().st_ino for path in kept} == kept, "a finished shard was made again"


@killed
def overwriting(rng: Random, folder: Path) -> None:
    """At any moment there is the old store or the new one."""
    old, *_ = made("old.fds", *PREP, photos(), "OUT", "--size", "16")
    _, expected, seconds = prepared()
    out = Path(shutil.copytree(old, folder / "o.fds"))
    command = (*PREP, photos(), out, *OPTIONS, "--overwrite")
    for _ in range(rng.choice((1, 1, 3))):
        disturb(start(*command), rng, 1.4 * seconds)
        assert len(LMDBDataset(out)) == 40 and list(verify(out)) == [], "no whole store"
    finished(out, expected, command)


@killed
def in_tasks(rng: Random, folder: Path) -> None:
    _, expected, seconds = prepared()
    out = folder / "o.fds"
    assert run(*PREP, "plan", photos(), out, *OPTIONS[:4]).returncode == 0
    for task in "201":
        disturb(start(*PREP, "run", out, "--task", task, "--of", "3", "--workers", "1"), rng, seconds)
    if rng.random() < 0.5:
        assert run(*PREP, "run", out).returncode == 0
    disturb(start(*PREP, "finish", out), rng, seconds)
    finished(out, expected, (*PREP, "run", out), (*PREP, "finish", out))


@killed
def merging(rng: Random, folder: Path) -> None:
    parts = [prepared()[0]] * 40
    _, expected, seconds = made("merged.fds", *MAIN, "merge", *parts, "OUT")
    out = folder / "o.fds"
    command = (*MAIN, "merge", *parts, out)
    disturb(start(*command), rng, 1.4 * seconds)
    if not (out / "manifest.json").exists():
        assert run(*command).returncode == 0
    shutil.rmtree(out / "work", ignore_errors=True)  # which may hold the lock
    finished(out, expected)


# Loading and saving: forks of this process, which has imported everything


@contextmanager
def forked(work: Callable[[Callable[[Any], None]], None]) -> Iterator[tuple[int, Any]]:
    """Run a function in a process group of its own. It is given what writes a line to the file that this yields, with the pid."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        try:
            os.close(ours)
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
            work(lambda line: os.write(theirs, f"{line}\n".encode()) and None)
        except BaseException:  # noqa: BLE001  whatever it is, this copy of the parent has to end here
            os.write(theirs, f"error {traceback.format_exc()!r}\n".encode())
        finally:
            os._exit(0)
    os.close(theirs)
    try:
        with os.fdopen(ours) as lines:
            yield pid, lines
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(pid, KILL)
        raise


def end_of(pid: int) -> None:
    """Wait for a process, and until its children are gone."""
    until(lambda: os.waitpid(pid, os.WNOHANG)[0], PATIENT)
    until(lambda: not members(pid), ORPHANS)


def loader(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, 4, **{"shuffle": True, "num_workers": 2, "seed": 5, **options})


def images(make: Any = LMDBDataset) -> Any:
    return make(stores.store("jpeg", size=48), crop=RandomResizedCrop(16))


def batches(made: Loader, epoch: int) -> Iterator[str]:
    made.set_epoch(epoch)
    for batch in made:
        yield f"{batch.ids.tolist()} {hash_of(batch)}"


def two_epochs(made: Loader) -> list[list[str]]:
    """The batches of two epochs."""
    return [list(batches(made, epoch)) for epoch in range(2)]


def hash_of(batch: Any) -> str:
    return sum_of(b"".join(part.contiguous().numpy().tobytes() for part in batch)).xxh3_128


def lose(
    rng: Random,
    make: Callable[[], Loader],
    expected: list[list[str]],
    victims: Callable[[int], list[int]] = children,
    deadly: Sequence[int] = (KILL, SEGV, STOP),
) -> str:
    """A signal to a process that loads two epochs, or to one that works for it.

    A worker that is lost is an error, and the next pass is whole; one that was stopped only makes it later.

    Args:
        make: makes the Loader.
        expected: its batches.
        victims: returns the processes that work for a process.
        deadly: the signals that these get.

    Returns:
        The error of a pass that was lost, or "".
    """

    def work(say: Callable[[Any], None]) -> None:
        made = make()
        for epoch in (0, 1):
            say("epoch")
            try:
                for line in batches(made, epoch):
                    say(line)
            except (LoaderError, RuntimeError, StoreError) as error:
                say(f"lost {error!r}")
                for line in batches(made, epoch):  # the next pass
                    say(f"again {line}")
        made.close()
        say("done")

    before = shared()
    with forked(work) as (pid, lines):
        seen = [lines.readline() for _ in range(rng.randrange(1, 14))]
        time.sleep(rng.uniform(0, 0.02))
        workers = victims(pid)
        to_parent = rng.random() < 0.4 or not workers
        victim = pid if to_parent else rng.choice(workers)
        send(victim, rng.choice((KILL, STOP, *ASKING)) if to_parent else rng.choice(deadly))
        seen += list(lines)
        end_of(pid)
    found = [line.rstrip("\n") for line in seen]
    lines_of = [line.removeprefix("again ") for line in found if line.startswith(("[", "again"))]
    flat = expected[0] + expected[1]
    assert all(line in flat for line in lines_of), "another batch"
    if found and found[-1] == "done":
        assert set(flat) <= set(lines_of), "batches are missing"
    elif not to_parent:
        raise AssertionError(f"the pass did not end: {found[-1:]}")
    until(lambda: not left_by([pid, *workers], before), ORPHANS)
    return next((line for line in found if line.startswith("lost")), "")


@killed
def loading(rng: Random, folder: Path) -> None:
    make = rng.choice((LMDBDataset, RAMDataset))
    lose(rng, lambda: loader(images(make)), two_epochs(loader(images(), num_workers=0)))


@killed
def saving(rng: Random, folder: Path) -> None:
    """A run that saves all the time is killed; what was said to be written is there."""
    last = -1
    for _ in range(4):

        def work(say: Callable[[Any], None], first: int = last + 1) -> None:
            kept = Checkpoints(folder / "checkpoints", World(), keep_last=2)
            for number in range(first, first + 10_000):
                state = {"update": number, "weight": torch.full((30_000,), float(number))}
                kept.save(number, state)
                kept.wait()
                say(number)

        with forked(work) as (pid, lines):
            first = lines.readline()
            time.sleep(rng.uniform(0, 0.03))
            send(pid, rng.choice((KILL, KILL, *ASKING)))
            said = [int(line) for line in (first, *lines) if line[0].isdigit()]
            end_of(pid)
        state = Checkpoints(folder / "checkpoints", World(), keep_last=2).newest()
        assert state is not None and said[-1] <= state["update"] <= said[-1] + 1, "a checkpoint is lost"
        assert bool((state["weight"] == state["update"]).all()), "another state"
        assert not list((folder / "checkpoints").glob("*.part")), "a part is left"
        last = state["update"]


def one(name: str, seed: int, number: int) -> None:
    """Run a round again from its numbers."""
    with tempfile.TemporaryDirectory(prefix="fastdata-kill-") as folder:
        signal.signal(signal.SIGALRM, _late)
        signal.alarm(LONGEST)
        KILLS[name](Random(f"{name} {seed} {number}"), Path(folder))
        signal.alarm(0)


def _late(number: int, frame: Any) -> None:
    raise TimeoutError(f"the round did not end in {LONGEST} s")
