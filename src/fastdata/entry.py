"""Where the commands begin, before the modules that they need are imported."""

from __future__ import annotations

import os
import sys

__all__ = ["main", "prep_main"]


def main() -> None:
    """Run the `fastdata` command."""
    _use_utf8()
    from fastdata.cli import main

    main()


def prep_main() -> None:
    """Run the `fastdata-prep` command, which is the same as `fastdata prep`."""
    _use_utf8()
    from fastdata.cli import prep_main

    prep_main()


def _use_utf8() -> None:
    """Begin again in Python's UTF-8 mode if file names have another encoding: a store has the same bytes under every locale."""
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
