"""The start of the commands, before the modules that they need are imported."""

from __future__ import annotations

import gc
import os
import sys


def main(command: str = "cli", name: str = "fastdata") -> None:
    """Run the `fastdata` command.

    It begins again in Python's UTF-8 mode if file names have another encoding: a store has the same bytes under every locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    gc.set_threshold(50_000)  # what is imported makes many objects and no garbage
    from fastdata import cli

    try:
        cli.run(getattr(cli, command), name)
    finally:
        gc.freeze()  # or Python would look for garbage in all of them once more, which takes 30 ms


def prep_main() -> None:
    """Run the `fastdata-prep` command, which is the same as `fastdata prep`."""
    main("prep", "fastdata-prep")
