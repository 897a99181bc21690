"""Tokenizing: fastdata-prep beside the tokenizer library's own batch call, on the same cores. Writes nothing.

python benchmarks/tokenizing.py [--mb 200] [--rounds 3] [TEXT]

TEXT (tinyshakespeare.txt, say) is cut into speeches, which are repeated and shuffled to --mb megabytes of JSON lines. The library
reads and tokenizes the same in one process, by its batch call with threads of its own, and keeps the ids as arrays;
fastdata-prep also checks, packs and stores them. Both from the start of the process to its end; the tokens are compared once.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fastdata.bench.harness import machine
from fastdata.store.store import Store

LIBRARY = """
import json, sys
import numpy as np
from tokenizers import Tokenizer
tokenizer, found, batch = Tokenizer.from_file(sys.argv[2]), [], []
def encode():
    found.extend(np.array(e.ids, np.uint16) for e in tokenizer.encode_batch_fast(batch, add_special_tokens=False))
    batch.clear()
with open(sys.argv[1]) as file:
    for line in file:
        batch.append(json.loads(line)["text"])
        if len(batch) == 10000:
            encode()
encode()
np.concatenate(found)[:1000000].tofile(sys.argv[3])
print(sum(map(len, found)))
"""


def write_corpus(path: Path, text: str, size: int) -> None:
    speeches, rng, written = text.split("\n\n"), random.Random(0), 0
    with path.open("w") as file:
        while written < size:
            rng.shuffle(speeches)
            for speech in speeches:
                written += file.write(json.dumps({"text": speech}) + "\n")
                if written >= size:
                    return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?", default=Path("../shared/data/text/tinyshakespeare.txt"))
    parser.add_argument("--mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_corpus(root / "corpus.jsonl", given.text.read_text(), given.mb * 1_000_000)
        prep = [Path(sys.executable).parent / "fastdata-prep", "--progress", "off"]
        subprocess.run(
            [*prep, given.text, root / "bpe.fds", "--train-bpe", "4096", "--split-on", "\n\n"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        tokenizer = root / "bpe.fds/tokenizer.json"
        commands = {
            "the library's encode_batch_fast": [
                sys.executable,
                "-c",
                LIBRARY,
                root / "corpus.jsonl",
                tokenizer,
                root / "library.bin",
            ],
            "fastdata-prep": [
                *prep,
                root / "corpus.jsonl",
                root / "o.fds",
                "--tokenizer",
                tokenizer,
                "--end-token",
                "none",
                "--overwrite",
            ],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(given.rounds):
            for name, command in commands.items():
                subprocess.run(["rm", "-rf", root / "o.fds"], check=True)
                started = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                seconds[name].append(time.perf_counter() - started)
        store = Store(root / "o.fds", "tokens")
        reader = store.reader(store.manifest.variants[0])
        first = np.concatenate([np.frombuffer(reader.get(k), "<u2") for k in (0, 1)])
        theirs = np.fromfile(root / "library.bin", np.uint16)
        assert np.array_equal(first[:500_000], theirs[:500_000]), "the tokens differ"
        size = (root / "corpus.jsonl").stat().st_size / 1e6
    library, ours = seconds.values()
    for name, found in seconds.items():
        print(f"{name}: {size / statistics.median(found):.2f} MB/s, {', '.join(f'{s:.1f}' for s in found)} s")
    ratio = statistics.median(a / b for a, b in zip(library, ours, strict=True))
    print(f"rate of fastdata-prep : the library's, median of the rounds: {ratio:.2f}")
    print(f"{len(store):,} documents, {size:.0f} MB; {machine()['cpu']}, {machine()['cores']} cores")


if __name__ == "__main__":
    main()
