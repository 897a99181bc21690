"""What a Trainer costs beside a loop written by hand, in microseconds of CPU time for each update.

    python benchmarks/trainer.py [--rounds 101] [--device cpu]

The model is so small that it takes hardly any time. Both sides take turns in rounds of 50 updates and a line of the log; it prints
medians, and between which differences half of the rounds lie. In the end both have the same weights, bit for bit, for each row.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

from fastdata import Trainer

ROWS = {
    "as it is": {},
    "clip_norm=1.0": {"clip_norm": 1.0},
    "ema=0.99": {"ema": 0.99},
    "accumulate=4": {"accumulate": 4},
    "all three": {"clip_norm": 1.0, "ema": 0.99, "accumulate": 4},
}
LOG = 50
Batches = list[tuple[Tensor, Tensor]]


class Plain:
    """The loop that people write. It does not look whether gradients are finite."""

    def __init__(self, model: nn.Module, clip_norm: float | None = None, ema: float | None = None, accumulate: int = 1) -> None:
        self.model, self.clip_norm, self.decay, self.accumulate = model, clip_norm, ema, accumulate
        self.optimizer = optimizer(model.parameters())
        self.average = None if ema is None else copy.deepcopy(model)
        self.losses: list[float] = []

    def epoch(self, batches: Batches) -> None:
        device = next(self.model.parameters()).device
        total = torch.zeros((), device=device)
        for k, (x, y) in enumerate(batches, 1):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = cross_entropy(self.model(x), y, reduction="sum") / len(y)
            (loss / self.accumulate if self.accumulate > 1 else loss).backward()
            total += loss.detach()
            if k % self.accumulate:
                continue
            if self.clip_norm is not None:
                clip_grad_norm_(self.model.parameters(), self.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.average is not None:
                with torch.no_grad():
                    for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                        mine.add_((theirs - mine) * (1 - self.decay))
            if k // self.accumulate % LOG == 0:
                self.losses.append(float(total) / LOG / self.accumulate)
                total.zero_()


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return cross_entropy(model(x), y, reduction="none")


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)


def compare(switches: dict[str, Any], given: argparse.Namespace) -> tuple[float, float, list[float]]:
    """Microseconds an update of a plain loop and of a Trainer, medians, and the differences of the rounds."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).to(given.device)
    plain = Plain(copy.deepcopy(model), **switches)
    trainer = Trainer(model, loss_fn, optimizer(model.parameters()), device=given.device, log_every=LOG, **switches)
    count = LOG * switches.get("accumulate", 1)  # batches of a round
    batches = [(torch.randn(8, 16), torch.randint(0, 4, (8,))) for _ in range(count)]
    updates = trainer.steps(batches * (given.rounds + 5))
    times: list[list[float]] = [[], []]
    for turn in range(given.rounds + 5):  # the first are not counted
        for k in (0, 1) if turn % 2 else (1, 0):
            started = time.process_time()
            plain.epoch(batches) if k == 0 else [next(updates) for _ in range(LOG)]
            if given.device != "cpu":
                torch.cuda.synchronize()
            times[k].append((time.process_time() - started) / LOG * 1e6)
    pairs = [(plain.model, trainer.model), *([(plain.average, trainer.ema.model)] if trainer.ema else [])]
    for mine, theirs in pairs:
        for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b), "the two loops made different weights"
    rounds = [column[5:] for column in times]
    return *(statistics.median(column) for column in rounds), [b - a for a, b in zip(*rounds, strict=True)]  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {given.device}, {given.rounds} rounds of {LOG} updates; us of CPU time an update")
    print("| switches | plain loop | Trainer | difference (half of the rounds) |\n|---|--:|--:|--:|")
    for name, switches in ROWS.items():
        plain, ours, differences = compare(switches, given)
        low, _, high = statistics.quantiles(differences, n=4)
        spread = f"{low:.0f} to {high:.0f}"
        print(f"| {name} | {plain:.0f} | {ours:.0f} | {statistics.median(differences):.0f} ({spread}) |", flush=True)


if __name__ == "__main__":
    main()
