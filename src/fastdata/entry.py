"""Where the commands begin, before the modules that they need are imported."""

from __future__ import annotations

import os
import sys


def main(command: str = "cli", name: str = "fastdata") -> None:
    """Run the `fastdata` command.

    It begins again in Python's UTF-8 mode if file names have another encoding: a store has the same bytes under every locale.
    """
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    from fastdata import cli

    cli.run(getattr(cli, command), name)


def prep_main() -> None:
    """Run the `fastdata-prep` command, which is the same as `fastdata prep`."""
    main("prep", "fastdata-prep")
