"""Another project has the name fastdata on PyPI: who installs it puts its files among ours."""

from __future__ import annotations

import os
import sys

from fastdata.errors import warn_user

__all__ = ["warn_of_namesake"]

RECORDS = (".dist-info", ".egg-info")


def warn_of_namesake() -> None:
    """Warn if a distribution called fastdata is installed; ours is fastdata-torch.

    This lists folders, in a third of a millisecond: importlib.metadata alone takes ten to import.
    """
    for folder in sys.path:
        try:
            names = os.listdir(folder or ".")  # noqa: PTH208  pathlib is slower
        except OSError:  # a zip file, or nothing at all
            continue
        for name in names:
            if name.startswith("fastdata-") and name.endswith(RECORDS):
                warn_user(
                    f"a distribution called fastdata is installed too ({os.path.join(folder, name)}), another project's or an "
                    "earlier version of this one, and may have replaced files of fastdata-torch: pip uninstall fastdata, then "
                    "pip install --force-reinstall fastdata-torch"
                )
                return
