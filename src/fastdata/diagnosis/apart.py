"""Run a function in a child process."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

from fastdata.children import end_with_parent
from fastdata.errors import LoaderError
from fastdata.loader.fetch import ready_to_fork, wrap_error
from fastdata.torch_private import ExceptionWrapper

__all__ = ["apart"]

T = TypeVar("T")


def apart(function: Callable[[], T]) -> T:
    """Return the result of a function, which runs in a forked child. Files that it opens and caches that it fills stay out of this
    process: workers that are forked later would share them, as happens with a dataset that opens an HDF5 file at first use.

    Raises:
        LoaderError: the child died.

    Exceptions of the function are raised here.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_send, args=(sender, function), daemon=True)
    with ready_to_fork():
        process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        raise LoaderError(f"the process that made samples died, with exit code {process.exitcode}") from None
    finally:
        receiver.close()
        process.kill()
        process.join()
    if isinstance(result, ExceptionWrapper):
        result.reraise()  # type: ignore[no-untyped-call]
    return result  # type: ignore[no-any-return]


def _send(sender: Connection, function: Callable[[], object]) -> None:
    end_with_parent()
    try:
        result = function()
    except Exception as error:  # noqa: BLE001  whatever a user's dataset raises, the parent raises it
        result = wrap_error(error, "while making samples")
    sender.send(result)
