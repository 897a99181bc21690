"""What goes with an optimizer: rates, groups of parameters, an average of the weights."""

from fastdata.optim.groups import decay_groups
from fastdata.optim.rates import cosine, linear, multistep, onecycle, scale_lr

__all__ = ["cosine", "decay_groups", "linear", "multistep", "onecycle", "scale_lr"]
