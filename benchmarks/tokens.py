"""Batches of tokens: the Loader beside nanoGPT's get_batch, and beside memcpy.

python benchmarks/tokens.py [--quick] [--tokens 1100000000] [--rounds 5]

Block 1,024, batch 64, random rows of uint16 tokens that are in the page cache. Each contestant is a process that is stopped while
another has its turn. Writes benchmarks/results/tokens-DATE.md and .json. Needs 5 GB of disk below TMPDIR.

Of a small text, each pass is a few batches, and beginning one counts: --tokens 1115394, 17 batches a pass, writes
tokens-1115394-DATE.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from process import Contestant
from recording import machine
from token_contestant import STEP, VOCAB

import fastdata

PROGRAM, RESULTS = Path(__file__).parent / "peers/token_contestant.py", Path(__file__).parent / "results"
NAMES = {
    "copy": "memcpy: numpy copies an array larger than the cache",
    "fastdata": "`Loader(TokenDataset)`, store mapped from disk",
    "fastdata-memory": "`Loader(RAMDataset(...))`",
    "fastdata-next": "the same as the first, and `NextToken` on the CPU: int64 inputs and targets",
    "nanogpt": "nanoGPT's `get_batch`: int64 inputs and targets",
}
TOKENS = 1_100_000_000


def write_tokens(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for start in range(0, count, 1 << 24):
            places = np.arange(start, min(start + (1 << 24), count), dtype=np.int64)
            (places * STEP % VOCAB).astype(np.uint16).tofile(file)


def start(name: str, root: Path, spec: dict[str, Any]) -> Contestant:
    """A contestant that has had its first, uncounted turn."""
    path = root / f"{name}.json"
    path.write_text(json.dumps({**spec, "name": name}))
    contestant = Contestant(Path(sys.executable), PROGRAM, path, root / f"{name}.log")
    contestant.ask("epoch")
    return contestant


def report(rates: dict[str, list[float]], given: argparse.Namespace) -> str:
    lines = ["# Batches of tokens", "", f"`{' '.join(['python', 'benchmarks/tokens.py', *sys.argv[1:]])}`", ""]
    lines += [
        *(f"- {name}: {value}" for name, value in machine().items() if name != "command"),
        "",
        f"{given.tokens:,} tokens, block 1,024, batch 64; tokens/s of inputs.",
    ]
    lines += ["Medians over the rounds; ratios are those within a round.", ""]
    lines += ["| | million tokens/s | spread | : nanoGPT | : memcpy |", "|---|--:|--:|--:|--:|"]
    for name, found in sorted(rates.items(), key=lambda item: -statistics.median(item[1])):
        ratios = [statistics.median(a / b for a, b in zip(found, rates[base], strict=True)) for base in ("nanogpt", "copy")]
        spread = f"{min(found) / 1e6:,.0f} - {max(found) / 1e6:,.0f}"
        lines.append(f"| {NAMES[name]} | {statistics.median(found) / 1e6:,.0f} | {spread} | {ratios[0]:.1f} | {ratios[1]:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="at most 50 million tokens, nothing is written")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    if given.quick:
        given.tokens, given.rounds, given.seconds = min(given.tokens, 50_000_000), 1, 0.5
    contestants = dict[str, Contestant]()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_tokens(root / "tokens.bin", given.tokens)
        fastdata.prep(root / "tokens.bin", root / "tokens.fds")
        spec = {"bin": str(root / "tokens.bin"), "store": str(root / "tokens.fds"), "batch": 64, "block": 1024, "workers": 2}
        try:
            for name in NAMES:
                contestants[name] = start(name, root, {**spec, "seconds": given.seconds})
            rates: dict[str, list[float]] = {name: [] for name in contestants}
            for k in range(given.rounds):
                for name, contestant in list(contestants.items()):
                    run = contestant.measure()
                    rates[name].append(run.images / run.seconds)
                    assert contestant.replies[-1]["sound"], f"{name} delivered rows that are no neighbours"
                print(f"round {k + 1}: " + ", ".join(f"{n} {r[-1] / 1e6:,.0f}" for n, r in rates.items()), flush=True)
        finally:
            for contestant in contestants.values():
                contestant.close()
    text = report(rates, given)
    print(text)
    if not given.quick:
        name = f"tokens-{'' if given.tokens == TOKENS else f'{given.tokens}-'}{time.strftime('%Y%m%d')}"
        (RESULTS / f"{name}.md").write_text(text)
        (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "rates": rates}, indent=1))


if __name__ == "__main__":
    main()
