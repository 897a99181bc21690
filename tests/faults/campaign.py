"""Attack for hours: python tests/faults/campaign.py [--hours H] [--target NAME ...] [--cases N] [--seed S].

The names are those of targets, of kills (kills.py), and of loads (load.py). Cases run in a child process, which publishes
the number of each before it runs. So whatever ends it, or makes it hang or grow, has a number, and the case can be made again:
--target NAME --seed S --case NUMBER. Counts and finds are kept in build/campaign and added to by later runs. The first run on a
machine goes on from the counts in benchmarks/results/campaign.json.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import mmap
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.modules["campaign"] = sys.modules["__main__"]

import cv2  # noqa: E402
import torch  # noqa: E402

from rounds import NAMES, apart, lacking, one_round, rounds  # noqa: E402
from target import TARGETS, Problem, Target  # noqa: E402

__all__ = ["Outcome", "State", "attack", "load_targets"]

OUT = HERE.parent.parent / "build/campaign"
COMMITTED = HERE.parent.parent / "benchmarks/results/campaign.json"
SILENCE = 30.0  # seconds for one case; more is a hang
GROWTH = 1 << 30  # bytes that a process may grow by
SLICE = 30.0  # seconds for one target before the next has its turn
KEPT = 3  # cases that are kept of each signature
MEMORY = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
FOLDER = "fastdata-faults-"  # the prefix of the folders there, before the number of the process


def load_targets() -> dict[str, Target]:
    """Import all modules of targets."""
    for path in sorted(HERE.glob("target_*.py")):
        importlib.import_module(path.stem)
    return TARGETS


@dataclass
class Outcome:
    """What cases of a target did: their count, seconds, the slowest, and for each signature its count and first numbers."""

    cases: int = 0
    seconds: float = 0.0
    slowest: float = 0.0
    finds: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, seed: int, number: int, problem: Problem) -> None:
        found = self.finds.setdefault(problem.signature, {"count": 0, "cases": []})
        found["count"] += 1
        if len(found["cases"]) < KEPT:
            found["cases"].append([seed, number])
            (OUT / "finds").mkdir(parents=True, exist_ok=True)
            text = f"{problem.signature}\ncampaign.py --target {name} --seed {seed} --case {number}\n\n{problem.detail}\n"
            (OUT / f"finds/{name}-{seed}-{number}.txt").write_text(text, errors="replace")


def attack(target: Target, name: str, seed: int, first: int, count: int | None, seconds: float | None = None) -> Outcome:
    """Run cases in child processes, until there are so many, or so many seconds have passed."""
    outcome = Outcome()
    began = time.monotonic()
    number, last = first, sys.maxsize if count is None else first + count
    target.inputs  # noqa: B018  made once, before the fork
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-", dir=MEMORY) as folder:
        while number < last:
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if left is not None and left <= 0:
                break
            end, problem = _child(target, name, seed, number, last, left, Path(folder) / str(number), outcome)
            if problem is not None:
                outcome.add(name, seed, end, problem)
                end += 1
            elif end == number:
                raise RuntimeError(f"target {name} does nothing")
            number = end
    outcome.cases, outcome.seconds = number - first, time.monotonic() - began
    return outcome


def remove_dead() -> None:
    """Remove the folders that killed campaigns have left in memory."""
    for folder in MEMORY.glob(f"{FOLDER}*-*"):
        owner = folder.name.removeprefix(FOLDER).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _child(
    target: Target, name: str, seed: int, number: int, last: int, seconds: float | None, folder: Path, outcome: Outcome
) -> tuple[int, Problem | None]:
    """Run cases in a child. Returns the number of the next, or of the one that ended the child, and why."""
    shared = mmap.mmap(-1, 8)
    shared[:8] = number.to_bytes(8, "little")
    ours, theirs = os.pipe()
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile() as trace, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks next to threads: those of numpy and torch
        pid = os.fork()
        if not pid:
            os.close(ours)
            _work(target, seed, number, last, seconds, folder, shared, theirs, trace)
        os.close(theirs)
        with os.fdopen(ours) as lines:
            killed = _watch(pid, shared, lines, name, seed, outcome)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        trace.seek(0)
        stack = trace.read().decode(errors="replace")
    shutil.rmtree(folder, ignore_errors=True)
    at = int.from_bytes(shared[:8], "little")
    if killed:
        return at, Problem(killed, stack)
    if code:
        frame = next((line.strip() for line in stack.splitlines() if "/fastdata/" in line), stack[-80:])
        what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return at, Problem(f"{what} in {frame.rpartition('/')[2]}", stack)
    return at, None


def _work(
    target: Target,
    seed: int,
    number: int,
    last: int,
    seconds: float | None,
    folder: Path,
    shared: mmap.mmap,
    out: int,
    trace: Any,
) -> None:
    """Run cases, and report finds and the slowest case as lines of JSON. Never returns."""
    code = 0
    try:
        faulthandler.enable(trace)
        faulthandler.register(signal.SIGUSR1, trace)
        limit = _rss(os.getpid()) + 4 * GROWTH
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0), os.dup2(null, 1), os.dup2(null, 2)  # libraries print about damaged files
        began = time.monotonic()
        now, slowest = began, 0.0
        while number < last and (seconds is None or now - began < seconds):
            shared[:8] = number.to_bytes(8, "little")
            problem = target.attempt(target.case(seed, number, folder))
            before, now = now, time.monotonic()
            if problem is not None:
                os.write(out, json.dumps([number, problem.signature, problem.detail]).encode() + b"\n")
            if now - before > slowest:
                slowest = now - before
                os.write(out, json.dumps([slowest]).encode() + b"\n")
            number += 1
        shared[:8] = number.to_bytes(8, "little")
    except BaseException:  # noqa: BLE001  nothing may go on in this copy of the parent
        trace.write(traceback.format_exc().encode())
        code = 1
    finally:
        trace.flush()
        os._exit(code)


def _watch(pid: int, shared: mmap.mmap, lines: Any, name: str, seed: int, outcome: Outcome) -> str:
    """Take a child's reports until it ends. Kill it if it hangs or grows, and return why; else ""."""
    base, seen, since, killed, text = _rss(pid), b"", time.monotonic(), "", ""
    while True:
        ready, _, _ = select.select([lines], [], [], 0.1)
        if ready:
            part = os.read(lines.fileno(), 1 << 16).decode()
            if not part:
                return killed
            text += part
            *whole, text = text.split("\n")
            for line in whole:
                body = json.loads(line)
                if len(body) == 1:
                    outcome.slowest = max(outcome.slowest, body[0])
                else:
                    outcome.add(name, seed, body[0], Problem(body[1], body[2]))
        if shared[:8] != seen:
            seen, since = shared[:8], time.monotonic()
        grown = _rss(pid) - base
        if not killed and (grown > GROWTH or time.monotonic() - since > SILENCE):
            killed = f"{GROWTH >> 20} MiB of memory" if grown > GROWTH else f"a hang of {SILENCE:.0f} s"
            os.kill(pid, signal.SIGUSR1)
            time.sleep(0.2)
            os.kill(pid, signal.SIGKILL)


def _rss(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


class State:
    """The counts of all campaigns so far, in a file of JSON."""

    def __init__(self, path: Path = OUT / "state.json") -> None:
        self._path = path
        found = next((place for place in (path, COMMITTED) if place.exists()), None)
        self.body: dict[str, Any] = {"targets": {}} if found is None else json.loads(found.read_bytes())

    def next(self, name: str, seed: int) -> int:
        """The first number that no campaign has tried."""
        return int(self.body["targets"].get(name, {}).get("next", {}).get(str(seed), 0))

    def add(self, name: str, seed: int, outcome: Outcome) -> None:
        total = self.body["targets"].setdefault(name, {"cases": 0, "seconds": 0.0, "slowest": 0.0, "finds": {}, "next": {}})
        total["next"][str(seed)] = self.next(name, seed) + outcome.cases
        total["cases"] += outcome.cases
        total["seconds"] = round(total["seconds"] + outcome.seconds, 1)
        total["slowest"] = round(max(total["slowest"], outcome.slowest), 3)
        for signature, found in outcome.finds.items():
            kept = total["finds"].setdefault(signature, {"count": 0, "cases": []})
            kept["count"] += found["count"]
            kept["cases"] = (kept["cases"] + found["cases"])[:KEPT]
        self.save()

    def add_round(self, name: str, seed: int, found: dict[str, Any], seconds: float) -> None:
        """Add a round of kills, or a load."""
        part = self.body.setdefault("rounds", {}).setdefault(
            name, {"rounds": 0, "count": 0, "seconds": 0.0, "signals": {}, "finds": []}
        )
        part["rounds"] += 1
        part["count"] += found.get("count", 0)
        part["seconds"] = round(part["seconds"] + seconds, 1)
        for one, count in found.get("signals", {}).items():
            part["signals"][one] = part["signals"].get(one, 0) + count
        if "find" in found:
            part["finds"].append([seed, found["number"], found["find"]])
        self.save()

    def save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.body, indent=1, sort_keys=True) + "\n")
        temporary.replace(self._path)


def _run_rounds(name: str, arguments: argparse.Namespace, state: State, seconds: float) -> int:
    """Run rounds of kills, or a load, and print and keep what they did. Returns the number of finds."""
    before = 0 if arguments.fresh else state.body.get("rounds", {}).get(name, {}).get("rounds", 0)
    began, wrong, signals = time.monotonic(), 0, Counter[str]()
    number = before
    for found in rounds(name, arguments.seed, before, arguments.cases, seconds, arguments.size):
        number = found["number"] + 1
        signals.update(found.get("signals", {}))
        if not arguments.fresh:
            state.add_round(name, arguments.seed, found, time.monotonic() - began)
        if "find" in found:
            wrong += 1
            print(f"    {name} [{arguments.seed}, {found['number']}] {found['find']}\n{found['detail']}")
        began = time.monotonic()
    print(f"{name:24} {number - before:9,} rounds, {dict(signals)}, {wrong} finds", flush=True)
    return wrong


def _report(name: str, outcome: Outcome) -> Iterator[str]:
    rate = outcome.cases / max(outcome.seconds, 1e-9)
    yield f"{name:24} {outcome.cases:9,} cases  {rate:8,.0f} /s  slowest {outcome.slowest:6.2f} s  {len(outcome.finds)} finds"
    for signature, found in outcome.finds.items():
        yield f"    {found['count']:6} x {signature}  {name} {found['cases'][0]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=None, help="how long")
    parser.add_argument("--target", action="append", help="only these; a * stands for anything")
    parser.add_argument("--cases", type=int, help="of each target, in place of time")
    parser.add_argument("--size", type=float, default=1.0, help="of the loads")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="begin with number 0, and keep no counts")
    parser.add_argument("--case", type=int, help="run this one in this process, and raise what it raises")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    remove_dead()
    wanted = arguments.target
    targets = {} if wanted and {*wanted} <= {*NAMES} else load_targets()  # which need packages that rounds do not
    names = [n for n in (*targets, *NAMES) if not wanted or any(Path(n).match(pattern) for pattern in wanted)]
    for name in filter(lacking, names):
        print(f"{name:24} skipped: {lacking(name)} is not installed", flush=True)
    names = [name for name in names if not lacking(name)]
    if not names:
        parser.error(f"--target is {', '.join(wanted)}: nothing of that name can run here")
    if arguments.case is not None:
        if names[0] in NAMES:
            print(apart(lambda: one_round(names[0], arguments.seed, arguments.case, arguments.size)))
            return 0
        case = targets[names[0]].case(arguments.seed, arguments.case, Path(tempfile.mkdtemp(prefix="faults-")))
        print(f"{case.name}: {len(case.original)} bytes became {len(case.data)}, in {case.folder}")
        (case.folder / "case").write_bytes(case.data)
        print(targets[names[0]].attempt(case) or "nothing wrong")
        return 0
    state, worst = State(), 0
    end = time.monotonic() + 3600 * (arguments.hours or 0)
    while True:
        for name in names:
            seconds = SLICE if arguments.hours is None else min(SLICE, end - time.monotonic())
            if name in NAMES:
                worst += _run_rounds(name, arguments, state, seconds)
            else:
                first = 0 if arguments.fresh else state.next(name, arguments.seed)
                limit = None if arguments.cases else seconds
                outcome = attack(targets[name], name, arguments.seed, first, arguments.cases, limit)
                if not arguments.fresh:
                    state.add(name, arguments.seed, outcome)
                worst += len(outcome.finds)
                print("\n".join(_report(name, outcome)), flush=True)
            if arguments.hours and time.monotonic() > end:
                return int(worst > 0)
        if not arguments.hours:
            return int(worst > 0)


if __name__ == "__main__":
    sys.exit(main())
