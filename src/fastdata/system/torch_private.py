"""Private names of torch without a public counterpart, in one place to check when a new torch comes out.

Tested with torch 2.6, 2.13 and 2.15. If a later torch lacks the names, `arrived` returns None, and the other functions
raise an ImportError or AttributeError. `torch._foreach_add` and its like, and TorchDispatchMode, are not here: torch's
documentation has them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.utils._pytree
from torch._utils import ExceptionWrapper as ExceptionWrapper  # carries a worker's error with its traceback
from torch.optim import Optimizer
from torch.utils.data import DataLoader, dataloader
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils.collate import default_collate_fn_map as default_collate_fn_map  # documented, under default_collate

pytree = torch.utils._pytree
NormBase = torch.nn.modules.batchnorm._NormBase  # the base of all BatchNorm and InstanceNorm, also lazy and synced
bilinear_averaged = torch._C._nn._upsample_bilinear2d_aa  # as in torch.nn.functional.interpolate; torch.ops is slower
bilinear = torch._C._nn.upsample_bilinear2d
bicubic_averaged, bicubic = torch._C._nn._upsample_bicubic2d_aa, torch._C._nn.upsample_bicubic2d
find_not_finite = torch._amp_foreach_non_finite_check_and_unscale_  # sets a flag to 1; what torch's GradScaler calls
NEEDED = ("_data_queue", "_dataset_kind", "_rcvd_idx", "_task_info", "_tasks_outstanding", "_try_get_data")


def workers_of(batches: Any) -> tuple[Any, ...]:
    """Return the worker processes of an iterator of torch's DataLoader; an empty tuple if it has none."""
    return tuple(getattr(batches, "_workers", ()))


def end_workers(batches: Any) -> None:
    """End the workers of an iterator as torch does, then kill those left: all of them, if this process is ending."""
    try:
        batches._shutdown_workers()
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):  # torch's handler of SIGCHLD says that one was killed meanwhile
            raise
    finally:
        if batches._worker_pids_set:  # or the handler would report the workers that are killed here
            signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined]
            batches._worker_pids_set = False
        for worker in batches._workers:
            worker.kill()


def end_kept_workers(loader: DataLoader[Any]) -> None:
    """End the workers that a DataLoader with persistent_workers keeps."""
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined]


def has_iterator(loader: Any) -> bool:
    """Return whether a DataLoader with persistent_workers, perhaps in a Prefetcher, has begun the iterator that it keeps."""
    loader = getattr(loader, "loader", loader)
    return isinstance(loader, DataLoader) and loader._iterator is not None


def let_have_iterator(loader: Any, wanted: bool) -> None:
    """Let a DataLoader with persistent_workers have its iterator if `wanted`, else end it. Beginning it draws a seed."""
    loader = getattr(loader, "loader", loader)
    if isinstance(loader, DataLoader) and loader.persistent_workers and wanted != has_iterator(loader):
        end_kept_workers(loader)
        loader._iterator = None
        if wanted:
            iter(loader)


def default_device() -> torch.device:
    """Return the device for new tensors. torch 2.6's own function fails after `torch.set_default_device(None)`."""
    try:
        return torch.get_default_device()
    except AttributeError:
        return torch.device("cpu")


def shared_storage(size: int) -> Any:
    """Allocate `size` bytes that another process can map, as torch's default_collate does in a worker."""
    return torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]


def has_stepped(optimizer: Optimizer) -> None:
    """Mark an optimizer as stepped, for torch's schedulers: they see steps of this process only, and would warn after a resume."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def arrived(batches: Any) -> bool | None:
    """Return whether the next batch of an iterator is ready, or None if this is unknown.

    It is known for torch's DataLoader: with workers, even if the batch waits after others in the workers' queue; without workers,
    no batch is ready before it is requested.
    """
    if isinstance(batches, dataloader._SingleProcessDataLoaderIter):
        return False
    if type(batches) is not dataloader._MultiProcessingDataLoaderIter or not all(hasattr(batches, name) for name in NEEDED):
        return None
    in_order = getattr(batches, "_in_order", True) and batches._dataset_kind == dataloader._DatasetKind.Map
    while len(batches._task_info.get(batches._rcvd_idx, ())) < 2:
        if batches._data_queue.empty():
            return False
        if not in_order:  # then the first in the queue is the next, or says that a worker has no more
            return True
        received, message = batches._try_get_data()  # type: ignore[no-untyped-call]
        if not received:
            return False
        batches._tasks_outstanding -= 1  # as in its `_next_data`
        batches._task_info[message[0]] += (message[1],)
    return True
