"""Types that signatures share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
StrPath = str | os.PathLike[str]
