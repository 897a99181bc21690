"""Biases that a following BatchNorm cancels."""

from __future__ import annotations

from torch import Tensor, nn

from fastdata.gpu.conv_norm_graph import CONVS, NORMS, is_biased_conv, is_norm, links

__all__ = ["dead_biases", "drop_dead_bias"]


def drop_dead_bias(model: nn.Module) -> list[str]:
    """Remove, in place, the biases that `dead_biases` finds. The output stays the same in training and in evaluation.

    A BatchNorm subtracts the mean over the batch, and with it any bias before it (Ioffe and Szegedy, Batch Normalization, 2015,
    section 3.2). Such a bias costs a sum over the whole gradient, which is 0 up to rounding, and a place in the optimizer.
    ``running_mean -= bias`` keeps the evaluation results; from then on the running mean evolves as before, less the bias.

    Call it before an optimizer, DistributedDataParallel or torch.compile takes the model. The parameters disappear from the
    state_dict, so load older checkpoints first. Outputs, gradients of all other parameters and running statistics stay the same
    up to rounding; running_mean is computed in the wider of the two dtypes, then rounded to its own.

    Args:
        model: any module, on any device.

    Returns:
        The names of the convolutions, as in ``model.named_modules()``. Their `bias` is None now.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> drop_dead_bias(model)
        ['0']
    """
    pairs = dead_biases(model)
    for conv_name, norm_name in pairs:
        conv = model.get_submodule(conv_name)
        mean = model.get_submodule(norm_name).running_mean
        bias = conv._parameters["bias"]
        if isinstance(mean, Tensor) and bias is not None:  # without running statistics there is nothing to correct
            mean.sub_(bias.detach().to(mean.device))
        conv._parameters["bias"] = None
    return [conv_name for conv_name, _ in pairs]


def dead_biases(model: nn.Module) -> list[tuple[str, str]]:
    """Return the convolutions whose bias has no effect because a BatchNorm follows, without changing the model.

    torch.fx traces `forward` in training and in evaluation mode. In both, the output of the Conv or ConvTranspose (which add their
    bias to a whole channel) must go only into a BatchNorm with as many dimensions, or a SyncBatchNorm, and that norm must get
    nothing else. If the two are called several times, this must hold for each call. If fx cannot trace a part (control flow that
    depends on tensors), the modules inside it are checked one by one, as if each were called as a whole, unless what fx traced
    before it failed says otherwise.

    Not considered: modules with forward hooks or a `forward` of their own; a bias that is parametrized, not initialized yet, shared
    with another module, or read in a `forward`; a norm in evaluation mode inside a model in training mode (it is frozen, so the
    bias learns); ``F.batch_norm``; Linear layers; models that copy.deepcopy cannot copy; inputs without a batch dimension.
    Attributes of the model that choose a path are taken as they are.

    fx traces a copy that shares the parameters, and the random generators are restored. If no convolution has a bias or there is
    no BatchNorm, nothing is traced.

    Args:
        model: any module.

    Returns:
        Names of (convolution, BatchNorm), in the order of ``model.named_modules()``.
    """
    if not (any(map(is_biased_conv, model.modules())) and any(map(is_norm, model.modules()))):
        return []
    targets, sources = links(model)
    pairs = [(conv, *targets[conv]) for conv, _ in model.named_modules() if len(targets[conv]) == 1]
    return [(conv, norm) for conv, norm in pairs if sources[norm] == {conv} and _dead(model, conv, norm)]


def _dead(model: nn.Module, conv_name: str, norm_name: str) -> bool:
    """Return whether the bias has no effect, for two modules that are linked only to each other."""
    conv = model.get_submodule(conv_name)
    norm = model.get_submodule(norm_name)
    assert isinstance(conv, CONVS) and isinstance(norm, NORMS)
    owners = sum(p is conv.bias for m in model.modules() for p in m._parameters.values())
    frozen = model.training and not norm.training and norm.running_mean is not None
    dims = [dim for dim, kind in enumerate(NORMS[:3], 3) if isinstance(norm, kind)]  # empty for SyncBatchNorm, which takes any
    fits = conv.out_channels == norm.num_features and all(dim == conv.weight.dim() for dim in dims)
    return is_biased_conv(conv) and owners == 1 and not frozen and fits
