"""WebDataset: JPEGs in tar shards, decoded with cv2. It shuffles the shards, and then within a buffer of 1,000 images."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from contestant import Batches, Spec, caption, cv2_sampler, main, read

SHARDS = 16
BUFFER = 1000


def prepare(spec: Spec) -> None:
    Path(spec.store).mkdir()
    with wds.ShardWriter(f"{spec.store}/%03d.tar", maxcount=-(-spec.count // SHARDS), verbose=0) as sink:
        for k, path in enumerate(spec.paths()):
            sink.write({"__key__": f"{k:06d}", "jpg": read(path)} | ({"npy": caption(k)} if spec.captions else {}))


class Render:
    """A sample of the tar becomes (pixels, number)."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.sample = spec, None

    def __call__(self, item: dict[str, Any]) -> Any:
        self.sample = self.sample or cv2_sampler(self.spec)
        number = int(item["__key__"])
        image = self.sample(item["jpg"], number)
        return (image, number, np.load(io.BytesIO(item["npy"]))) if self.spec.captions else (image, number)


def make(spec: Spec) -> Batches:
    torch.manual_seed(spec.seed)
    shards = sorted(map(str, Path(spec.store).glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), detshuffle=True, seed=spec.seed).shuffle(BUFFER)
    dataset = dataset.map(Render(spec)).batched(spec.batch)
    loader: Any = wds.WebLoader(dataset, batch_size=None, num_workers=spec.workers, persistent_workers=True)
    return lambda: iter(loader)


if __name__ == "__main__":
    main(make, ("webdataset", "torch", "opencv-python-headless"), prepare)
