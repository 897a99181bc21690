"""Targets: what a run reads back: checkpoints, states of a Loader, stores from a bucket; and commands."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import Any

import click
import torch

import stores
from fastdata import LMDBDataset, Loader, RandomCrop
from fastdata.cli import cli
from fastdata.errors import FastDataError
from fastdata.train.checkpoint import Checkpoints
from fastdata.train.world import World
from target import TARGETS, Case, Target, target
from target_stores import STORES, damaged_store, files_of, restore


def checkpoints() -> dict[str, bytes]:
    buffer = io.BytesIO()
    state = {"model": {"weight": torch.arange(12.0).reshape(3, 4)}, "update": 7, "loader": {"epoch": 1, "consumed": 3}, "s": "abc"}
    torch.save(state, buffer)
    return {"update-00000007.pt": buffer.getvalue()}


@target(checkpoints, exact="always", cases=2000)
def checkpoint(case: Case) -> Any:
    folder = case.write().parent
    return Checkpoints(folder, World(), keep_last=1).newest()


@cache
def loader() -> Loader:
    return Loader(LMDBDataset(stores.square(), crop=RandomCrop(16)), 5, shuffle=True, num_workers=0, seed=3)


@target(
    lambda: {"state.json": json.dumps(loader().state_dict()).encode()}, cases=2000, allowed=(FastDataError, ValueError, TypeError)
)
def loader_state(case: Case) -> Any:
    """A state is JSON, so it may come from anywhere. After it is refused, the Loader goes on; after it is taken, it delivers."""
    try:
        state = json.loads(case.data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict):
        return None
    loader().load_state_dict(state)
    return next(iter(loader())).ids


def run_commands(name: str, case: Case) -> Any:
    """`fastdata info` and `fastdata export`: whatever goes wrong is one line, as `run` in cli.py makes it, and no traceback."""
    path = damaged_store(STORES[name], case, fitting=True)
    out = Path(tempfile.mkdtemp(dir=case.folder))
    stream = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = io.TextIOWrapper(io.BytesIO(), errors="surrogateescape")
    try:
        for arguments in (["info", path], ["info", path, "--json"], ["export", path, out / "out"]):
            with contextlib.suppress(FastDataError, ValueError, OSError, click.ClickException, SystemExit):
                cli([str(part) for part in arguments], prog_name="fastdata", standalone_mode=False)
    finally:
        sys.stdout, sys.stderr = stream
        restore(STORES[name], path, case.name)
        shutil.rmtree(out)


for _name in ("jpeg", "several", "tokens", "arrays"):
    TARGETS[f"command_{_name}"] = Target(partial(run_commands, _name), partial(files_of, STORES[_name]), cases=150)
