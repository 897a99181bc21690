"""Run rounds of kills, and loads, in a process of their own, and count them."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import kills
import kills_remote  # noqa: F401  adds to those of kills
import load
import load_remote  # noqa: F401  adds to those of load

__all__ = ["NAMES", "apart", "lacking", "one_round", "rounds"]

NAMES = (*kills.KILLS, *load.LOADS)


def lacking(name: str) -> str:
    """Return what a round needs that is not installed, or ""."""
    return "obstore" if name.startswith("remote_") and find_spec("obstore") is None else ""


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a function in a fork, and return its dict; {"find": why} if it raises, or its process dies. Its stores go with it."""
    ours, theirs = os.pipe()
    sys.stdout.flush()
    with tempfile.TemporaryDirectory(prefix="fastdata-tests-", ignore_cleanup_errors=True) as folder:
        if not (pid := os.fork()):
            os.close(ours)
            os.environ["FASTDATA_TESTS"] = folder
            try:
                found = work()
            except BaseException as error:  # noqa: BLE001  whatever it is, this copy of the parent has to end here
                found = {"find": f"{type(error).__name__}: {error}", "detail": traceback.format_exc()[-4000:]}
            os.write(theirs, json.dumps(found).encode())
            os._exit(0)
        os.close(theirs)
        with os.fdopen(ours) as answer:
            text = answer.read()
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return json.loads(text) if text else {"find": signal.Signals(-code).name if code < 0 else f"exit code {code}", "detail": ""}


def rounds(name: str, seed: int, first: int, count: int | None, seconds: float, size: float) -> Iterator[dict[str, Any]]:
    """Yield what each round did: its number, `signals` by name or the `count` of a load, and a `find` if it ended wrong."""
    end, number = time.monotonic() + seconds, first
    while time.monotonic() < end if count is None else number < first + count:
        found = apart(lambda number=number: one_round(name, seed, number, size))
        yield {"number": number, **found}
        number += 1
        if name in load.LOADS:
            return


def one_round(name: str, seed: int, number: int, size: float) -> dict[str, Any]:
    """Run a round again from its numbers."""
    if name in load.LOADS:
        return {"count": load.LOADS[name](size)}
    sent = Counter[str]()
    try:
        kills.one(name, seed, number, sent)
    except Exception as error:  # noqa: BLE001  the signals count all the same
        return {"signals": sent, "find": f"{type(error).__name__}: {error}"[:300], "detail": traceback.format_exc()[-4000:]}
    return {"signals": sent}
