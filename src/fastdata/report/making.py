"""The sections on how a store was made, and on the inputs that it was not made of."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

from fastdata.options import as_option, options_of
from fastdata.report.charts import bars, many, number
from fastdata.report.html import Child, join, tag
from fastdata.report.page import Section, listing
from fastdata.report.pictures import Picture
from fastdata.store.info import CHECKSUM
from fastdata.store.store import Store
from fastdata.words import human_bytes

__all__ = ["making_section", "reject_sections"]

MOST = 100  # rejects that are listed
LARGEST = 64 << 20  # bytes of a rejected file that may be read for its picture


def reject_sections(store: Store, source: Path | None) -> list[Section]:
    """Return the section on rejects, if there are any. source: the folder that their names are relative to."""
    rejects = store.rejects()
    if not rejects:
        return []
    counts = Counter(reject["reason"] for reject in rejects)
    shown = [rejects[k * len(rejects) // min(len(rejects), MOST)] for k in range(min(len(rejects), MOST))]
    rows, pictured = [], 0
    for reject in shown:
        picture = _picture(store, source, reject["name"])
        pictured += picture is not None
        rows.append((reject["name"], reject["reason"], reject["detail"], picture and picture.html()))
    if source is None:
        said = "Their files were not looked for: give --source, the folder that was prepared, for pictures."
    else:
        said = f"{many(pictured, 'file')} of these could be shown from {source}."
    few = f"{MOST} of {number(len(rejects))}, evenly spaced" if len(rejects) > MOST else f"All {number(len(rejects))}"
    head: list[Child] = [tag("p", f"{few}. {said if pictured or source is None else ''}", class_="soft")]
    table = listing(("Input", "Reason", "Detail", "Picture" if pictured else ""), rows)
    body = join(bars(counts.most_common(), what="rejected inputs by reason"), head, table)
    findings = (f"{many(len(rejects), 'input', 'was')} rejected: {_listed(counts)}.",)
    return [Section("rejects", "Rejects", body, {"reasons": dict(counts.most_common()), "pictured": pictured}, findings)]


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in counts.most_common(5)) + (", ..." if len(counts) > 5 else "")


def _picture(store: Store, source: Path | None, name: str) -> Picture | None:
    """Return the picture of an input, if it is a file below `source` that its kind can draw."""
    if source is None or "\0" in name:
        return None
    path = (source / name).resolve()
    if not path.is_relative_to(source.resolve()):  # the names in a store are not to be trusted
        return None
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        pixels = store.kind.picture(path.read_bytes())
    except OSError:
        return None
    return None if pixels is None else Picture(pixels, f"the rejected input {name}")


def making_section(store: Store, name: str, facts: dict[str, Any]) -> Section:
    """Return the section on how the store of this name was made. facts: those of `store_facts`."""
    command = _command(store, name)
    options = [(name, _shown(value)) for name, value in store.kind.typed(facts["options"]).items()]
    files = [
        (
            variant["name"],
            variant["codec"],
            f"{variant['channels']} × {variant['dtype']}",
            variant["shards"],
            human_bytes(variant["file_bytes"]),
        )
        for variant in facts["variants"]
    ]
    memory = [human_bytes(one["bytes"]) + (f" at size {one['size']}" if one["size"] else "") for one in facts["memory"]]
    identity = [("format", facts["format"]), ("fingerprint", facts["fingerprint"]), *facts["libraries"].items()]
    body = join(
        tag("p", "The command, as far as the store knows it. Options that name files or folders, such as --labels, are not kept."),
        tag("pre", command),
        listing(("Folder", "Codec", "Values", "Shards", "Bytes"), files, numbers=(3, 4)),
        tag("p", f"RAMDataset takes this much memory: {', '.join(memory)}.") if memory else None,
        tag(
            "div",
            tag("div", tag("h3", "Options"), listing(("", ""), options)),
            tag("div", tag("h3", "Made with"), listing(("", ""), identity)),
            class_="columns",
        ),
    )
    return Section("making", "How it was made", body, {"command": command, "libraries": facts["libraries"]})


def _command(store: Store, out: str) -> str:
    """Return the command that makes such a store, as far as it knows."""
    known = options_of(store.kind.options)
    parts = ["fastdata-prep", "SOURCE", out]
    for name, value in store.kind.typed(store.manifest.options).items():
        key = name.replace("-", "_")
        if name in store.kind.untyped or key not in known:
            continue
        default = known[key].default
        values = [one for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]
        if not values or value in (None, "", False) or values == _as_list(default):
            continue
        if value is True:
            parts.append(as_option(key))
        elif known[key].metadata["said"].several:
            parts += [part for one in values for part in (as_option(key), _typed(one))]
        else:
            parts += [as_option(key), ",".join(map(_typed, values))]
    return shlex.join(parts)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _typed(value: Any) -> str:
    return "FILE" if CHECKSUM.fullmatch(str(value)) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join("own" if one is None else str(one) for one in value) or "none"
    return "not set" if value is None else {"True": "yes", "False": "no"}.get(str(value), str(value))
