"""Where the commands begin, before the modules that they need are imported."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["main", "prep_main"]


def main() -> None:
    """Run the `fastdata` command."""
    _use_utf8()
    with _ctrl_c_in_one_line():
        from fastdata.cli import main
    main()


def prep_main() -> None:
    """Run the `fastdata-prep` command, which is the same as `fastdata prep`."""
    _use_utf8()
    with _ctrl_c_in_one_line():
        from fastdata.cli import prep_main
    prep_main()


def _use_utf8() -> None:
    """Begin again in Python's UTF-8 mode if file names have another encoding: a store has the same bytes under every locale."""
    if sys.getfilesystemencoding() != "utf-8" and "utf8" not in sys._xoptions:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


@contextmanager
def _ctrl_c_in_one_line() -> Iterator[None]:
    """At Ctrl-C, end this process at once: an exception would end as a traceback, from the middle of an import."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # such as ignored, in the background
        yield
        return
    signal.signal(signal.SIGINT, _end)
    yield
    signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: object) -> None:
    os.write(2, b"\ninterrupted\n")
    os._exit(130)
