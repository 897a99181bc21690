"""Tensors that stay on a device and are used from several streams, on a GPU on paper."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fastdata.gpu import streams
from fastdata.gpu.streams import Home
from paper import PaperGPU, Stream

SIZE = 64


def visited(patch: pytest.MonkeyPatch, *, at_home_first: bool) -> tuple[Tensor, Tensor]:
    """What was made on one stream, and what another one read of it that came in between."""
    gpu = PaperGPU(eager=False)  # its stream `home` always runs before `own`
    patch.setattr(streams, "cuda", gpu)
    patch.setattr(Tensor, "record_stream", lambda block, stream: gpu.note(block, stream))
    mine, other = (gpu.home, gpu.own) if at_home_first else (gpu.own, gpu.home)
    made = torch.arange(SIZE, dtype=torch.uint8)
    gpu.current = mine
    block = gpu.room(made)
    gpu.send(block, made)
    home = Home(torch.device("cuda"), [block])
    gpu.current = other
    home.visit()
    gpu.read(block)
    gpu.current = mine
    del block, home  # its memory is free for who comes next on its own stream
    gpu.scribble(SIZE)
    gpu.run()
    return made, gpu.seen[0]


@pytest.mark.parametrize("at_home_first", [True, False])
def test_a_visitor_reads_what_was_made(monkeypatch: pytest.MonkeyPatch, at_home_first: bool) -> None:
    made, read = visited(monkeypatch, at_home_first=at_home_first)
    assert torch.equal(made, read)


def test_without_the_wait_it_would_read_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "wait_event", lambda stream, event: None)
    made, read = visited(monkeypatch, at_home_first=False)
    assert not torch.equal(made, read)


def test_without_the_note_its_memory_would_be_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PaperGPU, "note", lambda gpu, block, stream: None)
    made, read = visited(monkeypatch, at_home_first=True)
    assert not torch.equal(made, read)


def test_at_home_and_on_the_cpu_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    Home(torch.device("cpu"), [torch.zeros(3)]).visit()
    gpu = PaperGPU(eager=False)
    monkeypatch.setattr(streams, "cuda", gpu)
    home, queued = Home(torch.device("cuda"), [torch.zeros(3)]), len(gpu.home.queue)
    home.visit()
    assert len(gpu.home.queue) == queued == 1  # the event
