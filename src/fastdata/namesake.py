"""Warns of another project called fastdata on PyPI, whose files would be installed among this package's."""

from __future__ import annotations

import os
import sys

from fastdata.errors import warn_user

__all__ = ["warn_of_namesake"]

RECORDS = (".dist-info", ".egg-info")


def warn_of_namesake() -> None:
    """Warn if a distribution called fastdata is installed; this one is fastdata-torch.

    Listing folders takes a third of a millisecond; importing importlib.metadata alone takes ten.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208  pathlib is slower
        except OSError:  # a zip file, or missing
            continue
        for name in names:
            if name.startswith("fastdata-") and name.endswith(RECORDS):
                warn_user(
                    f"a distribution called fastdata is installed too ({os.path.join(folder, name)}), another project's or an "
                    "earlier version of this one, and may have replaced files of fastdata-torch: pip uninstall fastdata, then "
                    "pip install --force-reinstall fastdata-torch"
                )
                return
