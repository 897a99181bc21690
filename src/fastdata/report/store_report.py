"""The report of a store of any kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fastdata.report.charts import number
from fastdata.report.labels import label_sections
from fastdata.report.making import making_section, reject_sections
from fastdata.report.page import Section, page
from fastdata.store.info import store_facts
from fastdata.store.store import Store
from fastdata.words import human_bytes

__all__ = ["store_report"]


def store_report(path: str | os.PathLike[str], source: str | os.PathLike[str] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the page of a store, and its numbers as JSON values: for each section, by its key, its facts.

    Args:
        path: the store.
        source: the folder that was prepared, for pictures of rejects. None: the store's path without its ending, if there is one.
    """
    store = Store(path, kind=None)
    facts = store_facts(store)
    whole = Path(os.path.abspath(path))
    name, near = whole.name, whole.with_suffix("")
    found = Path(source) if source is not None else near if near != whole and near.is_dir() else None
    sections: list[Section] = list(store.kind.report(store)) if len(store) else []
    first = [section for section in sections if section.key == "samples"]
    sections = [
        *first,
        *label_sections(store, facts["labels"]),
        *(section for section in sections if section not in first),
        *reject_sections(store, found),
        making_section(store, name, facts),
    ]
    numbers = [(number(len(store)), f"{store.kind.item}s"), *(tile for section in sections for tile in section.tiles)]
    numbers.append((human_bytes(sum(variant["file_bytes"] for variant in facts["variants"])), "on disk"))
    numbers.append((number(sum(facts["rejected"].values())), "rejected"))
    said = f"{store.kind.described(store.manifest)} · {os.fspath(path)}"
    values = {section.key: {**section.facts, "findings": list(section.findings)} for section in sections}
    return page(name, said, numbers, sections), {"store": str(store.path), "samples": len(store), "sections": values}
