"""`Loader(backend="hybrid:SHARE")`: each batch is the one that its backend makes by itself, whatever happens in between."""

from __future__ import annotations

import os
import signal
from collections import deque
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fastdata.loader.backend as backends
from fastdata import LMDBDataset, Loader, LoaderError, RandomResizedCrop
from fastdata.loader.backend import share_of
from fastdata.loader.hybrid import Half, Split
from fastdata.loader.order import EpochOrder, Part
from fastdata.loader.requests import Requests
from fastdata.loader.sizes import Sizes
from stores import COUNT, sha, store
from support import worker_processes

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]
OPTIONS = {"batch_size": 8, "shuffle": True, "seed": 5}
BATCHES = -(-COUNT // 8)  # of an epoch


def photos():
    return LMDBDataset(store("jpeg"), crop=RandomResizedCrop(48), hflip=0.5)


def by_dali(share, epochs=(0, 1)):
    """Whose turn it is in some epochs, counted out: DALI's when it would be a whole batch behind otherwise."""
    made, turns = 0, []
    for k in range((max(epochs) + 1) * BATCHES):
        turns.append(made + 1 <= (k + 1) * share)
        made += turns[-1]
    return [turns[e * BATCHES + k] for e in epochs for k in range(BATCHES)]


def wanted(share, epochs=(0, 1)):
    """The batches of each backend alone, those of DALI in its turns."""
    found = []
    for backend in ("torch", "dali"):
        with Loader(photos(), **OPTIONS, backend=backend, num_workers=1) as loader:
            found.append([batch for _ in range(max(epochs) + 1) for batch in loader])
    places = [e * BATCHES + k for e in epochs for k in range(BATCHES)]
    return [found[dali][place] for place, dali in zip(places, by_dali(share, epochs), strict=True)]


# ------------------------------------------------------------------------------------------------- without DALI


class Counted(Requests):
    """Requests that count how many were drawn."""

    drawn = 0

    def __iter__(self):
        for request in super().__iter__():
            self.drawn += 1
            yield request


@given(
    st.fractions(Fraction(1, 64), Fraction(63, 64), max_denominator=64),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=60),
    st.sets(st.integers(0, 60)),
)
@settings(max_examples=200, deadline=None)
@pytest.mark.slow
def test_engines_that_run_ahead_as_they_like_get_their_own_requests_in_order(share, draws, restarts):
    requests = Counted(EpochOrder(COUNT, 0, shuffle=True), Part(0, 1), 8, COUNT, None)
    split = Split(requests, share)
    halves = [iter(Half(split, engine)) for engine in (0, 1)]
    ahead, epoch, place, taken = (deque(), deque()), 0, 0, 0
    for step, (engine, count) in enumerate(draws):
        if step in restarts:
            epoch, place = epoch + 2, 3 * 8
            requests.restart(epoch, place, Sizes.of(None))
            requests.drawn = taken = 0
            for queue in ahead:
                queue.clear()  # as an engine does with what belongs to an earlier generation
        ahead[engine].extend(next(halves[engine]) for _ in range(count))
        taken += count
        turn = split.turn()
        k = epoch * BATCHES + place // 8
        assert turn == int((k + 1) * share // 1 - k * share // 1)
        taken += not ahead[turn]
        request = ahead[turn].popleft() if ahead[turn] else next(halves[turn])
        split.delivered()
        assert (request.epoch, request.start, request.generation) == (epoch, place, requests.generation)
        assert requests.drawn - taken <= 64 * (1 + max(map(len, ahead))), "an engine that runs ahead leaves few for the other one"
        epoch, place = (epoch, request.stop) if request.stop < COUNT else (epoch + 1, 0)


def test_what_is_no_share_is_no_backend():
    assert (share_of("hybrid:0.25"), share_of("hybrid:1/3"), share_of("dali")) == (Fraction(1, 4), Fraction(1, 3), None)
    for wrong in (
        "hybrid",
        "hybrid:",
        "hybrid:0",
        "hybrid:1",
        "hybrid:-0.5",
        "hybrid:half",
        "hybrid:1/0",
        "hybrid:0.01",
        "other:0.5",
        None,
    ):
        with pytest.raises(ValueError, match=r"backend is .*hybrid:"):
            Loader(photos(), 8, backend=wrong)


# ---------------------------------------------------------------------------------------------------- with DALI


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("share", ["0.5", "1/6", "0.7"])
def test_every_batch_is_that_of_its_backend(share, workers):
    pytest.importorskip("nvidia.dali")
    assert 0 < sum(by_dali(Fraction(share))) < 2 * BATCHES
    with Loader(photos(), **OPTIONS, backend=f"hybrid:{share}", num_workers=workers) as loader:
        found = [*loader, *loader]
        assert loader.backend == f"hybrid:{share}" and loader.stats().samples == 2 * COUNT
    assert sha(found) == sha(wanted(Fraction(share)))


def test_a_resumed_run_and_one_that_changes_its_mind_have_the_same_batches():
    pytest.importorskip("nvidia.dali")
    want = wanted(Fraction("0.5"), epochs=(0, 1, 4))
    options = {**OPTIONS, "backend": "hybrid:0.5", "num_workers": 2}
    with Loader(photos(), **options) as first, Loader(photos(), **options) as second:
        batches = iter(first)
        assert sha(next(batches) for _ in range(4)) == sha(want[:4])
        second.load_state_dict(first.state_dict())
        assert sha([*second, *second]) == sha(want[4 : 2 * BATCHES])
        second.set_epoch(4)
        assert sha(second) == sha(want[2 * BATCHES :])
        first.set_epoch(0)  # with batches of both engines under way
        assert sha(first) == sha(want[:BATCHES])


def test_on_a_device_with_a_sampler_and_another_size_in_between():
    pytest.importorskip("nvidia.dali")
    sampler, found = [*range(COUNT), *range(10)], {}
    for backend in ("torch", "dali", "hybrid:0.5"):
        options = {"batch_size": 8, "seed": 5, "sampler": sampler, "drop_last": True, "num_workers": 1, "device": "cpu"}
        with Loader(photos(), **options, backend=backend) as loader:
            batches = iter(loader)
            first = [next(batches), next(batches)]
            loader.set_size(crop=32)  # with batches of both engines under way
            found[backend] = first + list(batches)
    assert [b[0].shape[-1] for b in found["hybrid:0.5"]] == [48] * 2 + [32] * 4
    assert sha(found["hybrid:0.5"]) == sha(found["dali" if k % 2 else "torch"][k] for k in range(6))


def test_a_killed_worker_ends_the_pass_with_an_error_and_the_next_one_works():
    pytest.importorskip("nvidia.dali")
    before = worker_processes()
    with Loader(photos(), **OPTIONS, backend="hybrid:0.5", num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        (worker,) = worker_processes() - before
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(LoaderError, match="a worker died"):
            for _ in range(3 * BATCHES):
                next(batches)
        loader.set_epoch(0)
        assert sha(loader) == sha(wanted(Fraction("0.5"), epochs=(0,)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_of_both_are_there_and_equal_those_of_the_cpu():
    pytest.importorskip("nvidia.dali")
    with Loader(photos(), **OPTIONS, backend="hybrid:0.5", num_workers=2, device="cuda") as loader:
        found = [*loader, *loader]
    with Loader(photos(), **OPTIONS, num_workers=0) as loader:
        want = [*loader, *loader]
    for batch, other, dali in zip(found, want, by_dali(Fraction("0.5")), strict=True):
        assert batch[0].is_cuda and batch[1].is_cuda and batch.ids.tolist() == other.ids.tolist()
        off = (batch[0].cpu().int() - other[0].int()).abs().float()
        assert off.mean((1, 2, 3)).max() <= 2 if dali else off.max() == 0


@pytest.mark.slow
def test_auto_may_share_where_dali_has_a_device_of_its_own(monkeypatch):
    pytest.importorskip("nvidia.dali")
    monkeypatch.setattr(backends, "SHARED_ON", ("cpu",))
    monkeypatch.setattr(backends, "SLICE_S", 0.05)
    started, start = [], backends._like
    monkeypatch.setattr(backends, "_like", lambda *given, **options: started.append(given[3]) or start(*given, **options))
    for worth, kind in ((0.0, "hybrid:"), (1e9, "")):
        monkeypatch.setattr(backends, "WORTH", worth)
        with Loader(photos(), **OPTIONS, backend="auto", num_workers=1, device="cpu") as loader:
            images, _ = next(iter(loader))
            assert loader.backend.startswith(kind) if kind else loader.backend in ("torch", "dali")
            assert "hybrid:" in loader.backend_reason and "; then" in loader.backend_reason
            assert images.dtype == torch.uint8 and len(images) == 8
            assert started[-2].startswith("hybrid:"), "its workers are forked before DALI has threads"
