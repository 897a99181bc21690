"""Weights of classes for a loss, by their frequency."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

__all__ = ["HasClasses", "counted"]

Array = np.ndarray[Any, np.dtype[Any]]

KINDS = ("inverse", "median")


class HasClasses:
    """A dataset whose samples, or whose masks' pixels, have classes."""

    def _class_counts(self) -> tuple[dict[int, int], int]:
        """Return the count of each class, and the number of named classes.

        Raises:
            ValueError: there are no classes.
        """
        raise NotImplementedError

    def class_weights(self, kind: str = "inverse", *, num_classes: int | None = None) -> torch.Tensor:
        """Return a weight for each class, as a loss takes it: `cross_entropy(scores, targets, weight=dataset.class_weights())`.

        With n samples, c classes that have samples, and n_k samples of class k:

        - "inverse": n / (c * n_k), so that all classes have the same total weight, and a sample 1 on average. (King and
          Zeng, Logistic Regression in Rare Events Data, 2001; scikit-learn's class_weight="balanced".)
        - "median": the median of all n_k / n_k. (Median frequency balancing of Eigen and Fergus, Predicting Depth, Surface Normals
          and Semantic Labels with a Common Multi-Scale Convolutional Architecture, ICCV 2015. They divide n_k by the pixels of the
          images that contain class k, which a store does not count.)

        With masks, samples are the pixels of all masks of the store (`class_pixels`, `class_voxels`), without `ignore_index`.
        Otherwise they are the samples of this dataset, so that each part of a split has its own weights.

        Args:
            kind: "inverse" or "median".
            num_classes: the number of weights; None: the number of named classes, or the largest class + 1 if that is more.

        Returns:
            float32 [num_classes]; 0 for a class without samples.

        Raises:
            ValueError: an argument is wrong, or there are no classes.
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
    """Return the count of each class, in the order of the classes."""
    classes, counts = np.unique(targets, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))
