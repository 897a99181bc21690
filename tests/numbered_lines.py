"""A fifth kind of data, as another package would add it: lines of text with a number each, such as "3.5<tab>a fine day"."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xxhash

from fastdata import kinds
from fastdata.options import option
from fastdata.prepare.plan import make_plan
from fastdata.sources.inputs import Source, SourceList
from fastdata.store.format import Form, Labels, sample_columns
from fastdata.store.store import Store


@dataclass(frozen=True)
class LineOptions:
    """Lines"""

    least_chars: int = option("Reject shorter lines.", 1)


@dataclass(frozen=True)
class LineRecipe:
    kind: ClassVar[str] = "lines"
    unit: ClassVar[str] = "img"
    libraries: ClassVar[tuple[str, ...]] = ()

    least_chars: int

    def variants(self) -> list[tuple[str, int | None, Form]]:
        return [("lines", None, Form("utf-8", 1, "uint8"))]


class LineDataset:
    """Emits (text, number)."""

    def __init__(self, path: Any) -> None:
        self._store = Store(path, "lines")
        self._reader = self._store.reader(self._store.variant())

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, index: int) -> tuple[str, float]:
        return bytes(self._reader.get(index)).decode(), float(self._store.samples["label"][index, 0])


class LineKind(kinds.Kind):
    name, says, item, reader = "lines", "lines", "line", "LineDataset"
    options = LineOptions
    labels = ("vector",)
    checksums = True
    exports = ("tsv",)

    def claims(self, source: Any, given: Mapping[str, Any]) -> bool:
        return Path(source).is_dir() and any(Path(source).glob("*.lines"))

    def plan(self, source: Any, out: Path, options: LineOptions, limit: int | None) -> kinds.Planned:
        found = [
            Source(f"{path.name}:{k}", (float(line.split("\t")[0]),), len(line), place=("lines", path.name, k))
            for path in sorted(Path(source).glob("*.lines"))
            for k, line in enumerate(path.read_text().splitlines())
        ]
        listed = SourceList(Path(source), Labels("vector", ("number",)), found)
        return kinds.Planned(make_plan(listed, LineRecipe(options.least_chars), limit), notes=("labels: the numbers",))

    def make_shard(self, job: Any, task: Any, writers: Any, progress: Any) -> dict[str, Any]:
        rows, rejects = [], []
        for place, source in enumerate(task.sources):
            progress.at(place)
            data = self._read(Path(job.root), source).encode()
            if short := len(data) < job.options.least_chars:
                said = {"reason": "short", "detail": f"it has {len(data)} bytes"}
                rejects.append({"source": task.first + place, "name": source.name, **said})
            else:
                writers.append([data])
                rows.append([task.first + place, len(data), xxhash.xxh3_64_intdigest(data)])
            progress.add(done=1, rejected=int(short))
        return {"rows": rows, "rejects": rejects}

    def _read(self, root: Path, source: Source) -> str:
        _, name, k = source.place
        return (root / str(name)).read_text().splitlines()[int(k)].split("\t")[1]

    def kept(self, table: dict[str, Any]) -> int:
        return len(table["rows"])

    def tables(self, plan: Any, found: list[dict[str, Any]]) -> kinds.Tables:
        rows = [row for table in found for row in table["rows"]]
        samples = np.zeros(len(rows), self.samples_dtype(plan.labels, ["lines"]))
        for column, values in zip(("source", "lines/bytes", "lines/xxh3"), zip(*rows, strict=True), strict=True):
            samples[column] = values
        samples["label"] = [plan.sources[row[0]].label for row in rows]
        return kinds.Tables(samples, (plan.sources[row[0]].name for row in rows), tuple(map(self.kept, found)))

    def probe(self, plan: Any, roots: tuple[Path, Path]) -> kinds.Probed:
        sizes = [len(self._read(roots[0], source).encode()) for source in plan.sources]
        return kinds.Probed(len(sizes), len(sizes), 1.0, sizes, Counter())

    def form(self, codec: str, channels: int, dtype: str, *, mask: bool) -> Form | None:
        return Form(codec, channels, dtype) if codec == "utf-8" and not mask else None

    def samples_dtype(self, labels: Labels, variants: Iterable[str]) -> np.dtype[Any]:
        return sample_columns(labels, variants, [], [("bytes", "<u8"), ("xxh3", "<u8")])

    def lines(self, facts: dict[str, Any]) -> Iterator[str]:
        yield f"{facts['path']}: {facts['samples']} lines"

    def export(self, store: Any, root: Path, to: str, size: int | None, tick: Callable[[int], None], options: Any) -> int:
        root.mkdir(parents=True)
        data = LineDataset(store.path)
        text = "".join(f"{number}\t{line}\n" for line, number in (data[k] for k in range(len(data))))
        (root / "lines.tsv").write_text(text)
        return len(data)

    def dataset(self, manifest: Any) -> Any:
        return LineDataset


KIND = LineKind()
kinds.register("lines", "numbered_lines")
