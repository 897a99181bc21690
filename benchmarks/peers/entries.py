"""Who takes part, and in what."""

from __future__ import annotations

from dataclasses import dataclass

SIDE = 224


@dataclass(frozen=True)
class Work:
    """A row of results: short side of the images, RandomResizedCrop or CenterCrop, JPEG or raw pixels.

    captions: with 77 tokens for each image.
    needed: environments of the peers without which it does not count.
    """

    name: str
    title: str
    size: int
    train: bool
    raw: bool = False
    captions: bool = False
    needed: tuple[str, ...] = ("ffcv", "tfdata", "dali")


@dataclass(frozen=True)
class Entry:
    """A contestant.

    Attributes:
        env: of its packages; None: the environment of fastdata.
        resize: how it makes the crop's pixels, in training.
        kind: "limit", "ours" or "other".
        codec: of fastdata's store; None: jpeg, or rgb for raw pixels.
        only: the one work that it does; None: all that fit.
    """

    name: str
    program: str
    env: str | None
    resize: str
    variant: str = ""
    kind: str = "other"
    train: bool = True
    eval: bool = True
    jpeg: bool = True
    raw: bool = False
    captions: bool = False
    codec: str | None = None
    only: str | None = None

    def does(self, work: Work) -> bool:
        if self.only is not None:
            return work.name == self.only
        images = (self.train if work.train else self.eval) and (self.raw if work.raw else self.jpeg)
        return images and (self.captions or not work.captions)

    def says_captions(self, work: Work) -> bool:
        """Whether its batches have tokens."""
        return work.captions and self.captions


WORKS = (
    Work("train-256", "RandomResizedCrop(224), short side 256", 256, True),
    Work("eval-256", "CenterCrop(224), short side 256", 256, False),
    Work("train-512", "RandomResizedCrop(224), short side 512", 512, True),
    Work("eval-512", "CenterCrop(224), short side 512", 512, False),
    Work("raw-256", "RandomResizedCrop(224), short side 256, raw pixels", 256, True, raw=True, needed=("ffcv",)),
    Work(
        "captions-256",
        "RandomResizedCrop(224), short side 256, with 77 tokens and a label",
        256,
        True,
        captions=True,
        needed=("ffcv", "webdataset", "streaming"),
    ),
)

PLAIN, ANTIALIASED, AREA = "bilinear", "bilinear, antialiased", "area"
OURS = "fastdata"  # what ratios are formed with

ENTRIES = (
    Entry("bare processes", "bare", None, ANTIALIASED, kind="limit", raw=True),
    Entry("bare processes, antialias=False", "bare", None, PLAIN, "plain", kind="limit", eval=False, raw=True),
    Entry(OURS, "fastdata", None, ANTIALIASED, kind="ours", raw=True, captions=True),
    Entry("fastdata, antialias=False", "fastdata", None, PLAIN, "plain", kind="ours", eval=False, raw=True, captions=True),
    Entry("fastdata, images alone", "fastdata", None, ANTIALIASED, "alone", kind="ours", only="captions-256"),
    Entry("fastdata, fast=True", "fastdata", None, ANTIALIASED, "fast", kind="ours"),
    Entry("fastdata, jpeg", "fastdata", None, ANTIALIASED, kind="ours", eval=False, jpeg=False, raw=True, codec="jpeg"),
    Entry("torch DataLoader + cv2", "torch", None, PLAIN, "cv2", captions=True),
    Entry("torch DataLoader + Pillow", "torch", None, ANTIALIASED, "pillow"),
    Entry("tf.data", "tfdata", "tfdata", PLAIN),
    Entry("tf.data, antialias", "tfdata", "tfdata", ANTIALIASED, "antialias", eval=False),
    Entry("DALI", "dali", "dali", PLAIN),
    Entry("DALI, antialias", "dali", "dali", ANTIALIASED, "antialias", eval=False),
    Entry("FFCV, JPEG", "ffcv", "ffcv", AREA, captions=True),
    Entry("FFCV, raw", "ffcv", "ffcv", AREA, jpeg=False, raw=True),
    Entry("WebDataset + cv2", "webdataset", "webdataset", PLAIN, captions=True),
    Entry("LitData + cv2", "litdata", "litdata", PLAIN),
    Entry("MosaicML Streaming + cv2", "streaming", "streaming", PLAIN, captions=True),
)
