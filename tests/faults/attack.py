"""Attack one thing: python tests/faults/attack.py NAME [--seed S] [--first N] [--count N] [--size X].

NAME is a target (damaged bytes), a kill (kills.py) or a load (load.py); remote ones need obstore. Each case's number is written
before it runs, and the first that does harm ends the process: a crash or a hang with its stacks, all else with an exception.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import resource
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE.parent), str(HERE)]
    os.environ["OMP_NUM_THREADS"] = "1"

import cv2  # noqa: E402
import torch  # noqa: E402

import kills  # noqa: E402
import kills_remote  # noqa: E402, F401  adds to those of kills
import load  # noqa: E402
import load_remote  # noqa: E402, F401  adds to those of load
from target import TARGETS, Target  # noqa: E402

__all__ = ["load_targets"]

HANG_S = 30
GROWTH = 1 << 30  # bytes that the process may grow by


def load_targets() -> dict[str, Target]:
    """Import all modules of targets."""
    for path in sorted(HERE.glob("target_*.py")):
        importlib.import_module(path.stem)
    return TARGETS


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def damage(name: str, seed: int, first: int, count: int, folder: Path) -> None:
    """Run cases of a target."""
    target = load_targets()[name]
    target.inputs  # noqa: B018  made before the limits
    most = peak() + GROWTH
    resource.setrlimit(resource.RLIMIT_DATA, (most + 3 * GROWTH,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(signal.SIGALRM, chain=True)  # whose default ends the process, also in the midst of C
    for number in range(first, first + count):
        os.write(1, f"{number}\n".encode())
        signal.alarm(HANG_S)
        target.attempt(target.case(seed, number, folder))
        assert peak() < most, f"the process has grown by more than {GROWTH >> 20} MiB"
    signal.alarm(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--size", type=float, default=1.0, help="of a load")
    given = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    faulthandler.enable()
    with tempfile.TemporaryDirectory(prefix="fastdata-tests-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("FASTDATA_TESTS", folder)
        if given.name in load.LOADS:
            load.LOADS[given.name](given.size)
        elif given.name in kills.KILLS:
            for number in range(given.first, given.first + given.count):
                os.write(1, f"{number}\n".encode())
                kills.one(given.name, given.seed, number)
        else:
            damage(given.name, given.seed, given.first, given.count, Path(folder))


if __name__ == "__main__":
    main()
