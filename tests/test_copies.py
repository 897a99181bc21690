"""Copies beside the consumer's work, on a GPU on paper: whatever may go wrong between streams would show in the bytes."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fastdata import LMDBDataset, Loader, MaskDataset, Prefetcher, Ragged, RandomResizedCrop
from fastdata.gpu import copies
from fastdata.gpu.copies import Copier, group_adjacent
from paper import PaperGPU, take_over
from stores import masked, store
from support import engine_of, under_way

PASSES = 3


def augmented() -> LMDBDataset:
    return LMDBDataset(store("jpeg"), size=64, crop=RandomResizedCrop(16), hflip=0.5)


@pytest.fixture(params=[False, True], ids=["late", "eager"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PaperGPU:
    return take_over(monkeypatch, eager=request.param)


@cache
def wanted() -> list[Tensor]:
    """The tensors of all batches, on the host."""
    with Loader(augmented(), 6, shuffle=True, num_workers=0) as loader:
        return [tensor.clone() for _ in range(PASSES) for batch in loader for tensor in batch]


def fed(workers: int = 2, **options: Any) -> Loader:
    return Loader(augmented(), 6, shuffle=True, num_workers=workers, device="cpu", **options)


def train(batches: Any, gpu: PaperGPU, *, junk: bool = True) -> None:
    """A consumer that queues work, and never looks."""
    for batch in batches:
        for tensor in batch:
            gpu.read(tensor)
        if junk:
            gpu.scribble(batch[0].nbytes)
        del tensor, batch


def are_wanted(found: list[Tensor]) -> bool:
    pairs = list(zip(found, wanted(), strict=False))
    return len(found) == len(wanted()) and all(a.stride() == b.stride() and torch.equal(a.cpu(), b) for a, b in pairs)


def right(gpu: PaperGPU) -> bool:
    """Whether the kernels saw what is on the host, once everything has run."""
    gpu.run()
    seen, gpu.seen = gpu.seen, []
    return are_wanted(seen)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 5])
def test_a_slow_consumer_sees_every_batch_as_it_was_made(gpu, workers, depth):
    with fed(workers, device_prefetch=depth) as loader:
        for _ in range(PASSES):
            train(loader, gpu)
        assert loader.stats().copies == 0
    assert right(gpu)
    assert gpu.allocated <= 2 * (depth + 3), "memory is reused"


def test_a_prefetcher_does_the_same(gpu):
    train(Prefetcher([*zip(wanted()[::2], wanted()[1::2], strict=True)], "cpu"), gpu)
    assert right(gpu)


WRONG = {"the consumer waits": [True, False], "the copy waits": [False, True], "the host's memory is held": [True, True]}


@pytest.mark.parametrize("missing", WRONG)
def test_without_its_waits_batches_would_be_wrong(missing, monkeypatch):
    """The test above sees what it is there to see: late, eager, or both."""
    found = []
    for eager in (False, True):
        with monkeypatch.context() as patch:
            gpu = take_over(patch, eager=eager)
            if missing == "the host's memory is held":
                patch.setattr(Copier, "reclaim", lambda self, *_: under_way(self).clear())
            else:
                patch.setattr(gpu.home if missing == "the consumer waits" else gpu.side, "wait_event", lambda event: None)
            with fed() as loader:
                for _ in range(PASSES):
                    train(loader, gpu)
                found.append(not right(gpu))
    assert found == WRONG[missing]


def test_a_consumer_that_changes_its_stream_from_batch_to_batch(gpu):
    with fed() as loader:
        for k, batch in enumerate(batch for _ in range(PASSES) for batch in loader):
            gpu.current = gpu.own if k % 2 else gpu.home
            for tensor in batch:  # handed out on the other stream
                gpu.note(tensor, gpu.current)
                event = gpu.Event()
                event.record(gpu.home if k % 2 else gpu.own)
                gpu.current.wait_event(event)
                gpu.read(tensor)
            gpu.scribble(batch[0].nbytes)
            del tensor, batch
    assert right(gpu)


def test_a_copy_that_nobody_takes_keeps_its_memory_until_it_is_done(gpu):
    copier = Copier("cpu")
    for k in range(3):
        copier.start(torch.full((64,), k, dtype=torch.uint8))
    mine = [gpu.scribble(64) for _ in range(3)]
    gpu.run()
    assert {value for tensor in mine for value in tensor.tolist()} == {222}
    copier.close()


def test_passes_that_are_left_do_no_harm(gpu):
    with fed() as loader:
        for _ in range(8):
            for batch in loader:
                gpu.scribble(batch[0].nbytes)
                break
            del batch
        loader.set_epoch(0)
        for _ in range(PASSES):
            train(loader, gpu)
    assert right(gpu)


def test_the_host_waits_only_where_no_slot_is_left(gpu):
    """And where copies are under way when it is closed."""
    with fed() as loader:
        for k, _ in enumerate(loader):
            if k == 1:  # at most four have begun
                assert gpu.waits == 0
        for _ in range(PASSES):
            list(loader)
        assert gpu.waits
        next(iter(loader))
        engine = engine_of(loader)
        assert under_way(engine)
    assert not under_way(engine)


def test_images_and_masks_travel_as_one(gpu):
    dataset = MaskDataset(masked(), crop=RandomResizedCrop((24, 31))).subset([0, 1, 2] * 2)
    with Loader(dataset, 6, num_workers=0, device="cpu") as loader:
        images, masks = next(iter(loader))
        assert gpu.sent == [-(-6 * 24 * 31 * 3 // 64) * 64 + 6 * 24 * 31]
        assert images.untyped_storage().data_ptr() == masks.untyped_storage().data_ptr()
        assert masks.is_contiguous() and images.is_contiguous(memory_format=torch.channels_last)
        assert images._base is masks._base is None, "who changes one in place does not touch what is known of the other"


Pair = namedtuple("Pair", "a b")


class Custom(tuple):
    note: str


class Moving:
    """Something of the user's that knows how to move."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def to(self, device: Any, non_blocking: bool = False) -> Moving:
        assert non_blocking
        return Moving(device)


def there(batch: Any) -> Any:
    copier = Copier("cpu")
    copy = copier.start(batch)
    data = copy.take()
    copier.close()
    return data


TENSORS = {
    "plain": torch.arange(24).view(2, 3, 4),
    "one number": torch.tensor(7.5),
    "channels last": torch.arange(48, dtype=torch.uint8).view(1, 4, 4, 3).permute(0, 3, 1, 2),
    "one channel": torch.arange(32, dtype=torch.uint8).view(2, 4, 4, 1).permute(0, 3, 1, 2),
    "16 bits": torch.tensor([1, 65535], dtype=torch.uint16),
    "bfloat16": torch.arange(6, dtype=torch.bfloat16)[2:],
    "bool": torch.tensor([True, False]),
    "a part of rows": torch.arange(20).view(4, 5)[:, :-1],
    "expanded": torch.arange(3).view(3, 1).expand(3, 4),
    "every second": torch.arange(20)[::2],
    "empty": torch.empty(0, 3),
    "complex": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(3).to_sparse(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_of_all_kinds(gpu, name):
    tensor = TENSORS[name]
    found = there({"x": tensor})["x"]
    gpu.run()
    assert found.dtype == tensor.dtype and found.shape == tensor.shape
    assert torch.equal(found.to_dense() if found.is_sparse else found, tensor.to_dense() if tensor.is_sparse else tensor)
    if name in ("channels last", "one channel", "plain"):
        assert found.stride() == tensor.stride() and found.data_ptr() != tensor.data_ptr()


def test_a_batch_keeps_its_structure_and_its_attributes(gpu):
    x = torch.arange(6)
    own = Custom((x, "text"))
    own.note = "mine"
    marked = x.clone()
    marked.valid = 3
    batch = {"pair": Pair(x, [x, None]), "own": own, "marked": marked, "deep": OrderedDict(k=(x, 1)), "moving": Moving(), "n": 5}
    batch["boxes"] = Ragged(torch.ones(3, 4), torch.tensor([0, 1, 3]))
    found = there(batch)
    gpu.run()
    assert torch.equal(found["boxes"].values, batch["boxes"].values) and found["boxes"].offsets.tolist() == [0, 1, 3]
    assert list(found) == list(batch) and type(found["pair"]) is Pair and type(found["own"]) is Custom
    assert type(found["deep"]) is OrderedDict and found["own"].note == "mine" and found["marked"].valid == 3
    assert found["own"][1] == "text" and found["n"] == 5 and found["pair"].b[1] is None and found["moving"].device.type == "cpu"
    same = [found["pair"].a, found["pair"].b[0], found["own"][0], found["deep"]["k"][0]]
    assert all(torch.equal(tensor, x) for tensor in same) and len({tensor.data_ptr() for tensor in same}) == 1, "sent once"
    assert sorted(gpu.sent) == [24, 48, 48, 48] and batch["pair"].a is x and not hasattr(batch["moving"].device, "type")


def test_a_copy_before_one_that_fails_is_waited_for(gpu, monkeypatch):
    """Its memory on both sides is not given out again while it runs."""
    copier, send = Copier("cpu"), gpu.send

    def failing(block: Tensor, source: Tensor) -> None:
        if source.nbytes == 32:
            raise RuntimeError("out of luck")
        send(block, source)

    monkeypatch.setattr(copies, "_send", failing)
    whole = torch.full((256,), 7, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="out of luck"):
        copier.start([whole[:64], whole[192:224]])
    mine = [gpu.scribble(size) for size in (64, 32)]
    del whole
    gpu.run()
    copier.close()
    assert {value for tensor in mine for value in tensor.tolist()} == {222}


def test_what_lies_side_by_side_travels_together():
    whole = torch.arange(512, dtype=torch.uint8)
    parts = [whole[a:b] for a, b in ((0, 100), (128, 200), (200, 256), (320, 330), (393, 400), (390, 395))]
    parts += [whole[401:409].view(torch.uint8), torch.zeros(4), whole[448:512].view(torch.int64), whole[417:441]]
    groups = group_adjacent(parts[k] for k in (3, 7, 0, 4, 2, 1, 5, 6, 8, 9))
    names = [[next(k for k, part in enumerate(parts) if part is tensor) for tensor in group] for group in groups]
    assert sorted(names) == [[0, 1, 2], [3, 5], [4, 6, 9], [7], [8]], "none across 64 bytes, nor on top of one another, nor askew"


def test_a_batch_that_was_copied_under_inference_mode_may_be_trained_on(gpu):
    with torch.inference_mode():
        found = there(torch.ones(3))
    gpu.run()
    weight = torch.ones(3, requires_grad=True)
    (found * weight).sum().backward()
    assert weight.grad.tolist() == [1, 1, 1]
