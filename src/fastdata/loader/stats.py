"""Counts of a Loader."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.data.dataset import Timing
from fastdata.loader.fetch import Reply


@dataclass
class Stats(Timing):
    """Counts and times of a loader so far, in this process.

    Attributes:
        batches, samples: how many were delivered.
        wait_s: seconds that the consumer waited for a batch.
        work_s: seconds that workers spent making batches (with DALI: that this process spent). Parts of these are
        read_s, decode_s, resize_s: waiting for the images' bytes; decoding; resizing, cropping and flipping.
        slots, slots_in_use: batches that shared memory has room for, and how many of these are being filled, waiting or held.
        slot_bytes: shared memory of all slots.
        copies: batches that were handed out as a copy because the consumer held too many.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    slots: int = 0
    slots_in_use: int = 0
    slot_bytes: int = 0
    copies: int = 0

    def add(self, reply: Reply, wait_s: float) -> None:
        """Add one more batch."""
        self.batches += 1
        self.samples += reply.request.valid
        self.wait_s += wait_s
        self.work_s += reply.work_s
        self.read_s += reply.timing.read_s
        self.decode_s += reply.timing.decode_s
        self.resize_s += reply.timing.resize_s
