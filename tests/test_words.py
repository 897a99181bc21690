"""Names of the package follow CONTRIBUTING's table of words."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/fastdata"
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
VAGUE = re.compile(r"(MOST|LEAST|FEW|NEAR(LY)?|WORTH|SEEN|HELD)(_|$)")
NO_CLASSES = {"Place", "Made", "Done", "Work", "Part", "Several", "Held", "Half", "Apart", "Feed", "Kind", "Home"}


def test_no_class_has_the_name_of_another_or_none_that_says_what_it_is() -> None:
    names = [node.name.lstrip("_") for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert NO_CLASSES.isdisjoint(names)


def test_constants_name_what_they_limit() -> None:
    for path, tree in TREES.items():
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
            for target in targets:
                assert not (isinstance(target, ast.Name) and VAGUE.match(target.id)), f"{path}: {target.id}"
