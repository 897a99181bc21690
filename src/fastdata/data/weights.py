"""Weights of classes, for a loss, from how often each of them comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["HasClasses", "counted"]

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("inverse", "median")


class HasClasses:
    """A dataset whose samples, or the pixels of whose masks, have classes."""

    def _class_counts(self) -> tuple[dict[int, int], int]:
        """How often each class comes, and how many have names.

        Raises:
            ValueError: there are no classes.
        """
        raise NotImplementedError

    def class_weights(self, kind: str = "inverse", *, num_classes: int | None = None) -> torch.Tensor:
        """A weight for each class, as a loss takes it: `cross_entropy(scores, targets, weight=dataset.class_weights())`.

        With n samples in all, c classes that come at all, and n_k samples of class k:

        - "inverse": n / (c * n_k), so that every class weighs as much as every other one, and a sample 1 on average. (King and
          Zeng, Logistic Regression in Rare Events Data, 2001; scikit-learn's class_weight="balanced".)
        - "median": the median of all n_k / n_k. (Median frequency balancing of Eigen and Fergus, Predicting Depth, Surface Normals
          and Semantic Labels with a Common Multi-Scale Convolutional Architecture, ICCV 2015. They divide n_k by the pixels of the
          images that class k is in, which a store does not count.)

        With masks, samples are pixels (`class_pixels`, `class_voxels`): those of all masks of the store, without `ignore_index`.
        Else they are the samples of this dataset, so that a split has weights of its own.

        Args:
            kind: "inverse" or "median".
            num_classes: how many weights; None: as many as there are names, or the largest class needs.

        Returns:
            float32 [num_classes]; 0 for a class that never comes.

        Raises:
            ValueError: a wrong argument, or there are no classes.
        """
        if kind not in KINDS:
            raise ValueError(f"kind is {kind!r}, but must be one of {', '.join(KINDS)}")
        counts, named = self._class_counts()
        counts = {k: n for k, n in counts.items() if n}
        least = max(counts, default=-1) + 1
        length = max(least, named) if num_classes is None else num_classes
        if length < least:
            raise ValueError(f"num_classes is {num_classes}, but there are samples of class {least - 1}: give {least} or more")
        weights = torch.zeros(length, dtype=torch.float32, device="cpu")
        if counts:
            found = torch.tensor(list(counts.values()), dtype=torch.float64, device="cpu")
            top = found.mean() if kind == "inverse" else found.quantile(0.5)
            weights[list(counts)] = (top / found).float()
        return weights


def counted(targets: Array) -> dict[int, int]:
    """How often each class comes in a list of them, in the order of the classes."""
    classes, counts = np.unique(targets, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))
