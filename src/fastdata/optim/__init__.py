"""Companions of an optimizer: learning rates, parameter groups, and an average of the weights."""

from fastdata.optim.groups import decay_groups
from fastdata.optim.rates import cosine, linear, onecycle, scale_lr

__all__ = ["cosine", "decay_groups", "linear", "onecycle", "scale_lr"]
