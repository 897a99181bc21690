"""MosaicML Streaming: JPEGs in MDS shards, decoded with cv2, under torch's DataLoader."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

for name in ("multimodal", "text", "vision"):  # ready-made datasets that need torchvision; nothing of them is used here
    sys.modules[f"streaming.{name}"] = ModuleType(f"streaming.{name}")

from contestant import TOKENS, Batches, Spec, caption, cv2_sampler, main, read  # noqa: E402
from streaming import MDSWriter, StreamingDataset  # noqa: E402
from streaming.base.util import clean_stale_shared_memory  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402


def prepare(spec: Spec) -> None:
    tokens = {"tokens": f"ndarray:uint16:{TOKENS}"} if spec.captions else {}
    with MDSWriter(out=spec.store, columns={"number": "int", "image": "bytes", **tokens}) as writer:
        for k, path in enumerate(spec.paths()):
            writer.write({"number": k, "image": read(path)} | ({"tokens": caption(k)} if spec.captions else {}))


class Images(StreamingDataset):
    def __init__(self, spec: Spec) -> None:
        super().__init__(local=spec.store, shuffle=True, shuffle_seed=spec.seed, batch_size=spec.batch)
        self.spec, self.sample = spec, None

    def __getitem__(self, at: Any) -> Any:
        self.sample = self.sample or cv2_sampler(self.spec)
        item = super().__getitem__(at)
        image = self.sample(item["image"], item["number"])
        return (image, item["number"], item["tokens"]) if self.spec.captions else (image, item["number"])


def make(spec: Spec) -> Batches:
    clean_stale_shared_memory()
    loader: Any = DataLoader(Images(spec), spec.batch, num_workers=spec.workers, persistent_workers=True)
    return lambda: iter(loader)


if __name__ == "__main__":
    main(make, ("mosaicml-streaming", "torch", "opencv-python-headless"), prepare)
