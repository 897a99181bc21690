"""Biases that a BatchNorm behind them takes out again."""

from __future__ import annotations

from torch import Tensor, nn

from fastdata.gpu.conv_norm_graph import CONVS, NORMS, is_biased_conv, is_norm, links

__all__ = ["dead_biases", "drop_dead_bias"]


def drop_dead_bias(model: nn.Module) -> list[str]:
    """Removes the biases that `dead_biases` finds, in place: the output stays the same, in training and in evaluation.

    A BatchNorm subtracts the mean over the batch, and with it what a bias added (Ioffe and Szegedy, Batch Normalization, 2015,
    section 3.2). Such a bias costs a sum over the whole gradient, which is 0 but for rounding, and a place in the optimizer.
    ``running_mean -= bias`` keeps evaluation; from then on the running mean evolves as before, less the bias.

    Call it before an optimizer, DistributedDataParallel or torch.compile takes the model. The parameters are gone from the
    state_dict: load older checkpoints first. Outputs, gradients of all other parameters and running statistics are those from
    before but for rounding; running_mean is computed in the wider dtype of the two, then rounded to its own.

    Args:
        model: Any module, on any device.

    Returns:
        The names of the convolutions, as in ``model.named_modules()``; the `bias` of each is None now.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3))
        >>> drop_dead_bias(model)
        ['0']
    """
    pairs = dead_biases(model)
    for conv_name, norm_name in pairs:
        conv, mean = model.get_submodule(conv_name), model.get_submodule(norm_name).running_mean
        bias = conv._parameters["bias"]
        if isinstance(mean, Tensor) and bias is not None:  # mean is None: it knows only the batch, there is nothing to fold
            mean.sub_(bias.detach().to(mean.device))
        conv._parameters["bias"] = None
    return [conv_name for conv_name, _ in pairs]


def dead_biases(model: nn.Module) -> list[tuple[str, str]]:
    """Finds the convolutions whose bias has no effect, since a BatchNorm follows; only looks.

    That is where, in `forward` as torch.fx traces it in training and in evaluation mode, a Conv or ConvTranspose (both add
    their bias to a whole channel) goes into a BatchNorm of as many dimensions, or a SyncBatchNorm, and nowhere else, and that
    norm gets nothing else. Both may be called several times if this holds for each call. A part that fx cannot trace (control
    flow that depends on tensors) is a closed box; the modules inside it are looked at one by one, as if each were called as a
    whole, unless what fx saw before it gave up says otherwise.

    Left alone: modules with forward hooks, or a `forward` of their own; a bias that is parametrized, not initialized yet, shared
    with another module, or read in a `forward`; a norm in evaluation mode inside a model in training mode (it is frozen, so the
    bias learns); ``F.batch_norm``; Linear layers; a model that copy.deepcopy cannot copy. Attributes of the model that choose a
    path are taken as they are. Inputs without a batch dimension are not thought of.

    What is traced is a copy that shares the parameters, and random numbers stay as they were. Where no convolution has a bias or
    no BatchNorm exists, nothing is traced.

    Args:
        model: Any module.

    Returns:
        Names of (convolution, BatchNorm), in the order of ``model.named_modules()``.
    """
    if not (any(map(is_biased_conv, model.modules())) and any(map(is_norm, model.modules()))):
        return []
    to, of = links(model)
    pairs = [(conv, *to[conv]) for conv, _ in model.named_modules() if len(to[conv]) == 1]
    return [(conv, norm) for conv, norm in pairs if of[norm] == {conv} and _dead(model, conv, norm)]


def _dead(model: nn.Module, conv_name: str, norm_name: str) -> bool:
    """Of two modules that are linked to each other only."""
    conv, norm = model.get_submodule(conv_name), model.get_submodule(norm_name)
    assert isinstance(conv, CONVS) and isinstance(norm, NORMS)
    owners = sum(p is conv.bias for m in model.modules() for p in m._parameters.values())
    frozen = model.training and not norm.training and norm.running_mean is not None
    ranks = {kind: rank for rank, kind in enumerate(NORMS[:3], 3) if isinstance(norm, kind)}.values()  # none: it takes any
    fits = conv.out_channels == norm.num_features and all(rank == conv.weight.dim() for rank in ranks)
    return is_biased_conv(conv) and owners == 1 and not frozen and fits
