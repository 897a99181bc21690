"""Train a ResNet to classify images, with most switches of the Trainer on the command line.

    python examples/train_images.py TRAIN [TEST]
    python -m torch.distributed.run --nproc-per-node 2 examples/train_images.py TRAIN [TEST]

TRAIN and TEST are stores made by fastdata-prep, or folders with a folder of images for each class, which are prepared first.
Without TEST, a tenth of TRAIN is held out. The defaults suit small images, such as CIFAR-10; for photos try, for example,
`--side 224 --augment resized --stem 4 --stages 4 --depth 2`. With `--norm group`, the result does not depend on the number of
ranks and micro-batches.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fastdata import CenterCrop, GPUNormalize, LMDBDataset, Loader, RAMDataset, RandomCrop, RandomResizedCrop, Trainer, prep
from fastdata.optim import decay_groups, onecycle


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.first, self.second = conv(channels, out, stride, norm), conv(out, out, 1, norm)
        nn.init.zeros_(self.second[1].weight)  # each block begins as its shortcut
        self.shortcut = nn.Identity() if channels == out and stride == 1 else conv(channels, out, stride, norm, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.shortcut(x) + self.second(self.first(x).relu())).relu()


class ResNet(nn.Module):
    """A stem, stages of blocks, and one linear layer. Each stage has half the side and twice the channels of the one before."""

    def __init__(self, classes: int, *, width: int, depth: int, stages: int, stem: int, norm: str) -> None:
        super().__init__()
        self.normalize = GPUNormalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        widths = [width * 2**k for k in range(stages)]
        self.stem = nn.Sequential(conv(3, width, min(stem, 2), norm), nn.ReLU(), *[nn.MaxPool2d(2)] * (stem == 4))
        inputs = [width, *(w for w in widths for _ in range(depth))]
        outputs = inputs[1:]
        strides = [2 if k and k % depth == 0 else 1 for k in range(len(outputs))]
        self.blocks = nn.Sequential(*(BasicBlock(*three, norm) for three in zip(inputs[:-1], outputs, strides, strict=True)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(self.normalize(images))).mean((2, 3)))


def conv(channels: int, out: int, stride: int, norm: str, kernel: int = 3) -> nn.Sequential:
    """Return a convolution and a norm. The convolution has no bias, because the norm has one."""
    layer = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(out) if norm == "batch" else nn.GroupNorm(math.gcd(8, out), out))


def store_of(source: Path, args: argparse.Namespace) -> Path:
    """Return the path of the store. The first rank of this machine makes it if `source` is a folder of images."""
    if (source / "manifest.json").is_file():
        return source
    folder = args.dir or Path()
    store = folder / f"{source.name}.fds"
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        side = args.side if args.augment == "crop" else math.ceil(args.side * 8 / 7)
        folder.mkdir(parents=True, exist_ok=True)
        made = prep(source, store, size=side, codec="rgb" if side <= 64 else "jpeg")
        print(f"{made.kept} of {made.inputs} images in {store}")
    while not (store / "manifest.json").is_file():  # which is written last
        time.sleep(0.1)
    return store


def datasets(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return the training images, cropped and flipped at random, and the test images, cropped at the centre."""
    kind = LMDBDataset if args.disk else RAMDataset
    crop = RandomCrop(args.side, padding=args.side // 8) if args.augment == "crop" else RandomResizedCrop(args.side)
    train = kind(store_of(args.train, args), crop=crop, hflip=0.5)
    if args.test is None:
        train, test = train.split(0.9, seed=0, stratify=True)
        return train, test.with_crop(CenterCrop(args.side))
    test = kind(store_of(args.test, args), crop=CenterCrop(args.side))
    if train.classes != test.classes:
        raise SystemExit(f"{args.train} has the classes {train.classes}, {args.test} has {test.classes}")
    return train, test


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    train, test = datasets(args)
    model = ResNet(len(train.classes), width=args.width, depth=args.depth, stages=args.stages, stem=args.stem, norm=args.norm)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        images, classes = batch
        return cross_entropy(model(images), classes, reduction="none", label_smoothing=args.label_smoothing)

    def top1(scores: Tensor, batch: Any) -> tuple[Tensor, int]:
        return (scores.argmax(1) == batch[1]).sum(), len(batch[1])

    def optimizer(_: Any, fused: bool | None = None) -> torch.optim.Optimizer:
        groups = decay_groups(model, args.weight_decay)
        if args.optimizer == "adamw":
            return torch.optim.AdamW(groups, args.lr or 2e-3, fused=fused)
        return torch.optim.SGD(groups, args.lr or 0.1, momentum=0.9, nesterov=True, fused=fused)

    rows = args.batch_size // args.accumulate  # of a micro-batch, over all ranks
    options = {"seed": args.seed, "num_workers": args.workers, "device": args.device if args.device != "cpu" else None}
    with (
        Loader(train, global_batch_size=rows, shuffle=True, drop_last=args.norm == "batch", **options) as train_loader,
        Loader(test, global_batch_size=rows, **options) as test_loader,
    ):
        trainer = Trainer(
            model,
            loss,
            optimizer,
            scheduler=onecycle(peak_at=0.2),
            metrics={"top1": top1},
            recompute=(BasicBlock,) if args.recompute else (),
            parallelize=shard if args.shard else None,
            cudnn_benchmark=not args.no_cudnn_benchmark,
            resume={"auto": True, "never": False, "require": "require"}[args.resume],
            **{name: getattr(args, name) for name in SWITCHES},
        )
        started, cpu = time.perf_counter(), sum(os.times()[:4])
        results = trainer.fit(train_loader, test_loader, epochs=args.epochs, max_steps=args.max_steps, eval_every=args.eval_every)
    if trainer.world.rank == 0 and results:
        spent = f"{time.perf_counter() - started:.0f} s, {sum(os.times()[:4]) - cpu:.0f} CPU seconds"
        print(f"top1 {results['top1']:.1%} of {len(test)} images after {trainer.update} updates, in {spent}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def shard(model: nn.Module) -> nn.Module:
    """Let each rank keep a part of every weight."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, BasicBlock):
            fully_shard(module)
    return fully_shard(model)


SWITCHES = (
    *("device", "precision", "accumulate", "clip_norm", "channels_last", "compile", "ema", "dir", "profile"),
    *("tf32", "save_every", "keep_last", "log_every"),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("train", type=Path, metavar="TRAIN")
    add("test", type=Path, metavar="TEST", nargs="?")
    add("--side", type=int, default=32, help="side of the network's input, in pixels")
    add("--augment", choices=("crop", "resized"), default="crop", help="a shifted crop, or a crop of random area and aspect ratio")
    add("--disk", action="store_true", help="read the store from disk instead of memory")
    add("--workers", type=int, help="processes that make batches")
    add("--norm", choices=("batch", "group"), default="batch")
    add("--width", type=int, default=64, help="channels of the first stage")
    add("--depth", type=int, default=1, help="blocks per stage")
    add("--stages", type=int, default=3)
    add("--stem", type=int, choices=(1, 2, 4), default=2, help="factor by which the first layers shrink the side")
    add("--epochs", type=int, default=30)
    add("--max-steps", type=int, metavar="UPDATES")
    add("--eval-every", type=int, metavar="UPDATES")
    add("--batch-size", type=int, default=64, help="per update, over all ranks and micro-batches")
    add("--optimizer", choices=("sgd", "adamw"), default="sgd")
    add("--lr", type=float, help="peak learning rate of the cycle")
    add("--weight-decay", type=float, default=5e-4)
    add("--label-smoothing", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--accumulate", type=int, default=1, metavar="MICRO-BATCHES")
    add("--clip-norm", type=float)
    add("--ema", type=float, metavar="DECAY", help="evaluate an average of the weights")
    add("--channels-last", action=switch, default=True)
    add("--compile", action="store_true")
    add("--recompute", action="store_true", help="recompute the activations of blocks: less memory, more time")
    add("--shard", action="store_true", help="FSDP: each rank keeps a part of the weights")
    add("--tf32", action=switch)
    add("--no-cudnn-benchmark", action="store_true")
    add("--dir", type=Path, help="folder of the log, checkpoints and prepared stores; a later run resumes from it")
    add("--resume", choices=("auto", "never", "require"), default="auto", help="whether to resume from --dir")
    add("--save-every", type=int, metavar="UPDATES")
    add("--keep-last", type=int, default=3, metavar="CHECKPOINTS")
    add("--log-every", type=int, default=50, metavar="UPDATES")
    add("--profile", type=int, metavar="UPDATES", help="profile so many updates, then stop")
    args = parser.parse_args()
    if args.batch_size % args.accumulate:
        parser.error(f"--batch-size is {args.batch_size}, which is not a multiple of --accumulate {args.accumulate}")
    return args


if __name__ == "__main__":
    main()
