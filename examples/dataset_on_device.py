"""Training on a data set that fits on the device: its images are one uint8 tensor there, and nothing is decoded in training.

fastdata-prep images/ images.fds --size 64 && python examples/dataset_on_device.py images.fds
"""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Loader


def load(dataset: LMDBDataset, device: str) -> tuple[Tensor, Tensor]:
    """Return all images, uint8 [n, C, H, W], and targets, int64 [n], on the device."""
    with Loader(dataset, 256) as loader:
        images = torch.cat([batch[0] for batch in loader])
    return images.to(device), torch.from_numpy(dataset.targets).to(device)


def epoch(images: Tensor, targets: Tensor, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches with each sample once, in random order, half of the images mirrored. `torch.manual_seed` repeats them."""
    for rows in torch.randperm(len(images), device=images.device).split(batch_size):
        batch, mirrored = images.index_select(0, rows), torch.rand(len(rows), 1, 1, 1, device=images.device) < 0.5
        yield torch.where(mirrored, batch.flip(-1), batch), targets.index_select(0, rows)


if __name__ == "__main__":
    torch.manual_seed(0)
    dataset = LMDBDataset(sys.argv[1], crop=CenterCrop(64))
    images, targets = load(dataset, "cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(GPUNormalize(0.5, 0.25), nn.Flatten(), nn.Linear(3 * 64 * 64, len(dataset.classes))).to(images.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for number in range(10):
        for inputs, wanted in epoch(images, targets, 16):
            loss = nn.functional.cross_entropy(model(inputs), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {number}: loss {loss.item():.3f}")
