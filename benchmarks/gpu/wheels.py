"""Installs, beside the packages of a machine without a network, those that it lacks, from a folder of wheels.

    python benchmarks/gpu/wheels.py [FOLDER [TARGET]]      (.whl and build/gpu-site)

What the machine has stays as it is, its torch above all: only packages that it has not come from the folder, without what they
depend on, into a folder that PYTHONPATH then names. `benchmarks/GPU.md` says how to fill the folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import metadata
from pathlib import Path

NEEDED = (
    "numpy",
    "opencv-python-headless",
    "lmdb",
    "simplejpeg",
    "xxhash",
    "msgspec",
    "click",
    "braceexpand",
    "tqdm",
    "pillow",
    "pytest",
    "hypothesis",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(".whl"))
    parser.add_argument("target", type=Path, nargs="?", default=Path("build/gpu-site"))
    folder, target = vars(parser.parse_args()).values()
    sys.path.append(str(target))
    missing = sorted({name for name in map(_name, folder.glob("*.whl")) if not _installed(name)})
    if missing:
        print(f"from {folder}: {', '.join(missing)}", flush=True)
        options = ["--no-index", "--no-deps", "--no-warn-script-location", "--disable-pip-version-check", "--quiet"]
        command = [sys.executable, "-m", "pip", "install", *options, "--find-links", str(folder), "--target", str(target)]
        if subprocess.run([*command, *missing]).returncode:
            print(f"WARNING: pip could not install all of these from {folder}", flush=True)
    for name in NEEDED:
        if not _installed(name):
            print(f"WARNING: {name} is not installed, and {folder} has no wheel of it: benchmarks/GPU.md says how to bring it")


def _name(wheel: Path) -> str:
    return wheel.name.partition("-")[0].replace("_", "-").lower()


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
