"""A ResNet learns to tell images apart, with most switches of the Trainer on the command line.

    python examples/train_images.py TRAIN [TEST]
    python -m torch.distributed.run --nproc-per-node 2 examples/train_images.py TRAIN [TEST]

TRAIN and TEST are stores that fastdata-prep made, or folders with a folder of images for each class, which are prepared first;
without TEST a tenth of TRAIN is held out. As it stands it is made for small images, such as CIFAR-10's; photos want, say,
`--side 224 --augment resized --stem 4 --stages 4 --depth 2`. With `--norm group` any number of ranks and micro-batches gives
what one gives.
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
    """Two convolutions beside a short cut."""

    def __init__(self, channels: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.first, self.second = conv(channels, out, stride, norm), conv(out, out, 1, norm)
        nn.init.zeros_(self.second[1].weight)  # each block begins as its short cut
        self.short = nn.Identity() if channels == out and stride == 1 else conv(channels, out, stride, norm, kernel=1)

    def forward(self, x: Tensor) -> Tensor:
        return (self.short(x) + self.second(self.first(x).relu())).relu()


class ResNet(nn.Module):
    """A stem, stages of blocks, each of half the side and twice the channels of the one before, and one linear layer."""

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
    """A convolution without a bias, which the norm behind it has."""
    layer = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(layer, nn.BatchNorm2d(out) if norm == "batch" else nn.GroupNorm(math.gcd(8, out), out))


def store_of(source: Path, args: argparse.Namespace) -> Path:
    """The store itself, or one made of a folder, by the first rank of this machine."""
    if (source / "manifest.json").is_file():
        return source
    folder = args.dir or Path()
    store = folder / f"{source.name}.fds"
    if int(os.environ.get("LOCAL_RANK", 0)) == 0:
        side = args.side if args.augment == "crop" else math.ceil(args.side * 8 / 7)
        folder.mkdir(parents=True, exist_ok=True)
        made = prep(source, store, size=side, upscale=True, codec="rgb" if side <= 64 else "jpeg")
        print(f"{made.kept} of {made.inputs} images in {store}")
    while not (store / "manifest.json").is_file():  # what is written last
        time.sleep(0.1)
    return store


def datasets(args: argparse.Namespace) -> tuple[Any, Any]:
    """Training images, cropped and flipped at random, and others, cropped in the middle."""
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

    rows = args.batch_size // args.accumulate  # of a micro-batch, on all ranks
    options = {"seed": args.seed, "num_workers": args.workers, "device": args.device if args.device != "cpu" else None}
    with (
        Loader(train, global_batch_size=rows, shuffle=True, drop_last=args.norm == "batch", **options) as batches,
        Loader(test, global_batch_size=rows, **options) as others,
    ):
        trainer = Trainer(
            model,
            loss,
            optimizer,
            scheduler=onecycle(peak_at=0.2),
            metrics={"top1": top1},
            best="top1:max",
            recompute=(BasicBlock,) if args.recompute else (),
            parallelize=shard if args.shard else None,
            cudnn_benchmark=not args.no_cudnn_benchmark,
            resume={"auto": True, "never": False, "require": "require"}[args.resume],
            progress=not args.quiet,
            **{name: getattr(args, name) for name in SWITCHES},
        )
        started, cpu = time.perf_counter(), sum(os.times()[:4])
        results = trainer.fit(batches, others, epochs=args.epochs, max_steps=args.max_steps, eval_every=args.eval_every)
    if trainer.world.rank == 0 and results:
        spent = f"{time.perf_counter() - started:.0f} s, {sum(os.times()[:4]) - cpu:.0f} CPU seconds"
        print(f"top1 {results['top1']:.1%} of {len(test)} images after {trainer.update} updates, in {spent}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def shard(model: nn.Module) -> nn.Module:
    """Each rank keeps a part of every weight."""
    from torch.distributed.fsdp import fully_shard

    for module in model.modules():
        if isinstance(module, BasicBlock):
            fully_shard(module)
    return fully_shard(model)


SWITCHES = (
    *("device", "precision", "accumulate", "clip_norm", "clip_value", "channels_last", "compile", "ema", "dir", "profile"),
    *("tf32", "save_every", "keep_last", "log_every", "tensorboard", "cprofile"),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, switch = parser.add_argument, argparse.BooleanOptionalAction
    add("train", type=Path, metavar="TRAIN")
    add("test", type=Path, metavar="TEST", nargs="?")
    add("--side", type=int, default=32, help="of the images that the network sees")
    add("--augment", choices=("crop", "resized"), default="crop", help="a shifted crop, or one of random area and aspect")
    add("--disk", action="store_true", help="read the store from disk, and not from memory")
    add("--workers", type=int, help="processes that make batches")
    add("--norm", choices=("batch", "group"), default="batch")
    add("--width", type=int, default=64, help="channels of the first stage")
    add("--depth", type=int, default=1, help="blocks of a stage")
    add("--stages", type=int, default=3)
    add("--stem", type=int, choices=(1, 2, 4), default=2, help="what the first layers divide the side by")
    add("--epochs", type=int, default=30)
    add("--max-steps", type=int, metavar="UPDATES")
    add("--eval-every", type=int, metavar="UPDATES")
    add("--batch-size", type=int, default=64, help="of an update: all ranks and micro-batches together")
    add("--optimizer", choices=("sgd", "adamw"), default="sgd")
    add("--lr", type=float, help="the peak of one cycle")
    add("--weight-decay", type=float, default=5e-4)
    add("--label-smoothing", type=float, default=0.1)
    add("--seed", type=int, default=0)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    add("--accumulate", type=int, default=1, metavar="MICRO-BATCHES")
    add("--clip-norm", type=float)
    add("--clip-value", type=float)
    add("--ema", type=float, metavar="DECAY", help="average the weights, and test the averages")
    add("--channels-last", action=switch, default=True)
    add("--compile", action="store_true")
    add("--recompute", action="store_true", help="keep no activations of blocks: less memory, more time")
    add("--shard", action="store_true", help="FSDP: each rank keeps a part of the weights")
    add("--tf32", action=switch)
    add("--no-cudnn-benchmark", action="store_true")
    add("--dir", type=Path, help="for the log, checkpoints and prepared stores; a run that ended goes on from there")
    add("--resume", choices=("auto", "never", "require"), default="auto", help="go on from what is in --dir")
    add("--save-every", type=int, metavar="UPDATES")
    add("--keep-last", type=int, default=3, metavar="CHECKPOINTS")
    add("--log-every", type=int, default=50, metavar="UPDATES")
    add("--tensorboard", action="store_true")
    add("--profile", type=int, metavar="UPDATES", help="say where the time of so many updates goes, and end")
    add("--cprofile", action="store_true")
    add("--quiet", action="store_true")
    args = parser.parse_args()
    if args.batch_size % args.accumulate:
        parser.error(f"--batch-size is {args.batch_size}, which does not make {args.accumulate} micro-batches")
    return args


if __name__ == "__main__":
    main()
