"""Types that signatures share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np  # which `fastdata --help` does not wait for

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"
StrPath = str | os.PathLike[str]
