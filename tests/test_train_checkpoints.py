"""Checkpoints: whole or absent whatever happens, and readable everywhere."""

from __future__ import annotations

import copy
import errno
import json
import os
import re
import signal
import stat
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fastdata import Trainer
from fastdata.errors import FastDataError
from training import data, net, summed

BATCH, PLAIN = data(4, torch.float32), partial(torch.optim.SGD, lr=0.1)


def trainer(folder: Path | None, model: nn.Module | None = None, optimizer: Any = PLAIN, **options: Any) -> Trainer:
    return Trainer(model or net(torch.float32), summed, optimizer, dir=folder, **options)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def read(folder: Path, name: str) -> Any:
    return torch.load(folder / "checkpoints" / name, weights_only=True)


def test_a_signal_during_the_last_evaluation_ends_the_process(tmp_path: Path) -> None:
    """The script does not go on after `fit`."""

    def end(made: Trainer, results: Any) -> None:
        if made.update == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as ended:
        trainer(tmp_path, callbacks={"eval": end}).fit([BATCH] * 3, [BATCH], max_steps=3, eval_every=2)
    assert ended.value.code == 75 and read(tmp_path, "update-00000003.pt")["validated"] == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrap", [lambda net: net, nn.DataParallel, lambda net: torch.compile(net, backend="eager")])
def test_keys_are_those_of_the_plain_model(tmp_path: Path, wrap: Any) -> None:
    trainer(tmp_path, wrap(net(torch.float32)), ema=0.9).fit([BATCH], epochs=1)
    state = read(tmp_path, "update-00000001.pt")
    assert list(state["model"]) == list(net().state_dict()) == list(state["ema"])
    net().load_state_dict(state["model"])


def test_a_rate_of_numpy_is_read_with_weights_only(tmp_path: Path) -> None:
    for epochs in (1, 2):
        trainer(tmp_path, optimizer=partial(torch.optim.SGD, lr=np.float64(0.01)), ema=0.9).fit([BATCH], epochs=epochs)
    assert read(tmp_path, "update-00000002.pt")["update"] == 2


def flipped(data: bytes, at: int, bit: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def test_a_damaged_newest_file_is_passed_over(tmp_path: Path) -> None:
    """torch.load takes what is put before for the beginning, and of a part that one bit makes a folder it reads nothing."""
    trainer(tmp_path, save_every=1, keep_last=1).fit([BATCH] * 3, epochs=1)
    newest = tmp_path / "checkpoints/update-00000003.pt"
    whole = newest.read_bytes()
    (tmp_path / "checkpoints/update-00000002.pt").write_bytes(whole)
    middle = whole.index(read(tmp_path, newest.name)["model"]["0.weight"].numpy().tobytes()) + 5
    folders = [flipped(whole, match.start() + 38, 0x10) for match in re.finditer(b"PK\x01\x02", whole)]
    for damaged in (whole[: len(whole) // 2], b"", flipped(whole, middle), whole.replace(b"update", b"upgate") + whole, *folders):
        newest.write_bytes(damaged)
        with pytest.warns(UserWarning, match="update-00000003.pt cannot be read"):
            assert trainer(tmp_path).update == 3  # what the older file says
    with pytest.warns(UserWarning, match="trying an older one"):  # and what is newer goes, not what was just written
        trainer(tmp_path, keep_last=1).fit([BATCH] * 3, epochs=2)
    assert files(tmp_path) == ["update-00000006.pt"]
    (tmp_path / "checkpoints/update-00000006.pt").write_bytes(b"no")
    with pytest.warns(UserWarning, match="cannot be read"), pytest.raises(FastDataError, match="remove them"):
        trainer(tmp_path)  # is no new run


def test_a_checkpoint_of_another_model_or_scheduler(tmp_path: Path) -> None:
    trainer(tmp_path).fit([BATCH], epochs=1)
    for options in ({"model": nn.Linear(6, 3)}, {"scheduler": lambda update: 1.0}, {"precision": "fp16"}):
        with pytest.raises(FastDataError, match="another model, optimizer, precision, scheduler or fastdata") as raised:
            trainer(tmp_path, **options).fit([BATCH], epochs=1)
        assert str(tmp_path) in str(raised.value) and "for a new run, pass resume=False" in str(raised.value)
    anew = trainer(tmp_path, nn.Linear(6, 3), resume=False)
    anew.fit([BATCH], epochs=1)
    assert anew.update == 1


def test_a_full_disk_ends_a_run_with_what_to_do_and_the_last_checkpoint(tiny_disk: Path) -> None:
    """There is room for one file of 1.2 MB and its log, but not for the next."""

    def made() -> Trainer:
        torch.manual_seed(0)
        return trainer(tiny_disk / "run", nn.Sequential(nn.Linear(6, 30_000), nn.Linear(30_000, 3)), save_every=1, keep_last=1)

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
    state = made.state_dict()
    expected = copy.deepcopy(state)
    made.save()
    with torch.no_grad():
        for tensor in (*state["model"].values(), *state["ema"].values(), *state["optimizer"]["state"][0].values()):
            tensor.fill_(7)
    made.close()
    found = read(tmp_path, "update-00000001.pt")
    for name in ("model", "ema", "optimizer"):
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0)


class Migrated(nn.Linear):
    """Its weights are of version 2; those of an older state are multiplied when they are loaded."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, local: dict[str, Any], *rest: Any) -> None:
        if local.get("version") != 2:
            state[f"{prefix}weight"] = 100 * state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, local, *rest)


def test_versions_of_modules_are_kept(tmp_path: Path) -> None:
    first = trainer(tmp_path, nn.Sequential(Migrated(6, 3)), ema=0.5)
    first.fit([BATCH], epochs=1)
    again, loaded = trainer(tmp_path, nn.Sequential(Migrated(6, 3)), ema=0.5), nn.Sequential(Migrated(6, 3))
    loaded.load_state_dict(read(tmp_path, "update-00000001.pt")["model"])
    assert first.ema is not None and again.ema is not None
    for found, wanted in ((again.model, first.model), (loaded, first.model), (again.ema.model, first.ema.model)):
        torch.testing.assert_close(found.state_dict(), wanted.state_dict(), rtol=0, atol=0)


def test_a_folder_that_cannot_be_flushed_holds_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def failing(file: int) -> None:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise OSError(error, "as of CIFS and FUSE")
        flush(file)

    monkeypatch.setattr(os, "fsync", failing)
    error = errno.EINVAL
    trainer(tmp_path).fit([BATCH], epochs=1)
    error = errno.EIO
    with pytest.raises(FastDataError, match="could not be written"):
        trainer(tmp_path).fit([BATCH], epochs=2)
