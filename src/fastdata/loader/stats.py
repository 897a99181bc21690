"""The counts and times of a Loader."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.data.timing import Timing

__all__ = ["Stats"]


@dataclass
class Stats:
    """What a loader has done so far, in this process.

    Attributes:
        batches, samples: how many were delivered.
        wait_s: seconds that the consumer waited for a batch.
        work_s: seconds that workers spent making batches (with DALI: that this process spent). Parts of these are
        read_s, decode_s, resize_s: waiting for the images' bytes; decoding; resizing, cropping and flipping.
        slots, slots_in_use: batches that shared memory has room for, and how many of these are being filled, waiting or held.
        slot_bytes: shared memory of all slots.
        copies: batches that were handed out as a copy because the consumer held too many.
        fallbacks: samples that DALI could not decode, and the CPU decoded as backend="torch" does.
    """

    batches: int = 0
    samples: int = 0
    wait_s: float = 0.0
    work_s: float = 0.0
    read_s: float = 0.0
    decode_s: float = 0.0
    resize_s: float = 0.0
    slots: int = 0
    slots_in_use: int = 0
    slot_bytes: int = 0
    copies: int = 0
    fallbacks: int = 0

    def add(self, wait_s: float, work_s: float, timing: Timing) -> None:
        """Add the times of one more batch."""
        self.wait_s += wait_s
        self.work_s += work_s
        self.read_s += timing.read_s
        self.decode_s += timing.decode_s
        self.resize_s += timing.resize_s
