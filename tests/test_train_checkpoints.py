"""Checkpoints: whole or absent whatever happens, and readable everywhere."""

from __future__ import annotations

import copy
import json
import re
import resource
import signal
import subprocess
import sys
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastdata import FastDataError, Trainer
from fastdata.checkpoint.files import Checkpoints
from fastdata.parallel.world import World
from support import run, wait_for_checkpoint

BATCH = (torch.arange(12.0).reshape(4, 3) / 12, torch.tensor([0, 1, 0, 1]))


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def loss(model: Any, batch: Any) -> Any:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])


def trainer(folder: Path | None, net: nn.Module | None = None, optimizer: Any = None, **options: Any) -> Trainer:
    net = net or model()
    return Trainer(net, loss, optimizer or partial(torch.optim.SGD, lr=0.1), dir=folder, progress=False, **options)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def read(folder: Path, name: str) -> Any:
    return torch.load(folder / "checkpoints" / name, weights_only=True)


SIGNALLED = """
import json, os, random, signal, sys, time, traceback
from functools import partial
from pathlib import Path
import torch
from torch import nn
from fastdata import Trainer
from fastdata.checkpoint.files import Checkpoints
from fastdata.parallel.world import World
torch.set_num_threads(1)
folder = Path(sys.argv[1])

class Large(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2_000_000))

class Endless:
    def __len__(self): return 100_000
    def __iter__(self): return iter([torch.ones(1)] * 100_000)

def train(tell):
    saved = lambda trainer, path: os.write(tell, path.stem[-8:].encode())
    loss = lambda model, batch: (model.weight.sum() * batch.sum(), 1)
    options = {"dir": folder, "save_every": 1, "keep_last": 2, "hooks": {"save": saved}}
    Trainer(Large(), loss, partial(torch.optim.SGD, lr=0.5), **options).fit(Endless(), epochs=1)

def child(tell):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = 0
    try:
        train(tell)
    except SystemExit as ended:
        code = ended.code
    except KeyboardInterrupt:
        code = 1
    except BaseException:
        traceback.print_exc()
        code = 2
    finally:
        sys.stdout.flush()
        os._exit(code)

def life(numbers, wait):
    told, tell = os.pipe()
    out, into = os.pipe()
    sys.stdout.flush()
    if not (pid := os.fork()):
        os.setsid()
        os.dup2(into, 1)
        child(tell)
    os.close(tell)
    os.close(into)
    said = os.read(told, 8)
    end = time.monotonic() + 20
    while not list((folder / "checkpoints").glob("*.part")) and time.monotonic() < end:
        time.sleep(0.0005)
    for number in numbers:
        time.sleep(wait)
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    while more := os.read(told, 1 << 16):
        said += more
    left = len(list((folder / "checkpoints").glob("*.part")))
    kept = Checkpoints(folder / "checkpoints", World(), keep_last=2)
    state = kept.newest()
    whole = bool((state["model"]["weight"] == -0.5 * state["update"]).all())
    with os.fdopen(out) as printed:
        lines = [line for line in printed.read().splitlines() if not line.startswith("resumed")]
    found = {"signals": numbers, "code": code, "left": left, "whole": whole, "kept": len(kept.numbers()), "lines": lines}
    print(json.dumps({**found, "update": state["update"], "said": int(said[-8:])}))

for numbers in json.loads(sys.argv[2]):
    life(numbers, random.Random(str(numbers)).uniform(0, 0.02))
"""


@pytest.mark.slow
def test_a_run_that_is_signalled_while_it_saves_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    """Each signal comes while a checkpoint of 8 MB is being written; of two, the second comes while the run ends."""
    script = tmp_path / "signalled.py"
    script.write_text(SIGNALLED)
    ask, interrupt, hang_up, kill = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
    order = [[ask], [interrupt], [kill], [hang_up], [interrupt, interrupt], [ask, ask], [kill]] * 2
    done = run(sys.executable, "-W", "error", script, tmp_path / "run", json.dumps(order), seconds=300)
    assert done.returncode == 0 and not done.stderr, done.stderr[-3000:]
    lives = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lives) == len(order)
    before = 0
    for one in lives:
        assert one["whole"] and one["kept"] in (1, 2, 3), one
        assert one["update"] >= max(one["said"], before), one
        before = one["update"]
        if one["signals"] in ([ask], [interrupt]):
            name = "SIGTERM" if one["signals"] == [ask] else "interrupted"
            assert (one["code"], one["left"]) == (75 if one["signals"] == [ask] else 130, 0), one
            expected = f"{name}: saved at update {one['update']} in {tmp_path / 'run'}; the same command continues from there."
            assert one["lines"] == [expected], one
        elif len(one["signals"]) == 1:
            assert one["code"] == -one["signals"][0] and one["left"] <= 1, one
        else:
            assert one["code"] in ((-ask, 75) if one["signals"] == [ask, ask] else (1, 130)), one
    assert sum(one["left"] for one in lives) >= 2, "signals must fall into writing"
    assert not list((tmp_path / "run/checkpoints").glob("*.part"))


def test_a_signal_during_the_last_evaluation_ends_the_process(tmp_path: Path) -> None:
    """The script does not go on after `fit`."""

    def end(made: Trainer, results: Any) -> None:
        if made.update == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        trainer(tmp_path, hooks={"eval": end}).fit([BATCH] * 3, [BATCH], max_steps=3, eval_every=2)
    assert ended.value.code == 75 and read(tmp_path, "update-00000003.pt")["validated"] == 3


def test_what_cannot_be_copied_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    """As with Ctrl-C or too little memory while a state is copied: the run has to end, not to wait for what nobody writes."""
    made = Checkpoints(tmp_path, World(), keep_last=1)
    with pytest.raises(NotImplementedError):
        made.save(1, {"weight": torch.empty(3, device="meta")}, then=lambda path: None)
    waiting = threading.Thread(target=made.wait, daemon=True)
    waiting.start()
    waiting.join(5)
    assert not waiting.is_alive()


def wrapped(net: nn.Module) -> Any:
    return torch.compile(net, backend="eager")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eager", "compiled in place", "compiled", "recompute", "DataParallel"])
def test_keys_are_those_of_the_plain_model(tmp_path: Path, kind: str) -> None:
    net, options = model(), dict[str, Any]()
    if kind == "compiled in place":
        net.compile(backend="eager")
    if kind == "recompute":
        options = {"recompute": [nn.Linear]}
    given = wrapped(net) if kind == "compiled" else nn.DataParallel(net) if kind == "DataParallel" else net
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = trainer(tmp_path, given, ema=0.9, **options)
    made.fit([BATCH], epochs=1)
    state = read(tmp_path, "update-00000001.pt")
    assert list(state["model"]) == list(model().state_dict()) == list(state["ema"])
    model().load_state_dict(state["model"])


def test_a_rate_of_numpy_is_read_with_weights_only(tmp_path: Path) -> None:
    for epochs in (1, 2):
        trainer(tmp_path, optimizer=partial(torch.optim.SGD, lr=np.float64(0.01)), ema=0.9).fit([BATCH], epochs=epochs)
    assert read(tmp_path, "update-00000002.pt")["update"] == 2


def test_a_damaged_newest_file_is_passed_over(tmp_path: Path) -> None:
    trainer(tmp_path, save_every=1, keep_last=1).fit([BATCH] * 3, epochs=1)
    newest = tmp_path / "checkpoints/update-00000003.pt"
    whole = newest.read_bytes()
    (tmp_path / "checkpoints/update-00000002.pt").write_bytes(whole)
    middle = whole.index(read(tmp_path, newest.name)["model"]["0.weight"].numpy().tobytes()) + 5
    for damaged in (whole[: len(whole) // 2], b"", whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match="update-00000003.pt cannot be read"):
            assert trainer(tmp_path).resume()
    with pytest.warns(UserWarning, match="resuming from an older one"):  # and what is newer goes, not what was just written
        trainer(tmp_path, keep_last=1).fit([BATCH] * 3, epochs=2)
    assert files(tmp_path) == ["update-00000006.pt"]


def test_nothing_readable_is_no_new_run(tmp_path: Path) -> None:
    trainer(tmp_path).fit([BATCH], epochs=1)
    (tmp_path / "checkpoints/update-00000001.pt").write_bytes(b"no")
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(FastDataError, match="remove them"):
        trainer(tmp_path).fit([BATCH], epochs=1)


def test_a_checkpoint_of_another_model_or_scheduler(tmp_path: Path) -> None:
    trainer(tmp_path).fit([BATCH], epochs=1)
    for options in ({"net": nn.Linear(3, 2)}, {"scheduler": lambda update: 1.0}, {"precision": "fp16"}):
        with pytest.raises(FastDataError, match="another model, optimizer, precision or scheduler") as raised:
            trainer(tmp_path, **options).fit([BATCH], epochs=1)
        file = tmp_path / "checkpoints/update-00000001.pt"
        said = f"{file} does not fit this Trainer: for a new run, pass resume=False or another dir; "
        assert str(raised.value).startswith(said)
    anew = trainer(tmp_path, net=nn.Linear(3, 2), resume=False)
    anew.fit([BATCH], epochs=1)
    assert anew.update == 1


@pytest.mark.parametrize("kind", ["no folder", "disk full"])
def test_an_error_of_writing_is_raised_at_the_next_save(tmp_path: Path, kind: str) -> None:
    made, limits = trainer(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    steps = made.steps([BATCH] * 3)
    next(steps)
    made.save()
    next(steps)
    wait_for_checkpoint(made)
    if kind == "no folder":
        (tmp_path / "checkpoints").rename(tmp_path / "away")
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        made.save()
        wait_for_checkpoint(made)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    next(steps)
    with pytest.raises(FastDataError, match="could not be written"):
        made.save()
    if kind == "no folder":
        (tmp_path / "away").rename(tmp_path / "checkpoints")
    assert files(tmp_path) == ["update-00000001.pt"]
    made.save()
    made.close()
    assert read(tmp_path, "update-00000003.pt")["update"] == 3


def test_a_full_disk_ends_a_run_with_what_to_do_and_the_last_checkpoint(tiny_disk: Path) -> None:
    """There is room for one file of 1.2 MB and its log, but not for the next."""

    def made() -> Trainer:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 50_000), nn.Linear(50_000, 2))
        return Trainer(
            net, loss, partial(torch.optim.SGD, lr=0.1), dir=tiny_disk / "run", save_every=1, keep_last=1, progress=False
        )

    second = tiny_disk / "run/checkpoints/update-00000002.pt"
    with pytest.raises(FastDataError) as raised:
        made().fit([BATCH] * 4, epochs=1)
    assert str(raised.value) == (
        f"{second} could not be written: [Errno 28] No space left on device. Remove the cause, then run the same command again"
    )
    assert files(tiny_disk / "run") == ["update-00000001.pt"]
    subprocess.run(["mount", "-o", "remount,size=16m", str(tiny_disk)], check=True)
    again = made()
    again.fit([BATCH] * 4, epochs=1)
    assert again.update == 4 and files(tiny_disk / "run") == ["update-00000004.pt"]
    assert [json.loads(line)["update"] for line in (tiny_disk / "run/log.jsonl").read_text().splitlines()][-1] == 4


def test_a_change_right_after_save_is_not_in_the_file(tmp_path: Path) -> None:
    made = trainer(tmp_path, optimizer=partial(torch.optim.AdamW, lr=0.1), ema=0.9)
    next(made.steps([BATCH] * 2))
    expected = copy.deepcopy(made.state_dict())
    made.save()
    with torch.no_grad():
        for value in (*made.model.parameters(), *made.ema.model.parameters(), *made.optimizer.state_dict()["state"][0].values()):  # type: ignore[union-attr]
            value.fill_(7)
    made.close()
    found = read(tmp_path, "update-00000001.pt")
    for name in ("model", "ema"):
        assert all(torch.equal(found[name][key], expected[name][key]) for key in expected[name])
    assert torch.equal(found["optimizer"]["state"][0]["exp_avg"], expected["optimizer"]["state"][0]["exp_avg"])


def saved_twice(folder: Path) -> tuple[Path, bytes]:
    """Save two states, and return the file of the newer one, and its bytes."""
    for update in (1, 2):
        kept = Checkpoints(folder, World(), keep_last=2)
        kept.save(update, {"update": update, "weight": torch.arange(1000.0)}, then=lambda path: None)
        kept.wait()
    newest = folder / "update-00000002.pt"
    return newest, newest.read_bytes()


def test_what_is_put_before_a_checkpoint_is_damage(tmp_path: Path) -> None:
    """torch.load takes it for the beginning, and compares no checksums; Python's zipfile skips it."""
    newest, whole = saved_twice(tmp_path)
    newest.write_bytes(whole.replace(b"update", b"upgate") + whole)
    assert set(torch.load(newest)) == {"upgate", "weight"}
    with pytest.warns(UserWarning, match=rf"{len(whole)} bytes before its first part.*resuming from an older one"):
        state = Checkpoints(tmp_path, World(), keep_last=2).newest()
    assert state is not None and state["update"] == 1


def test_a_part_that_one_bit_makes_a_folder_is_damage(tmp_path: Path) -> None:
    """torch.load would leave its tensor as the memory happens to be: its checksum and sizes are right, and nothing is read."""
    newest, whole = saved_twice(tmp_path)
    entries = [match.start() for match in re.finditer(b"PK\x01\x02", whole)]
    assert len(entries) >= 3
    for entry in entries:
        damaged = bytearray(whole)
        damaged[entry + 38] ^= 0x10  # of the attributes in the zip's list of parts
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match=r"is damaged.*resuming from an older one"):
            state = Checkpoints(tmp_path, World(), keep_last=2).newest()
        assert state is not None and state["update"] == 1 and torch.equal(state["weight"], torch.arange(1000.0))
