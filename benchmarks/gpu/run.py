"""Everything that needs a GPU, in less than nine minutes: the tests that are marked so, then the benchmarks, and a report.

    make gpu                                               installs what is missing from .whl, then runs this
    python benchmarks/gpu/run.py --only copies --only normalize
    python benchmarks/gpu/run.py --device cpu --quick      a rehearsal: does everything run?

Each part is a process of its own, which is ended when its time is over. One that fails is reported, and the others go on; the exit
code is then 1. Writes benchmarks/results/<gpu>-<date>.json and .md, anew after each part.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import torch
from part import add_arguments
from report import document

sys.path.append(str(Path(__file__).resolve().parents[1]))
from recording import machine, write_json, write_markdown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # plugins of others may warn
SAID = 20  # lines of what a program says, when it fails


class Part(NamedTuple):
    """A program, and the seconds that it may take."""

    name: str
    title: str
    limit: float


LIMIT = 520.0  # seconds of everything; each part has a limit of its own, since one may hang
MARKED = re.compile(r"mark\.gpu|on_each_device|\bCUDA\b")  # in the files with such tests
TESTS = Part("tests", "the tests that are marked gpu", 240)
PARTS = (
    Part("inputs", "images cut from photos, as files and as stores", 70),
    Part("copies", "from the Loader's slots to the device", 45),
    Part("normalize", "integers become floats", 95),
    Part("resnet50", "training from JPEG records", 110),
    Part("loaders", "backends of the Loader, and others", 140),
)


def main() -> None:
    args = arguments()
    started, parts = time.monotonic(), chosen(args)
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as scratch:
        work, done = args.work or Path(scratch), list[dict[str, Any]]()
        for part in parts:
            left = args.limit - (time.monotonic() - started)
            print(f"\n{part.name}: {part.title}", flush=True)
            limit = left if args.quick else min(part.limit * max(args.limit / LIMIT, 1), left)  # a rehearsal may be slow
            done.append(run(part, command(part, args, work, Path(scratch)), limit, Path(scratch)))
            print(f"{part.name}: {done[-1]['state']}, {done[-1]['seconds']:.0f} s", flush=True)
            written = write(args, done, work)
            if written is not None and done[-1]["state"] != "ok":
                keep_log(written, part, Path(scratch))
    print("\n" + ("a rehearsal: nothing is kept" if written is None else f"the same in {written.name}.md and .json"))
    sys.exit(any(part["state"] != "ok" for part in done))


def chosen(args: argparse.Namespace) -> list[Part]:
    """What is to run: the inputs always, unless they are not needed; tests on a GPU, or when they are asked for."""
    names = args.only or [*([TESTS.name] if args.device == "cuda" else []), *(part.name for part in PARTS)]
    needs = set(names) - {TESTS.name}
    return [part for part in (TESTS, *PARTS) if part.name in names or (part.name == "inputs" and needs)]


def command(part: Part, args: argparse.Namespace, work: Path, scratch: Path) -> list[str]:
    if part is TESTS:  # modules without such tests may need packages that a machine for this lacks
        files = [str(path) for path in sorted((ROOT / "tests").glob("test_*.py")) if MARKED.search(path.read_text())]
        options = ["-q", "--no-header", "--tb=short", "--durations=15", "--continue-on-collection-errors", "-p", "no:cacheprovider"]
        return [sys.executable, "-m", "pytest", "-m", "gpu", *options, *files]
    options = ["--device", args.device, "--work", str(work), *["--quick"] * args.quick]
    options += [] if args.photos is None else ["--photos", str(args.photos)]
    return [sys.executable, str(HERE / f"{part.name}.py"), *options, "--out", str(scratch / f"{part.name}.json")]


def run(part: Part, line: list[str], limit: float, scratch: Path) -> dict[str, Any]:
    """A part of the report: state is "ok", or what became of it; said, what it said in the end if it failed."""
    found: dict[str, Any] = {"name": part.name, "title": part.title, "seconds": 0.0, "said": "", "result": None}
    if limit <= 0:
        return found | {"state": "not begun, as the time was over"}
    log, out, started = scratch / f"{part.name}.log", scratch / f"{part.name}.json", time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(line, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, env=ENVIRONMENT, start_new_session=True)
        try:
            code = process.wait(limit)
            state = "ok" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            state = f"ended when its {limit:.0f} s were over"
        finally:
            _end(process)
    lines = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
    print("\n".join(lines if state == "ok" and part is not TESTS else lines[-SAID:]), flush=True)
    if part is TESTS and state == "ok" and not re.search(r"\d+ passed", lines[-1]):
        state = "failed, as no test ran"
    said = lines[-1:] if part is TESTS and state == "ok" else lines[-SAID:] * (state != "ok")
    result = json.loads(out.read_text()) if out.exists() else None  # it may have failed after that
    seconds = time.monotonic() - started
    return found | {"state": state, "seconds": seconds, "said": without_paths("\n".join(said)), "result": result}


def _end(process: subprocess.Popen[bytes]) -> None:
    """A program and its processes."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def without_paths(text: str) -> str:
    """Absolute paths cut down to their names: where things lie is the machine's business."""
    return re.sub(r"(?<![\w.])/(?:[^\s/:'\"]+/)+", "", text)


def keep_log(stem: Path, part: Part, scratch: Path) -> None:
    """All that a part said which failed, beside the report."""
    log = scratch / f"{part.name}.log"
    if log.exists():
        with stem.with_name(f"{stem.name}.log").open("a") as file:
            file.write(f"{part.name}\n{without_paths(log.read_text(errors='replace'))}\n")


def write(args: argparse.Namespace, parts: list[dict[str, Any]], work: Path) -> Path | None:
    """The report of the parts so far; None: a rehearsal is not kept, unless it is told where."""
    rehearsal = args.quick or args.device == "cpu"
    if rehearsal and args.out is None:
        return None
    about = work / "about.json"
    inputs = json.loads(about.read_text())["about"] if about.exists() else "none were made."
    found = machine() | {"command": f"python benchmarks/gpu/{machine()['command']}"} | versions()
    name = re.sub(r"[^a-z0-9]+", "-", (found["gpu"] if args.device == "cuda" else "cpu").lower())
    stem = (args.out or HERE.parent / "results") / f"{name}-{datetime.now(timezone.utc):%Y%m%d}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    write_json(f"{stem}.json", {"machine": found, "rehearsal": rehearsal, "inputs": inputs, "parts": parts})
    title = f"fastdata on {found['gpu'] if args.device == 'cuda' else 'a CPU'}"
    write_markdown(f"{stem}.md", title, document(parts, inputs, rehearsal=rehearsal), found)
    return stem


def versions() -> dict[str, Any]:
    """Of CUDA, cuDNN and the driver's card."""
    if not torch.cuda.is_available():
        return {}
    card = torch.cuda.get_device_properties(0)
    return {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "gpu_memory_gb": round(card.total_memory / 1e9)}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    names = [part.name for part in (TESTS, *PARTS)]
    parser.add_argument("--only", action="append", choices=names, help="may repeat; default: all, without the tests on a CPU")
    parser.add_argument("--out", type=Path, help="folder for the report (benchmarks/results)")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds of everything ({LIMIT:.0f})")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here; --device cpu --quick shows whether everything runs")
    return args


if __name__ == "__main__":
    main()
