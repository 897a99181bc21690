"""The result of a diagnosis."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from fastdata.diagnosis.findings import Findings
from fastdata.diagnosis.plot import draw
from fastdata.diagnosis.report import report_lines

__all__ = ["Diagnosis"]


class Diagnosis(Findings):
    """The findings of `doctor`; ``str(...)`` is a report."""

    def __str__(self) -> str:
        return "\n".join(report_lines(self))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"rate": self.rate}

    def to_json(self) -> str:
        """Return all numbers as JSON."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw where a sample's time goes, and the rate for each number of workers, as a PNG.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        draw(self, path)
