"""Runs a recipe of docs/integrations.md, as a script of its own: python recipes.py HEADING, in a folder with images.fds."""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "integrations.md"


def recipes() -> dict[str, str]:
    """The code of each section, by its heading; several blocks of one section are one script."""
    found = {}
    for section in re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
        if blocks:
            found[section.splitlines()[0]] = "\n".join(blocks)
    return found


if __name__ == "__main__":
    heading = sys.argv[1]
    exec(compile(recipes()[heading], heading, "exec"), {"__name__": "__main__"})
