"""LitData: JPEGs in chunks, decoded with cv2. It shuffles the chunks, and then within a chunk."""

from __future__ import annotations

from functools import partial
from typing import Any

from contestant import Batches, Spec, cv2_sampler, main, read
from litdata import StreamingDataLoader, StreamingDataset, optimize

CHUNK = "64MB"


def stored(number: int, paths: list[str]) -> dict[str, Any]:
    return {"number": number, "image": read(paths[number])}


def prepare(spec: Spec) -> None:
    optimize(
        fn=partial(stored, paths=spec.paths()),
        inputs=list(range(spec.count)),
        output_dir=spec.store,
        chunk_bytes=CHUNK,
        num_workers=spec.workers,
    )


class Images(StreamingDataset):
    def __init__(self, spec: Spec) -> None:
        super().__init__(spec.store, shuffle=True, seed=spec.seed)
        self.spec, self.sample = spec, None

    def __getitem__(self, index: Any) -> tuple[Any, int]:
        self.sample = self.sample or cv2_sampler(self.spec)
        item = super().__getitem__(index)
        return self.sample(item["image"], item["number"]), item["number"]


def make(spec: Spec) -> Batches:
    loader: Any = StreamingDataLoader(
        Images(spec), batch_size=spec.batch, shuffle=True, num_workers=spec.workers, persistent_workers=True
    )
    return lambda: iter(loader)


if __name__ == "__main__":
    main(make, ("litdata", "torch", "opencv-python-headless"), prepare)
