"""One work: its contestants are made, checked and started, and take turns. Whoever fails is left out, and it is said why."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import checks
from entries import OURS, Entry, Work
from inputs import Inputs, program
from process import Contestant, Failed
from report import lines_of, row_of

from fastdata.bench.harness import Run, summarize

Pythons = dict[str | None, Path]  # by environment
Left = dict[str, str]  # who was left out, and why


def contest(work: Work, entries: list[Entry], pythons: Pythons, left: Left, inputs: Inputs, rounds: int) -> dict[str, Any]:
    """The result of a work. `left`: who has no environment."""
    print(f"\n{work.name}: {work.title}", flush=True)
    taking = {entry.name: entry for entry in entries if entry.does(work)}
    left = {name: why for name, why in left.items() if name in taking}
    about: dict[str, dict[str, Any]] = {}
    running: dict[str, Contestant] = {}
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=inputs.work) as scratch:
        for name in [name for name in taking if name not in left]:
            with _left_out(name, left):
                folder = Path(scratch) / f"{len(running)}"
                folder.mkdir(exist_ok=True)
                running[name], about[name] = _started(taking[name], work, inputs, pythons, folder, stack.callback)
        sizes = None if work.raw else inputs.same_pixels(work.size)
        runs = _rounds(work, taking, {name: one for name, one in running.items() if name not in left}, left, inputs, rounds)
        rows = [
            row_of(taking[row["name"]], work, running[row["name"]], row | about[row["name"]])
            for row in summarize(runs, reference=OURS)
        ]
    missing = [env for env in work.needed if not any(taking[name].env == env for name in runs)]
    found = {"name": work.name, "title": work.title, "counts": not missing, "missing": missing, "bytes_per_image": sizes}
    result = found | {"results": rows, "left_out": left}
    print("\n".join(lines_of(result)), flush=True)
    return result


class _left_out:
    """Who fails inside is left out; but not fastdata, without which there are no ratios."""

    def __init__(self, name: str, left: Left) -> None:
        self.name, self.left = name, left

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Failed) or self.name == OURS:
            return False
        self.left[self.name] = str(error)
        print(f"LEFT OUT {self.name}: {error}", flush=True)
        return True


def _started(
    entry: Entry, work: Work, inputs: Inputs, pythons: Pythons, folder: Path, at_end: Callable[..., Any]
) -> tuple[Contestant, dict[str, Any]]:
    """A contestant that has made its uncounted epoch, and what is known of it beforehand."""
    python = pythons[entry.env]
    spec = inputs.make(entry, work, python)
    compared = checks.pixels(entry, work, spec, python, folder)
    written = folder / "serve.json"
    written.write_text(json.dumps(asdict(spec)))
    contestant = Contestant(python, program(entry), written, written.with_suffix(".log"))
    at_end(contestant.close)
    first = contestant.warm_up()
    if entry.kind != "limit":
        checks.reply(first, inputs.count, captions=entry.says_captions(work))
    said = f", {compared['median']:.1f} dB PSNR to Pillow on {compared['images']} images" if compared else ""
    print(f"  {entry.name}: started in {contestant.start_s:.1f} s{said}", flush=True)
    return contestant, {"psnr": compared, "bytes_per_image": inputs.bytes_per_image(entry, spec)}


def _rounds(
    work: Work, taking: dict[str, Entry], running: dict[str, Contestant], left: Left, inputs: Inputs, rounds: int
) -> dict[str, list[Run]]:
    """The counted epochs of those that get through all rounds."""
    runs: dict[str, list[Run]] = {name: [] for name in running}
    for number in range(rounds):
        print(f"  round {number + 1} of {rounds}", flush=True)
        for name in [name for name in running if name not in left]:
            with _left_out(name, left):
                runs[name].append(running[name].measure())
                if taking[name].kind != "limit":
                    checks.reply(running[name].replies[-1], inputs.count, captions=taking[name].says_captions(work))
    return {name: done for name, done in runs.items() if name not in left}
