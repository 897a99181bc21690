"""Lets torchvision be imported beside a torch without CUDA: its wheel then has no operators, and stumbles over these two."""

from __future__ import annotations

import torch

if not torch.version.cuda:
    LIBRARY = torch.library.Library("torchvision", "FRAGMENT")  # the definitions live as long as it does
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
