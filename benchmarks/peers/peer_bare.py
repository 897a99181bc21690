"""The limit: bare processes that run the code of fastdata's datasets over their share; nothing is shuffled or handed over.

variant: "", or "plain" (antialias=False).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from contestant import Spec

from fastdata import CenterCrop, LMDBDataset, RandomResizedCrop
from fastdata.bench.loaders import Workload, decode_limit

SECONDS = 1.0  # of a measurement: it has no epochs


@dataclass(frozen=True)
class BareTask(Workload):
    """The same work as the contestants': no flip, and centre crops for evaluation."""

    train: bool = True
    antialias: bool = True

    def dataset(self, kind: Any = LMDBDataset) -> Any:
        train = RandomResizedCrop(self.crop, antialias=self.antialias)
        return kind(self.path, crop=train if self.train else CenterCrop(self.crop))


def main() -> None:
    spec = Spec(**json.loads(Path(sys.argv[2]).read_text()))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    task = BareTask(spec.store, None, spec.side, spec.batch, spec.train, antialias=spec.variant != "plain")
    with decode_limit(task, spec.workers) as measure:
        print(json.dumps({"versions": {"fastdata": metadata.version("fastdata-torch")}}), file=replies)
        for _ in sys.stdin:
            run = measure(SECONDS)
            print(json.dumps({"images": run.images, "seconds": run.seconds}), file=replies)


if __name__ == "__main__":
    main()
